"""Speed of rewriting: TASO's search and equality saturation.

`python benchmarks/rewriting.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: the median of
several repetitions, with the smallest and the largest, in CPU time of one thread. Rules as in task=rewrite, cost=flops,
the first device of machine=gpu2, what an op costs remembered. BERT is the published graph of 81 ops, ResNeXt-50 has 86.
`.../over_taso` is the ratio to TASO's own program in C++ on a CPU, measured once on a machine of the same kind.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import geometric_mean
from typing import Any

from lines import say

from graphopt.core.utils import registry
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.models import MODELS, build_model
from graphopt.rewrite.program_cost import Flops
from graphopt.rewrite.rewrite_problem import Point, RewriteProblem, Rewriter, Rewriting
from graphopt.rewrite.rules.matching import Match
from graphopt.rewrite.rules.steps import RewriteStep, free
from graphopt.run.config.construct import construct

TASO_GRAPHS_PER_SECOND = {"bert": 39.0, "resnext50": 61.0}
TASO_CANDIDATES_PER_SECOND = 1300.0
SIZES: dict[str, dict[str, Any]] = {"bert": {"dangling": True}}
QUICK = ("bert", "squeezenet", "vgg19")


class Counted(RewriteProblem):
    """Counts programs that are expanded."""

    expanded = 0

    def expand(self, point: Point, extra: Sequence[Match] = ()) -> list[RewriteStep]:
        self.expanded += 1
        return super().expand(point, extra)


class Ready:
    """The task and the cost model, made once."""

    def __init__(self) -> None:
        machine = construct(registry.option("machine", "gpu2"), "machine")
        around = {"machine": machine}
        self.task = construct(registry.option("task", "rewrite"), "task", around)
        self.cost = construct(registry.option("cost", "flops"), "cost", around)
        assert isinstance(self.task, Rewriting) and isinstance(self.cost, Flops)

    def problem(self, program: Program, evals: int = 10**9) -> Counted:
        return Counted(graph_of(program, name="benchmark"), self.task, self.cost, evals=evals)


def algorithm(name: str, **changes: object) -> Rewriter:
    made = construct(registry.option("algo", name) | changes, "algo")
    assert isinstance(made, Rewriter)
    return made


def seconds_of(algo: Rewriter, problem: RewriteProblem) -> float:
    start = time.thread_time()
    with suppress(OutOfBudget):
        algo.solve(problem)
    return time.thread_time() - start


def expansion(ready: Ready, model: str, pops: int, repeats: int) -> None:
    """Programs expanded and candidates priced per second of TASO's search."""
    graphs, candidates = [], []
    for _ in range(repeats):
        problem = ready.problem(build_model(model, SIZES.get(model, {})))
        seconds = seconds_of(algorithm("taso", pops=pops), problem)
        graphs.append(problem.expanded / seconds)
        candidates.append(problem.evals / seconds)
    say(f"taso_graphs_per_second/{model}", graphs, "1/s")
    say(f"candidates_per_second/{model}", candidates, "1/s")
    say(f"taso_graphs_per_second/{model}/over_taso", [g / TASO_GRAPHS_PER_SECOND[model] for g in graphs], "ratio")
    say(f"candidates_per_second/{model}/over_taso", [c / TASO_CANDIDATES_PER_SECOND for c in candidates], "ratio")


def large() -> Program:
    """An encoder of 34 blocks."""
    return build_model("bert", {"blocks": 34})


def enumeration(ready: Ready, repeats: int) -> None:
    """All candidates of a graph of about 500 ops: matching anew, pricing, telling apart."""
    seconds, counts = [], []
    for _ in range(repeats):
        problem = ready.problem(large())
        assert problem.term_price is not None
        start = time.thread_time()
        found = list(problem.neighbours.around(problem.initial.outputs, free).steps())
        seconds.append(time.thread_time() - start)
        counts.append(len(found))
    say("enumerate_seconds/500_ops", seconds, "s", {"ops": large().num_ops(), "candidates": counts[0]})


def against_tensat(ready: Ready, models: Sequence[str], pops: int) -> None:
    """Time of TASO's search over that of equality saturation, extraction included, and what both reach."""
    ratios = []
    for model in models:
        program = build_model(model, SIZES.get(model, {}))
        problems = {name: ready.problem(program) for name in ("taso", "tensat")}
        seconds = {"taso": seconds_of(algorithm("taso", pops=pops), problems["taso"]),
                   "tensat": seconds_of(algorithm("tensat"), problems["tensat"])}  # fmt: skip
        ratios.append(seconds["taso"] / seconds["tensat"])
        reached = {f"{name}_cost": problem.best_cost for name, problem in problems.items()}
        spent = {f"{name}_seconds": round(value, 3) for name, value in seconds.items()}
        say(f"taso_over_tensat_seconds/{model}", [ratios[-1]], "ratio", reached | spent)
    say("taso_over_tensat_seconds", [geometric_mean(ratios)], "ratio", {"models": len(ratios), "pops": pops})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, three models")
    quick = parser.parse_args().quick
    ready, repeats = Ready(), 3 if quick else 9
    for model in TASO_GRAPHS_PER_SECOND:
        expansion(ready, model, 30 if quick else 100, repeats)
    enumeration(ready, repeats)
    against_tensat(ready, QUICK if quick else tuple(MODELS), 100 if quick else 1000)


if __name__ == "__main__":
    main()
