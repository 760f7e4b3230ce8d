"""How well `cost=generated_code` ranks measured plans.

`python benchmarks/rank_plans.py results/hardware_unseen/measured.jsonl` runs nothing. It reads measured codes and their
times over the default's. Plans near the default ask for little, or for knobs alone. Graphs count whose times have at
least 3 % between their quartiles. 95 % intervals are over graphs. again: the same of a second measurement as noisy.
Then the plan of each graph with the least predicted time is taken where a gain is predicted that reaches a gate.
Then plans are measured until nine tenths of the best logarithmic gain are there: in the order of predicted times, and
as `Beliefs` want them, four at a time after the first, since these learn from what was measured.
`--second TEXT` compares with the times of the same codes in another environment of the table, which another process
measured.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphopt.costs.loops.preset import load
from graphopt.hardware.code_time import CodeTime
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.hardware.requests import CompilerRequest
from graphopt.hardware.search.beliefs import Beliefs, Traits, traits
from graphopt.report.calibration import MeasuredGraph, distinct, measured_again, measured_graphs, spearman
from graphopt.report.tables.statistics import bootstrap

SPREAD, LEAST, LEAST_TWICE, LEAST_ORDERED = 0.03, 8, 5, 12  # between quartiles; plans of a graph
GAIN, MOST, TOGETHER = 0.02, 0.9, 4  # of the best plan, its share that counts as reached, plans measured at once
GATES = (0.0, 0.04, 0.08, 0.12)


def ranked(graph: MeasuredGraph, time: CodeTime, *, near: bool) -> tuple[int, float, float] | None:
    """(plans, correlation with predicted times, with a second measurement); None of graphs that do not count."""
    plans = [plan for plan in distinct(graph) if graph.near(plan) or not near]
    ratio, noise = (np.array([getattr(plan, field) for plan in plans]) for field in ("ratio", "noise"))
    if len(plans) < LEAST or np.quantile(ratio, 0.75) < (1 + SPREAD) * np.quantile(ratio, 0.25):
        return None
    predicted = np.array([time.of(plan.features) for plan in plans])
    return len(plans), spearman(predicted, ratio), measured_again(spearman, ratio, noise)


def gated(graphs: Sequence[MeasuredGraph], time: CodeTime) -> Iterator[str]:
    """What picks by predicted times alone gain, by the gain that must be predicted."""
    yield "| gate | picks | of the best logarithmic gain | slower than 1.02 | slowest |"
    yield "|---|---:|---:|---:|---:|"
    best, picks = 0.0, list[tuple[float, float]]()  # (predicted, measured) ratio to the default
    for graph in graphs:
        if plans := distinct(graph):
            predicted = [time.ratio(plan.features, graph.default.features) for plan in plans]
            picks.append((min(predicted), plans[int(np.argmin(predicted))].ratio))
            best -= min(0.0, *(float(np.log(plan.ratio)) for plan in plans))
    for gate in GATES:
        taken = np.array([measured for ratio, measured in picks if ratio <= 1 - gate])
        yield (f"| {gate:.0%} | {len(taken)} of {len(picks)} | {-np.log(taken).sum() / best:.0%} | "
               f"{int((taken > 1.02).sum())} | {taken.max():.2f} |")  # fmt: skip


def reached(graph: MeasuredGraph, time: CodeTime) -> tuple[int, int] | None:
    """(in the order of predicted times, by beliefs) how many of its plans are measured until nine tenths of the best
    logarithmic gain are there; None of graphs that have too few plans or gain."""
    plans = distinct(graph)
    measured = np.log([plan.ratio for plan in plans])
    if len(plans) < LEAST_ORDERED or measured.min() > np.log(1 - GAIN):
        return None
    kinds = [time.parts(plan.features) for plan in plans]
    default = time.parts(graph.default.features)
    predicted = np.log([sum(of.values()) / sum(default.values()) for of in kinds])
    traits = [traits_of(plan.request, of, default) for plan, of in zip(plans, kinds)]
    known, beliefs, left = np.argsort(predicted, kind="stable"), Beliefs(), [*range(len(plans))]
    learned, taken = list[int](), [int(known[0])]
    while taken:
        for i in taken:
            beliefs.learn(traits[i], predicted[i], measured[i])
            left.remove(i)
        learned += taken
        taken = [left[i] for i in beliefs.most_promising([traits[i] for i in left], predicted[left], TOGETHER)]
    first, second = (1 + int(np.argmax(measured[order] <= MOST * measured.min())) for order in (known, learned))
    return first, second


def traits_of(request: CompilerRequest, kinds: Mapping[str, float], default: Mapping[str, float]) -> Traits:
    """As of `compiler_policy`."""
    asked = [*request.requests]
    knobs = [(name, choice) for name, choice in request.knobs.items() if choice]
    return traits(asked, knobs, kinds, default)


def ordered(graphs: Sequence[MeasuredGraph], time: CodeTime) -> Iterator[str]:
    found = np.log([pair for graph in graphs if (pair := reached(graph, time)) is not None])
    ratio = bootstrap((found[:, 1] - found[:, 0])[:, None], range(len(found)))
    first, second = np.exp(found.mean(0))
    yield (f"nine tenths of the best gain: {first:.1f} evaluations in the order of predicted times, {second:.1f} by "
           f"beliefs, {np.exp(ratio.mean):.2f} [{np.exp(ratio.low):.2f}, {np.exp(ratio.high):.2f}] of them "
           f"({len(found)} graphs)")  # fmt: skip


def twice(prices: PriceTable, graphs: Sequence[MeasuredGraph], second: str) -> Iterator[str]:
    """How two processes agree about the same codes."""
    apart, ranks = list[float](), list[float]()
    for graph in graphs:
        again = {plan.digest: prices.find(plan.digest, second, graph.default.digest) for plan in distinct(graph)}
        pairs = np.array([(plan.ratio, line["ratio"]) for plan in distinct(graph)
                          if (line := again[plan.digest]) is not None and "ratio" in line])  # fmt: skip
        if len(pairs):
            apart += [*np.abs(np.log(pairs[:, 0] / pairs[:, 1]))]
            if (
                len(pairs) >= LEAST_TWICE
                and np.quantile(pairs, 0.75, 0)[0] > (1 + SPREAD) * np.quantile(pairs, 0.25, 0)[0]
            ):
                ranks.append(spearman(pairs[:, 0], pairs[:, 1]))
    yield (f"{len(apart)} plans twice: {np.mean(np.array(apart) > 0.1):.0%} differ by more than 10 %, the median by "
           f"{np.median(apart):.1%}; ranks agree by {np.mean(ranks):.2f} ({len(ranks)} graphs)")  # fmt: skip


def table(path: Path, environment: str | None, preset: str, second: str | None) -> Iterator[str]:
    prices = PriceTable(path)
    graphs = [*measured_graphs(prices, environment).values()]
    yield "| plans | graphs | plans of a graph | Spearman | again |"
    yield "|---|---:|---:|---:|---:|"
    time = CodeTime.of_preset(load(preset))
    for name, near in (("all", False), ("near the default", True)):
        every = [ranked(graph, time, near=near) for graph in graphs]
        found = [one for one in every if one is not None]
        count, value, again = np.array(found).T
        mean = bootstrap(value[:, None], range(len(value)))
        yield (f"| {name} | {len(found)} | {count.mean():.0f} | {mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}] "
               f"| {again.mean():.2f} |")  # fmt: skip
    yield ""
    yield from gated(graphs, time)
    yield from ("", *ordered(graphs, time))
    if second is not None:
        yield from ("", *twice(prices, graphs, second))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="TABLE", help="measured.jsonl of a study")
    parser.add_argument("--environment", metavar="TEXT", help="of the table's lines; else that with most of them")
    parser.add_argument("--preset", default="epyc_zen5_avx512_torch213", help="of the machine; default: %(default)s")
    parser.add_argument("--second", metavar="TEXT", help="environment of a second measurement")
    args = parser.parse_args()
    print("\n".join(table(args.table, args.environment, args.preset, args.second)))
