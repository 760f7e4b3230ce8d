"""What is worth trying at once on a graph that a compiler was asked about: sets of ops, stored or inlined together.

Shape legend: N ops.
"""

from typing import NamedTuple

import numpy as np

from graphopt.core.fusible import fusible
from graphopt.core.graph import F64, I64, Bool, Graph

STORE, INLINE = 0, 1  # choices of a binary fusion head


class AtOnce(NamedTuple):
    """ops: [K] that are given one choice."""

    name: str
    ops: I64
    choice: int


def rules(graph: Graph, free: Bool) -> list[AtOnce]:
    """Those that name any op, the best known first. free: [N] ops with a choice.

    `wide_R`: store what a reader of at least R times its elements would compute again for each of these (a scale per
    row, read by every element of the row). `readers_R`: store what at least R ops read. `costly`: store what is
    expensive and read more than once. `once`: inline what one op reads, `cheap`: what several read and costs little.
    """
    f = fusible(graph)
    widest, readers, expensive = widest_reader(graph), reader_counts(graph), f.op["expensive"]
    wanted = [
        AtOnce(f"wide_{ratio}", np.flatnonzero(free & (widest >= ratio * f.op["numel"])), STORE) for ratio in (8, 2)
    ]
    wanted += [AtOnce(f"readers_{least}", np.flatnonzero(free & (readers >= least)), STORE) for least in (2, 3)]
    wanted += [
        AtOnce("costly", np.flatnonzero(free & expensive & (readers >= 2)), STORE),
        AtOnce("once", np.flatnonzero(free & (readers == 1)), INLINE),
        AtOnce("cheap", np.flatnonzero(free & ~expensive & (readers >= 2)), INLINE),
    ]
    return [rule for rule in wanted if len(rule.ops)]


def reader_counts(graph: Graph) -> I64:
    """[N] distinct ops that read any result, through views."""
    op = fusible(graph).op
    counts: I64 = (op["out_end"] - op["out_start"]).astype(np.int64)
    return counts


def widest_reader(graph: Graph) -> F64:
    """[N] elements over which the largest reader runs, 0 without a reader."""
    f = fusible(graph)
    source = np.repeat(np.arange(graph.num_ops), reader_counts(graph))
    out = np.zeros(graph.num_ops)
    np.maximum.at(out, source, np.maximum(f.op["space"], f.op["numel"])[f.out_op])
    return out
