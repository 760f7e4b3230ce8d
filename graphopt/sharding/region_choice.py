"""Which region to solve next: of several that were grown, that of which most is expected for its work.

At the price of memory, labels cost as much over the bound as the parts of the equal model that they take cost over the
least of these parts: the gaps of variables and edges. No region can gain more than its own gap. A small network says
which share of it to expect, from columns that have no units (`graphopt.algos.contests.sharding_policy` trains it).

Shape legend: n variables of a region, V variables, S states, L links (two for an edge), F columns.
"""

from typing import NamedTuple

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.sharding.pairwise import Pairwise
from graphopt.sharding.region_elimination import Adjacency, Space
from graphopt.utils.compiled import njit

COLUMNS = ("gap", "none", "work", "variables", "priced", "inside", "largest", "idle", "failed", "density", "paid")
WORK_OF_A_VARIABLE = 20  # beside its states: what a region costs to solve, in states looked at
TINY = 1e-6  # of the mean gap of a variable: less is rounding


class Gaps(NamedTuple):
    """What the parts of an equal model cost at least. least: [2, V] of unaries, at the price of memory and at none.
    least_table: [L] of the table that a link leads over. mean: of the gaps of all variables, of one set of labels."""

    least: F64
    least_table: F64
    mean: float


def gaps_of(model: Pairwise, link: Adjacency, unary: F64, table: F64, paid: F64, labels: I64) -> Gaps:
    """unary [S], table: an equal model without impossible entries; paid [S]: what of unary is for memory."""
    starts = model.ptr[:-1]
    least = np.stack([np.minimum.reduceat(unary, starts), np.minimum.reduceat(unary - paid, starts)])
    of_edge = np.minimum.reduceat(table, model.table_ptr[:-1]) if len(table) else np.zeros(0)
    gaps = Gaps(least, of_edge[np.searchsorted(model.table_ptr, link.start, "right") - 1], 1.0)
    mean = _sum(gaps, model.ptr, unary, table, link, labels) / max(1, len(labels))
    return gaps._replace(mean=max(mean, TINY))


def no_gaps() -> Gaps:
    return Gaps(np.zeros((2, 0)), np.zeros(0), 1.0)


@njit(cache=True, nogil=True)
def _sum(gaps: Gaps, ptr: I64, unary: F64, table: F64, link: Adjacency, labels: I64) -> float:
    """Of the gaps of all variables, each with its edges."""
    total = 0.0
    for v in range(len(ptr) - 1):
        total += unary[ptr[v] + labels[v]] - gaps.least[0, v]
        for k in range(link.ptr[v], link.ptr[v + 1]):
            entry = link.start[k] + labels[v] * link.own_step[k] + labels[link.other[k]] * link.other_step[k]
            total += table[entry] - gaps.least_table[k]
    return total


@njit(cache=True, nogil=True)
def describe(n: int, w: Space, mode: int, gaps: Gaps, ptr: I64, unary: F64, paid: F64, table: F64, link: Adjacency,
             labels: I64, fails: I64, out: F64) -> tuple[float, float]:  # fmt: skip
    """Writes the columns [F] of the region in w; (its gap, its work). mode: 0: at the price of memory, 1: at none.
    fails: [V] of regions grown from a variable."""
    own, between, around, largest, pays, failed = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    idle, states, inner = 0, 0, 0
    for i in range(n):
        v = w.region[i]
        here = ptr[v] + labels[v]
        gap = unary[here] - (paid[here] if mode == 1 else 0.0) - gaps.least[mode, v]
        own += gap
        pays += paid[here]
        for k in range(link.ptr[v], link.ptr[v + 1]):
            entry = link.start[k] + labels[v] * link.own_step[k] + labels[link.other[k]] * link.other_step[k]
            part, j = table[entry] - gaps.least_table[k], w.place[link.other[k]]
            gap += part
            if j < 0:
                around += part
            elif j > i:
                between += part
                inner += 1
        largest = max(largest, gap)
        idle += gap <= TINY * gaps.mean
        states += ptr[v + 1] - ptr[v]
        failed += fails[v]
    least = TINY * gaps.mean
    total, work = own + between + around, float(states + WORK_OF_A_VARIABLE * n)
    out[0] = 0.25 * np.log(max(total, least) / gaps.mean)
    out[1] = 1.0 if total <= least else 0.0
    out[2] = 0.5 * (np.log(work) - 5.0)
    out[3] = 0.5 * np.log(n)
    out[4] = 1.0 if mode == 0 else 0.0
    out[5] = (own + between) / max(total, least)
    out[6] = min(1.0, largest / max(total, least))
    out[7] = idle / n
    out[8] = np.log(1.0 + failed / n)
    out[9] = inner / n
    out[10] = 0.25 * np.log(max(pays, least) / gaps.mean)
    return total, work
