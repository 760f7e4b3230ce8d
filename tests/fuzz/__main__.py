"""`python -m tests.fuzz --cases 10000`: damaged inputs of all formats, counted by what became of them."""

import sys

from .runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
