"""How well `cost=learned`, as it ships, ranks measured plans of programs that it was not fitted to.

`python benchmarks/rank_plans.py results/hardware_unseen/measured.jsonl` runs nothing. It reads measured codes and their
times over the default's. Plans near the default ask for little, or for knobs alone. Graphs count whose times have at
least 3 % between their quartiles. 95 % intervals are over graphs. again: the same of a second measurement as noisy.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphopt.hardware.code_time import (
    SHIPPED,
    MeasuredGraph,
    distinct,
    measured_again,
    measured_graphs,
    spearman,
    weights_named,
)
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.report.tables.statistics import bootstrap

SPREAD, LEAST = 0.03, 8  # between quartiles; plans of a graph


def ranked(graph: MeasuredGraph, *, near: bool) -> tuple[int, float, float] | None:
    """(plans, correlation with predicted times, with a second measurement); None of graphs that do not count."""
    plans = [plan for plan in distinct(graph) if graph.near(plan) or not near]
    ratio, noise = (np.array([getattr(plan, field) for plan in plans]) for field in ("ratio", "noise"))
    if len(plans) < LEAST or np.quantile(ratio, 0.75) < (1 + SPREAD) * np.quantile(ratio, 0.25):
        return None
    time = weights_named(SHIPPED).model
    predicted = np.array([time.of(plan.features) for plan in plans])
    return len(plans), spearman(predicted, ratio), measured_again(spearman, ratio, noise)


def table(path: Path) -> Iterator[str]:
    graphs = measured_graphs(PriceTable(path)).values()
    yield "| plans | graphs | plans of a graph | Spearman | again |"
    yield "|---|---:|---:|---:|---:|"
    for name, near in (("all", False), ("near the default", True)):
        found = [one for one in (ranked(graph, near=near) for graph in graphs) if one is not None]
        count, value, again = np.array(found).T
        mean = bootstrap(value[:, None], range(len(value)))
        yield (f"| {name} | {len(found)} | {count.mean():.0f} | {mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}] "
               f"| {again.mean():.2f} |")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="TABLE", help="measured.jsonl of a study")
    print("\n".join(table(parser.parse_args().table)))
