"""`graphopt compat [--families]`: which algorithms fit which tasks, as Markdown."""

import argparse
from collections.abc import Sequence

from graphopt.run.config import compatibility


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt compat", description="Which algorithms fit which tasks.")
    parser.add_argument("--families", action="store_true", help="in few lines: algorithms of the same tasks share one")
    print(compatibility.families() if parser.parse_args(arguments).families else compatibility.matrix())
    return 0
