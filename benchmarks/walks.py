"""Five walks through the code, traced: the files that a value passes, in order, each with its first function.

`python benchmarks/walks.py [--package CHECKOUT] [WALK ...]` solves small problems, each in a process of its own, and
prints a table and the files. Imports and compiled functions are not seen; processes that build and measure are
followed. Two minutes, and more where code is not compiled yet or the machine is busy.

- rooms: entries of graphopt/; folders: those that hold the files.
- climbs: pairs of files of which the first calls the second, on a higher floor. A module stands one floor above the
  highest that it imports; modules that import each other stand on one.
- returns: how often a room is entered again, files taken in the order of their first call.
"""

import argparse
import ast
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import FrameType

import networkx as nx

ONE_GRAPH = "logger=none dataset=synthetic dataset.test=1 dataset.ops=12 dataset.families=[layered] budget.evals=[30]"


def of_command(words: str) -> None:
    """What `python run.py` does with these words."""
    sys.argv = ["run.py", *words.split()]
    runpy.run_path(str(Path(os.environ["WALK_PACKAGE"]) / "run.py"), run_name="__main__")


def of_module(**options: object) -> None:
    """`optimize` on two layers."""
    import torch

    import graphopt

    options |= {"settings": [f"cost.table={os.getcwd()}/new.jsonl"]} if "cost" in options else {}
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
    graphopt.optimize(model, torch.zeros(32, 64), **options)


@dataclass(frozen=True)
class Walk:
    """begin: the function it starts with; past: functions that are entered, and what they call left out."""

    title: str
    solve: Callable[[], None]
    begin: str
    past: tuple[str, ...] = ()


WALKS = {
    "graph": Walk(
        "a graph from `optimize` to an answer", partial(of_module, budget=30), "optimize",
        ("build", "composed", "LocalSearch.solve"),
    ),
    "configuration": Walk(
        "a configuration from the command line to a row", partial(of_command, f"{ONE_GRAPH} algo=local"), "main",
        ("LocalSearch.solve",),
    ),
    "local": Walk(
        "a solve by local search", partial(of_command, f"{ONE_GRAPH} algo=local"), "LocalSearch.solve"
    ),
    "measured": Walk(
        "a measured cost", partial(of_module, cost="inductor", budget=3),
        "Inductor.price",
    ),
    "rewritten": Walk(
        "a rewritten program",
        partial(of_command, "logger=none dataset=rewrite_models dataset.test=[{model:squeezenet}] task=rewrite "
                            "cost=flops cost@judge=flops algo=taso budget.evals=[2]"),
        "Rewriting.realise",
    ),
}  # fmt: skip


def follow(walk: Walk, top: str, out: str, *, inside: bool) -> None:
    """Appends every new call between two files below `top` to `out`: caller, called, function. inside: from now on."""
    seen = set[tuple[str, str]]()
    left: FrameType | None = None  # nothing counts before it returns
    begun: FrameType | None = None  # the walk ends with it
    file = open(out, "a", buffering=1)  # noqa: SIM115  # as long as the process lives
    main = threading.get_ident()

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal inside, left, begun
        code = frame.f_code
        if event == "return":
            left = None if frame is left else left
            inside, begun = inside and frame is not begun, None if frame is begun else begun
        if event != "call" or left is not None:
            return
        if not code.co_filename.startswith(top):
            return
        if code.co_name == "<module>":
            left = frame if threading.get_ident() == main else None
            return
        if not inside and code.co_qualname == walk.begin:
            inside, begun = True, frame
        if not inside:
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(top):
            caller = caller.f_back
        if code.co_qualname in walk.past:
            left = frame
        pair = "" if caller is None else caller.f_code.co_filename[len(top) :], code.co_filename[len(top) :]
        if pair not in seen:
            seen.add(pair)
            file.write(json.dumps([*pair, code.co_qualname]) + "\n")

    threading.setprofile(profile)
    sys.setprofile(profile)


def child() -> None:
    """Of every process that a walk starts: `sitecustomize` calls it."""
    walk = WALKS[os.environ["WALK"]]
    top, out = os.environ["WALK_PACKAGE"] + "/graphopt/", os.environ["WALK_OUT"]
    if os.environ.get("WALK_PARENT") is None:
        os.environ["WALK_PARENT"] = "1"
        follow(walk, top, out, inside=False)
    elif walk.begin == "Inductor.price":
        follow(walk, top, out, inside=True)


def trace(name: str, package: Path) -> list[tuple[str, str, str]]:
    """Calls between files of the package, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text("import walks\nwalks.child()\n")
        out, here = Path(folder) / "calls", Path(__file__).resolve().parent
        out.touch()
        variables = {
            **os.environ, "WALK": name, "TMPDIR": folder, "WALK_PACKAGE": str(package), "WALK_OUT": str(out),
            "PYTHONPATH": os.pathsep.join([folder, str(package), str(here)]),
        }  # fmt: skip
        code = f"import walks; walks.WALKS[{name!r}].solve()"
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stderr[-3000:]}")
        return [tuple(json.loads(line)) for line in out.read_text().splitlines()]


def floors(package: Path) -> Mapping[str, int]:
    """File -> how many files stand below it in the longest chain of imports, those inside functions too."""
    top = package / "graphopt"
    files = {path.relative_to(top).as_posix() for path in top.rglob("*.py")}
    imports = nx.DiGraph()
    imports.add_nodes_from(files)
    for file in files:
        for node in ast.walk(ast.parse((top / file).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("graphopt."):
                parts = node.module.split(".")[1:]
                named = ["/".join([*parts, alias.name]) + ".py" for alias in node.names] + ["/".join(parts) + ".py"]
                imports.add_edges_from((file, other) for other in named if other in files and other != file)
    groups = nx.condensation(imports)
    height: dict[int, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        height[group] = 1 + max((height[other] for other in groups[group]), default=0)
    return {file: height[group] for file, group in groups.graph["mapping"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=Path(__file__).resolve().parents[1], help="another checkout")
    parser.add_argument("walks", nargs="*", metavar="WALK", help=f"of {', '.join(WALKS)}; all where none is named")
    given = parser.parse_args()
    floor, passed = floors(given.package.resolve()), dict[str, dict[str, str]]()
    print("| walk | files | folders | rooms | climbs | returns |\n|---|---|---|---|---|---|")
    for name in given.walks or WALKS:
        calls, first = trace(name, given.package.resolve()), dict[str, str]()
        for _, called, function in calls:
            first.setdefault(called, function)
        rooms = [room for room, _ in groupby(file.split("/")[0] for file in first)]
        climbs = {(by, called) for by, called, _ in calls if by and floor[called] > floor[by]}
        counts = len(first), len({str(Path(file).parent) for file in first}), len(set(rooms)), len(climbs)
        print(f"| {WALKS[name].title} | {' | '.join(map(str, counts))} | {len(rooms) - len(set(rooms))} |", flush=True)
        passed[name] = first
    for name, first in passed.items():
        print(f"\n{WALKS[name].title}:\n" + "\n".join(f"  {file}: {function}" for file, function in first.items()))


if __name__ == "__main__":
    main()
