"""The command `graphopt`, in a clone: `python run.py task=fusion algo=go`."""

from graphopt.__main__ import main

if __name__ == "__main__":
    main()
