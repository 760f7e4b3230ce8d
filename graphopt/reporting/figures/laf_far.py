"""`laf_far`: what LAF needs far from its training data, and what its network is worth there."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.reach import ALL, BEST_UNLEARNED, reaches, trace_of
from graphopt.reporting.tables.read_rows import Entry, collect
from graphopt.reporting.tables.statistics import tabled

OWN = "laf_refit"  # chosen on validation graphs
OFF = f"{OWN}_untrained"
UNIFORM = "laf_unguided"
MOMENTS = (20, 200, 1000)  # evaluations


def figures_in(place: Path, rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """`laf_share_of_best_unlearned/far`: evaluations until as good as the best method without parameters of a graph
    ends, over those which that needs; solves that never are count with the whole budget, and `/missed` is their share.
    `laf_share_of_uniform/far`: the same of uniform picks. Further names after them: of other learned methods.
    `laf_over_motif_scan/far/EVALS` and `network_on_over_off/far/EVALS`: % faster, paired by graph and seed."""
    entries = [entry for entry in collect(place).entries if dict(entry.setting)["split"] == "test"]
    found = [*_shares("laf_share_of_best_unlearned/far", entries, BEST_UNLEARNED)]
    found += _shares("laf_share_of_uniform/far", entries, UNIFORM)
    for name, other in (("laf_over_motif_scan/far", "motif_scan"), ("network_on_over_off/far", OFF)):
        found += _faster(name, entries, other)
    return found


def _shares(name: str, entries: Sequence[Entry], over: str) -> Iterator[Figure]:
    learned = {entry.method for entry in entries if entry.learned}
    for line in reaches(entries, over):
        if line.graph == ALL and line.method in learned:
            mine = name if line.method == OWN else f"{name}/{line.method}"
            yield figure(mine, line.share)
            missed = line.missed / line.solves
            yield Figure(f"{mine}/missed", missed, missed, missed)


def _faster(name: str, entries: Sequence[Entry], other: str) -> Iterator[Figure]:
    theirs = {(entry.graph, entry.seed): entry for entry in entries if entry.method == other}
    pairs = [(e, theirs[e.graph, e.seed]) for e in entries if e.method == OWN and (e.graph, e.seed) in theirs]
    for evals in MOMENTS if pairs else ():
        ratio = tabled(
            (one.graph, one.sampled, one.seed, math.log(_best(two, evals) / _best(one, evals))) for one, two in pairs
        ).interval.exp()
        low, mean, high = (100 * (end - 1) for end in (ratio.low, ratio.mean, ratio.high))
        yield Figure(f"{name}/{evals}", mean, *((low, high) if ratio.known else (mean, mean)))


def _best(entry: Entry, evals: int) -> float:
    """The best price after so many evaluations."""
    return min(cost for used, cost in trace_of(entry) if used <= evals)
