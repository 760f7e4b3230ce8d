"""Which algorithms fit which tasks, as Markdown: `python -m graphopt.compat [--families]`."""

import sys

from graphopt.config import compatibility

if __name__ == "__main__":
    print(compatibility.families() if "--families" in sys.argv[1:] else compatibility.matrix())
