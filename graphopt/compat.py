"""Which algorithms fit which tasks, as Markdown: `python -m graphopt.compat [--families]`."""

import sys

from graphopt.config import compat

if __name__ == "__main__":
    print(compat.families() if "--families" in sys.argv[1:] else compat.matrix())
