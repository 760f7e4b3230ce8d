"""The size and shape of the code: a ratchet. Each figure is computed from the tree and may not grow beyond what stands
here; what grows on purpose raises its number in the same commit, with the reason beside it.

`python -m pytest tests/project/test_shape.py -s` prints the figures, and where they are to go.
"""

import ast
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from project.test_architecture import IMPORTS, MODULES, PACKAGE, RANK, ROOT, module_of, unit_of

MOST = {  # figure: (at most today, wanted)
    "lines of graphopt/": (58_350, 48_000),
    "modules": (382, 440),
    "entries at its top": (14, 14),
    "options of algo": (54, 54),
    "options of dataset": (14, 16),
    "programs": (1, 1),
    "floors": (8, 8),
    "arrows back": (0, 0),
    "circles": (0, 0),
    "imports for types alone": (4, 0),
    "lines of tests": (35_150, 25_000),
    "tracked files": (1_040, 1_000),
    "MiB of results/": (35, 35),
}


def all_imports() -> dict[str, set[str]]:
    """Module -> modules of graphopt that it names anywhere, for types alone too."""
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        names: list[str] = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        known = {name if name in MODULES else name.rpartition(".")[0] for name in names}
        found[module] = (known & set(MODULES)) - {"graphopt", module}
    return found


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which reaches all others of its group (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack, found = list[str](), list[list[str]]()

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imports[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in imports:
        if module not in index:
            visit(module)
    return found


def floors(rooms: Iterable[str], above: Mapping[str, set[str]]) -> int:
    """The longest chain of rooms, each of which imports the next at run time."""
    height: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((of(other) for other in above[room]), default=0)
        return height[room]

    return max(of(room) for room in rooms)


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("no git checkout here: tracked files cannot be counted")
    return done.stdout.splitlines()


def figures() -> dict[str, int]:
    sources, everything = list(MODULES.values()), all_imports()
    rooms = {unit_of(path) for path in sources} - {"__init__"}
    above = {
        room: {
            unit_of(MODULES[other]) for module, path in MODULES.items() if unit_of(path) == room
            for other in IMPORTS[module]
        } & rooms - {room}
        for room in rooms
    }  # fmt: skip
    back = {
        (module, other)
        for module, others in everything.items()
        for other in others
        if (here := unit_of(MODULES[module])) != (there := unit_of(MODULES[other]))
        and {here, there} <= set(RANK)
        and RANK[there] >= RANK[here]
    }
    texts = [path.read_text() for path in sources]
    files = tracked()
    return {
        "lines of graphopt/": lines(sources),
        "modules": len(sources),
        "entries at its top": len({name.split("/")[1] for name in files if name.startswith("graphopt/")}),
        "options of algo": sum(bool(re.fullmatch(r"conf/algo/\w+\.yaml", name)) for name in files),
        "options of dataset": sum(bool(re.fullmatch(r"conf/dataset/\w+\.yaml", name)) for name in files),
        "programs": sum('__name__ == "__main__"' in text for text in texts),
        "floors": floors(rooms, above),
        "arrows back": len(back),
        "circles": len(circles(everything)),
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


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert circles(imports) == [["a", "b", "c"]]
    assert floors("abd", {"a": {"b"}, "b": {"d"}, "d": set()}) == 3
