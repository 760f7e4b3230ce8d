"""What an evaluation by TorchInductor takes on this machine: seconds by phase, duplicates, A/A spread.

`python benchmarks/hardware.py [--quick] [--programs FILE NAME ...]` draws decisions near the default of each program
(flips of one to three ops, knobs), lowers, compiles and times them one after another, then others like them through the
pipeline of `cost=inductor`, and prints JSON lines {"name", "value", "unit", "low", "high"}. A minute or two a program.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
from lines import say

from graphopt.core.compiler import compiler_choice, knobs
from graphopt.core.graph import Graph
from graphopt.core.utils.registry import option
from graphopt.hardware.costs.inductor import Inductor, target_of
from graphopt.hardware.measure.target import Failure, Timing
from graphopt.hardware.requests import CompilerRequest
from graphopt.run.config.construct import construct

OWN = ["norm_residual", "biased_attention", "edge_messages", "group_norm_block"]


def near_default(graph: Graph, rng: np.random.Generator) -> Iterator[CompilerRequest]:
    """Without end: flips of one to three ops, every fourth with a knob."""
    own = compiler_choice(graph)
    assert own is not None
    ops = np.flatnonzero(own.free)
    while True:
        picked = rng.choice(ops, min(len(ops), int(rng.integers(1, 4))), replace=False)
        flips = {graph.op_names[op]: "store" if own.inline[op] else "inline" for op in picked.tolist()}
        knob = knobs("equal")[int(rng.integers(len(knobs("equal"))))]
        yield CompilerRequest(flips, {knob.name: int(rng.integers(1, len(knob.values)))} if rng.random() < 0.25 else {})


def phases(cost: Inductor, graph: Graph, asked: list[CompilerRequest]) -> dict[str, list[float]]:
    """Seconds of each phase of each decision whose code is new, one after another; `duplicate`: 1 where known."""
    default, seen = cost.default(graph), set[str]()
    taken: dict[str, list[float]] = {"lower": [], "compile": [], "time": [], "duplicate": []}
    for one in asked:
        start = time.perf_counter()
        lowered = cost.builds.ask("lower", cost.lowered.request(graph, one)).result()
        taken["lower"].append(time.perf_counter() - start)
        if isinstance(lowered, Failure):
            continue
        taken["duplicate"].append(float(lowered["digest"] in seen or lowered["digest"] == default.digest))
        if not taken["duplicate"][-1]:
            seen.add(lowered["digest"])
            start = time.perf_counter()
            built = cost.builds.ask("compile", lowered).result()
            middle = time.perf_counter()
            if not isinstance(built, Failure):
                cost.service.compare(default, [target_of(lowered)])
                taken["compile"].append(middle - start)
                taken["time"].append(time.perf_counter() - middle)
    return taken


def pipeline(cost: Inductor, graph: Graph, asked: list[CompilerRequest]) -> tuple[float, list[Timing]]:
    """Evaluations a minute, duplicates included, and the timings."""
    start = time.perf_counter()
    found = cost.measured(graph, asked)
    return 60.0 * len(asked) / (time.perf_counter() - start), [one for one in found if isinstance(one, Timing)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one program, 8 decisions")
    parser.add_argument("--programs", nargs="+", metavar="FILE NAME", help="a file of yours and names in it")
    given = parser.parse_args()
    source, only = (
        (given.programs[0], given.programs[1:]) if given.programs else (None, OWN[:1] if given.quick else OWN)
    )
    count = 8 if given.quick else 32
    with tempfile.TemporaryDirectory() as place:
        data = construct({**option("dataset", "lowered"), "source": source, "only": only}, "dataset")
        cost = construct({**option("cost", "inductor"), "table": str(Path(place) / "measured.jsonl")}, "cost")
        for graph in data.graphs("test"):
            report(cost, graph, count)


def report(cost: Inductor, graph: Graph, count: int) -> None:
    drawn = near_default(graph, np.random.default_rng(0))
    taken = phases(cost, graph, [next(drawn) for _ in range(count)])
    rate, timings = pipeline(cost, graph, [next(drawn) for _ in range(count)])
    for phase in ("lower", "compile", "time"):
        say(f"hardware/{phase}_seconds/{graph.name}", taken[phase], "s")
    say(f"hardware/duplicates/{graph.name}", [float(np.mean(taken["duplicate"]))], "share")
    say(f"hardware/evaluations_per_minute/{graph.name}", [rate], "1/min")
    say(f"hardware/aa_spread/{graph.name}", [abs(asdict(one)["aa"] - 1.0) for one in timings], "ratio")
    say(f"hardware/noise/{graph.name}", [one.noise for one in timings], "ratio")
    say(f"hardware/default_milliseconds/{graph.name}", [1e3 * median(t.seconds / t.ratio for t in timings)], "ms")


if __name__ == "__main__":
    main()
