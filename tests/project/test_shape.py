"""The size and shape of the code: a ratchet. Each figure is computed from the tree and may not grow beyond what stands
here; what grows on purpose raises its number in the same commit, with the reason beside it.

`python -m pytest tests/project/test_shape.py -s` prints the figures, and where they are to go.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import networkx as nx
import pytest
from test_architecture import MODULES, PACKAGE, RANK, ROOT, module_of, modules_imported, unit_of

MOST = {  # figure: (at most today, wanted)
    "lines of graphopt/": (
        63_911,
        48_000,
    ),  # the four papers as published; pages; functions, programs as text and other formats; backends; clusters; GPUs
    "modules": (378, 440),
    "entries at its top": (15, 15),
    "options of algo": (55, 54),  # regal_paper, laf_paper, xrlflow_paper: each paper as published, beside ours
    "options of dataset": (15, 16),
    "programs": (1, 1),
    "floors": (8, 9),
    "arrows back": (0, 0),
    "circles": (0, 0),
    "imports for types alone": (5, 0),  # torch_geometric is loaded late
    "lines of tests": (
        36_441,
        25_000,
    ),  # those options, trained on one graph; pages in a browser; formats; clusters; GPUs
    "tracked files": (1_113, 1_010),  # those options, and rows of them
    "MiB of results/": (57, 35),  # rows of those options, three trainings each, with their answers
}


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("no git checkout here: tracked files cannot be counted")
    return done.stdout.splitlines()


def arrows(types: bool) -> list[tuple[str, str]]:
    """(module, module of graphopt that it names). types: also where it is named for types alone."""
    return [(module, other) for module, path in MODULES.items() for other in modules_imported(path, types)]


def figures() -> dict[str, int]:
    sources, everything = list(MODULES.values()), arrows(types=True)
    between = [(unit_of(MODULES[here]), unit_of(MODULES[there])) for here, there in arrows(types=False)]
    rooms = nx.DiGraph((here, there) for here, there in between if here != there and {here, there} <= set(RANK))
    units = [(unit_of(MODULES[here]), unit_of(MODULES[there])) for here, there in everything]
    back = [(a, b) for a, b in units if a != b and {a, b} <= set(RANK) and RANK[b] >= RANK[a]]
    circles = [group for group in nx.strongly_connected_components(nx.DiGraph(everything)) if len(group) > 1]
    texts = [path.read_text() for path in sources]
    files = tracked()
    return {
        "lines of graphopt/": lines(sources),
        "modules": len(sources),
        "entries at its top": len({name.split("/")[1] for name in files if name.startswith("graphopt/")}),
        "options of algo": sum(bool(re.fullmatch(r"conf/algo/\w+\.yaml", name)) for name in files),
        "options of dataset": sum(bool(re.fullmatch(r"conf/dataset/\w+\.yaml", name)) for name in files),
        "programs": sum('__name__ == "__main__"' in text for text in texts),
        "floors": 1 + nx.dag_longest_path_length(rooms),
        "arrows back": len(back),
        "circles": len(circles),
        "imports for types alone": sum("if TYPE_CHECKING:" in text for text in texts),
        "lines of tests": lines((ROOT / "tests").rglob("*.py")),
        "tracked files": len(files),
        "MiB of results/": sum((ROOT / f).stat().st_size for f in files if f.startswith("results/")) >> 20,
    }


def test_the_shape_does_not_grow() -> None:
    found = figures()
    for name, value in found.items():
        print(f"{name:26} {value:7,}  at most {MOST[name][0]:7,}  wanted {MOST[name][1]:7,}")
    grown = {name: value for name, value in found.items() if value > MOST[name][0]}
    assert not grown, f"more than tests/project/test_shape.py allows: {grown}"
    assert PACKAGE.is_dir() and module_of(PACKAGE / "core" / "cli.py") in MODULES
