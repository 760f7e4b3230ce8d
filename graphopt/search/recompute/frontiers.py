"""Saved sets by cutting the forward pass into segments: at a cut all values that later forward ops read are saved, and
each segment is computed again from the cut before it.

Cuts by a threshold on the bytes of a segment, as Chen et al. place them (Training Deep Nets with Sublinear Memory Cost,
2016, section 4.1, algorithm 3); at the cheapest frontier since the last cut, which their algorithm leaves to the user.
"""

from collections.abc import Iterator

import numpy as np

from graphopt.core.graph import I64, Bool
from graphopt.core.split import Step, runs_twice

THRESHOLDS = 40  # tried, from the largest op's bytes to all of them, evenly in the logarithm


def segmented(step: Step) -> Iterator[Bool]:
    """Saved sets [N] of all thresholds, without repetition."""
    ops = np.flatnonzero(runs_twice(step, np.zeros(len(step.late), np.bool_)))
    if not len(ops):
        return
    made, last = _made_and_last(step, ops)
    width, seen = _widths(made, last, len(ops)), set[bytes]()
    sizes = np.bincount(made[:, 0], made[:, 2], len(ops))
    low, high = max(1.0, sizes.max()), max(2.0, sizes.sum())
    for threshold in np.geomspace(min(low, high), high, THRESHOLDS):
        saved = _saved(step, made, last, _cuts(sizes, width, threshold))
        if saved.tobytes() not in seen:
            seen.add(saved.tobytes())
            yield saved


def _made_and_last(step: Step, ops: I64) -> tuple[I64, I64]:
    """(place in `ops` that makes it, op, bytes) of every storage [S', 3], and the place that reads it last [S']."""
    place = np.full(len(step.late), -1)
    place[ops] = np.arange(len(ops))
    made = [
        (place[op], op, step.num_bytes[s], s) for op in ops for s in range(step.made_ptr[op], step.made_ptr[op + 1])
    ]
    table = np.array(made, np.int64).reshape(-1, 4)
    last = np.full(len(step.num_bytes), -1, np.int64)
    for op in ops:
        last[step.read[step.read_ptr[op] : step.read_ptr[op + 1]]] = place[op]
    return table[:, :3], last[table[:, 3]]


def _widths(made: I64, last: I64, count: int) -> I64:
    """[count] bytes of what is made up to a place and read after it."""
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, made[:, 0], made[:, 2])
    np.add.at(change, last, -made[:, 2])
    return np.cumsum(change)[:count]


def _cuts(sizes: np.ndarray, width: I64, threshold: float) -> list[int]:  # type: ignore[type-arg]
    cuts, begin, held = list[int](), 0, 0.0
    for place in range(len(sizes)):
        held += sizes[place]
        if held >= threshold and place > begin:
            window = width[begin : place + 1]
            cut = begin + int(np.flatnonzero(window == window.min())[-1])
            cuts.append(cut)
            held, begin = float(sizes[cut + 1 : place + 1].sum()), cut + 1
    return cuts


def _saved(step: Step, made: I64, last: I64, cuts: list[int]) -> Bool:
    saved = np.zeros(len(step.late), np.bool_)
    for cut in cuts:
        saved[made[(made[:, 0] <= cut) & (last > cut), 1]] = True
    return saved & step.choice
