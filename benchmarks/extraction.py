"""Extraction from large e-graphs: `python benchmarks/extraction.py [--quick] [--seconds N]`, JSON lines.

E-graphs are what saturation makes of the models of dataset=rewrite_models with merges in two or three rounds, acyclic,
priced by the roofline of machine=gpu2's first device. `extraction/<e-graph>/<method>_gap`: cost over the best bound
that any method proved, less one; with cost and bound in microseconds and CPU seconds. Methods: `greedy`, `exact`.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lines import say
from rewriting import Ready

from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.saturation import ExplorationLimits, Explorer
from graphopt.rewrite.extraction.extracting import exact_dag, greedy_dag
from graphopt.rewrite.extraction.greedy import price
from graphopt.rewrite.models import build_model
from graphopt.rewrite.search.tensat import PricedTerms, priced

EGRAPHS: dict[str, tuple[str, dict[str, Any], int, int, float]] = {  # model, sizes, nodes, rounds of merges, rest
    "bert_15k": ("bert", {"dangling": True}, 20_000, 2, 0.5),
    "bert_50k": ("bert", {"dangling": True}, 50_000, 3, 1000.0),
    "nasrnn_20k": ("nasrnn", {}, 20_000, 2, 0.5),
    "inception_9k": ("inception_v3", {}, 20_000, 2, 0.5),
    "squeezenet_20k": ("squeezenet", {}, 20_000, 2, 1000.0),
}
QUICK = ("inception_9k",)


@dataclass
class Found:
    cost: float
    bound: float
    cpu: float


def made(ready: Ready, name: str) -> PricedTerms:
    model, sizes, nodes, rounds, matches = EGRAPHS[name]
    problem = ready.problem(build_model(model, sizes))
    assert problem.term_price is not None
    classes = TermClasses(problem.terms)
    classes.add_program(problem.initial.outputs)
    rules = problem.task.rules
    limits = ExplorationLimits(nodes, 15, 1e9, rounds, matches, 5)
    Explorer(rules, classes).run(limits)
    return priced(classes, problem.initial.outputs, problem.term_price)


def exact(made: PricedTerms, seconds: float) -> tuple[float, float]:
    found = exact_dag(made.egraph, made.cost, seconds)
    return found.cost, found.bound


def greedy(made: PricedTerms, seconds: float) -> tuple[float, float]:
    return price(made.egraph, greedy_dag(made.egraph, made.cost), made.cost), 0.0


def timed(method: Callable[[PricedTerms, float], tuple[float, float]], egraph: PricedTerms, seconds: float) -> Found:
    start = time.process_time()
    cost, bound = method(egraph, seconds)
    return Found(cost, bound, time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one e-graph, 10 seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a method and e-graph; default: 60")
    parser.add_argument("--only", choices=EGRAPHS, help="one e-graph")
    args = parser.parse_args()
    ready, seconds = Ready(), 10.0 if args.quick else args.seconds
    methods = (greedy, exact)
    for name in QUICK if args.quick else [args.only] if args.only else EGRAPHS:
        egraph = made(ready, name)
        found = {method.__name__: timed(method, egraph, seconds) for method in methods}
        bound = max(one.bound for one in found.values())
        for method, one in found.items():
            details = {"microseconds": one.cost * 1e6, "bound": one.bound * 1e6, "cpu_seconds": one.cpu}
            sizes = {"nodes": len(egraph.cost), "classes": egraph.egraph.classes}
            say(f"extraction/{name}/{method}_gap", [one.cost / bound - 1], "ratio", details | sizes)


if __name__ == "__main__":
    main()
