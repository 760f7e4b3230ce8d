"""Extracts programs from files of e-graphs: `graphopt rules extract FILE [FILE...]`.

Files are in the JSON of egraph-serialize, plain or .gz. Prints a table of costs with what is proved about them, and
says which cost each method minimises; `--json` prints a line of JSON for each file and method instead.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graphopt.rewrite.egraphs.egraph import Egraph, EgraphError, read_egraph
from graphopt.rewrite.extraction.extracting import Extraction, Method, exact_dag, greedy_dag, greedy_tree
from graphopt.utils.progress import Bar

WIDTH = 130  # characters, where there is no terminal
MEANING = {
    "greedy-tree": "greedy-tree minimises the tree cost (a shared class is paid at every use); its result is optimal",
    "greedy-dag": "greedy-dag aims at a low DAG cost (a shared class is paid once), bottom up, and proves nothing",
    "exact": "exact minimises the DAG cost (a shared class is paid once); the bound is what no program costs less than",
}
COLUMNS = ("file", "method", "minimised", "classes", "nodes", "tree cost", "DAG cost", "bound", "proven", "seconds")


def extracted(egraph: Egraph, method: Method, seconds: float) -> Extraction:
    """By one method; `seconds` limits exact only."""
    greedy: dict[str, Callable[[Egraph], Extraction]] = {"greedy-tree": greedy_tree, "greedy-dag": greedy_dag}
    return greedy[method](egraph) if method in greedy else exact_dag(egraph, seconds)


def as_json(path: Path, egraph: Egraph, found: Extraction) -> str:
    """One line. A tree cost that no number can hold is null."""
    tree = found.tree_cost if math.isfinite(found.tree_cost) else None
    size = {"file": str(path), "classes": egraph.classes, "nodes": egraph.nodes}
    costs = {"tree_cost": tree, "dag_cost": found.dag_cost, "bound": found.bound, "proven": found.proven}
    return json.dumps(
        size | {"method": found.method, "minimises": found.minimises} | costs | {"seconds": found.seconds}
    )


def row(path: Path, egraph: Egraph, found: Extraction) -> list[str]:
    """As in COLUMNS."""
    costs = [f"{cost:.7g}" for cost in (found.tree_cost, found.dag_cost, found.bound)]
    size = [f"{egraph.classes:,}", f"{egraph.nodes:,}"]
    proven = "yes" if found.proven else "no"
    return [path.name, found.method, found.minimises, *size, *costs, proven, f"{found.seconds:.2f}"]


def print_table(rows: Sequence[Sequence[str]], methods: Sequence[Method]) -> None:
    """Of all files, and below it what the methods minimise."""
    table = Table(box=SIMPLE)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number < 3 else "right", no_wrap=number > 0, overflow="fold")
    for cells in rows:
        table.add_row(*map(escape, cells))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    for method in methods:
        print(MEANING[method])


def run(paths: Sequence[Path], methods: Sequence[Method], seconds: float, json_lines: bool) -> None:
    """All files by all methods. Raises EgraphError before the first extraction if a file is not an e-graph."""
    egraphs = [read_egraph(path) for path in paths]
    rows = []
    with Bar("extract", len(paths) * len(methods)) as bar:
        for path, egraph in zip(paths, egraphs):
            for method in methods:
                try:
                    found = extracted(egraph, method, seconds)
                except EgraphError as error:
                    raise EgraphError(f"{path}: {error}") from None
                if json_lines:
                    print(as_json(path, egraph, found), flush=True)
                rows.append(row(path, egraph, found))
                bar.step(path.name)
    if not json_lines:
        print_table(rows, methods)


def limit(text: str) -> float:
    """Seconds of the command line."""
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time; give seconds from 0 up")
    return seconds


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="graphopt rules extract", description="Extract the cheapest programs from e-graphs."
    )
    result.add_argument("files", nargs="+", type=Path, metavar="FILE", help="egraph-serialize JSON, plain or .gz")
    choices = [*get_args(Method), "all"]
    result.add_argument("--method", default="exact", choices=choices, help="default: exact")
    result.add_argument("--seconds", default=30.0, type=limit, help="of exact, for each file; default: 30")
    result.add_argument("--json", action="store_true", help="a line of JSON for each file and method")
    return result


def main(arguments: Sequence[str]) -> int:
    from graphopt.cli import sentences

    args = parser().parse_args(arguments)
    methods: tuple[Method, ...] = get_args(Method) if args.method == "all" else (args.method,)
    with sentences():
        run(args.files, methods, args.seconds, args.json)
    return 0
