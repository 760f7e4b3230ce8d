"""How well `cost=learned`, as it ships, ranks measured plans of programs that it was not fitted to.

`python benchmarks/rank_plans.py results/hardware_later/measured.jsonl` runs nothing. It reads measured codes and their
times over the default's. Plans near the default ask for little, or for knobs alone. Graphs count whose times have at
least 3 % between their quartiles. 95 % intervals are over graphs. again: the same of a second measurement as noisy.
`--left-out 8` ranks by costs that are fitted to the same table, an eighth of its graphs left out at a time.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from graphopt.hardware.code_time import (
    LEAST_LEARNED,
    SHIPPED,
    CodeTime,
    MeasuredGraph,
    distinct,
    fitted,
    measured_again,
    measured_graphs,
    spearman,
    weights_named,
)
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.report.tables.statistics import bootstrap

SPREAD, LEAST = 0.03, 8  # between quartiles; plans of a graph


def ranked(graph: MeasuredGraph, time: CodeTime, *, near: bool) -> tuple[int, float, float] | None:
    """(plans, correlation with predicted times, with a second measurement); None of graphs that do not count."""
    plans = [plan for plan in distinct(graph) if graph.near(plan) or not near]
    ratio, noise = (np.array([getattr(plan, field) for plan in plans]) for field in ("ratio", "noise"))
    if len(plans) < LEAST or np.quantile(ratio, 0.75) < (1 + SPREAD) * np.quantile(ratio, 0.25):
        return None
    predicted = np.array([time.of(plan.features) for plan in plans])
    return len(plans), spearman(predicted, ratio), measured_again(spearman, ratio, noise)


def models(graphs: Sequence[MeasuredGraph], parts: int) -> list[CodeTime]:
    """Of each graph the costs that rank its plans."""
    if not parts:
        return [weights_named(SHIPPED).model] * len(graphs)
    known = [fitted([g for i, g in enumerate(graphs) if i % parts != part and len(distinct(g)) >= LEAST_LEARNED])
             for part in range(parts)]  # fmt: skip
    return [known[i % parts] for i in range(len(graphs))]


def table(path: Path, environment: str | None, parts: int) -> Iterator[str]:
    graphs = [*measured_graphs(PriceTable(path), environment).values()]
    yield "| plans | graphs | plans of a graph | Spearman | again |"
    yield "|---|---:|---:|---:|---:|"
    times = models(graphs, parts)
    for name, near in (("all", False), ("near the default", True)):
        every = [ranked(graph, time, near=near) for graph, time in zip(graphs, times, strict=True)]
        found = [one for one in every if one is not None]
        count, value, again = np.array(found).T
        mean = bootstrap(value[:, None], range(len(value)))
        yield (f"| {name} | {len(found)} | {count.mean():.0f} | {mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}] "
               f"| {again.mean():.2f} |")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="TABLE", help="measured.jsonl of a study")
    parser.add_argument("--environment", metavar="TEXT", help="of the table's lines; else that with most of them")
    parser.add_argument("--left-out", type=int, default=0, metavar="PARTS", help="fit to the others of the table")
    args = parser.parse_args()
    print("\n".join(table(args.table, args.environment, args.left_out)))
