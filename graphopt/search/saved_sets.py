"""The best saved sets of a step: bytes at the worst moment against the time of ops that are computed twice.

A budget b in [0, 1] stands for the limit `floor + b (top - floor)` on the peak. top is the peak of the first start, the
set that a compiler saves when only time counts. floor is the lowest peak found. The answer is the set with the least
work done twice within the limit. All budgets are answered from one front, so the peak never rises when the budget
falls.

Some starts cut the forward pass into segments. At a cut all values that later forward ops read are saved. Each segment
is computed again from the cut before it. Cuts by a threshold on the bytes of a segment, as Chen et al. place them
(Training Deep Nets with Sublinear Memory Cost, 2016, section 4.1, algorithm 3); at the cheapest frontier since the last
cut, which their algorithm leaves to the user.

`segments` is the search over these cuts, then over single saves taken back or moved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, I64, Bool
from graphopt.core.plan import Decision
from graphopt.core.split import Footprint, Step, complete, evaluate, footprint, runs_twice, step_of
from graphopt.core.utils.compiled import njit
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.tasks.recomputing import Recompute
from graphopt.search.walks.moves import scores

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
    """[count] bytes of results that are made up to a place and read after it."""
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


RUNGS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75)  # budgets whose limits are searched for
FLOOR_WEIGHT = 0.02  # of work done twice, as a share of all, beside the peak, while the lowest peak is looked for
EXCESS_WEIGHT = 10.0  # of bytes over the limit, as a share of top, beside work done twice
HOT = 0.003  # first temperature of walks; it falls to 0
REACH = 12  # how many ops away a swap may go


@dataclass
class Front:
    """Saved sets of which none is lower in the peak and no slower than another, by ascending peak."""

    step: Step
    work: F64
    sets: list[tuple[Footprint, Bool]] = field(default_factory=list)

    def add(self, saved: Bool) -> Footprint:
        kept = complete(self.step, saved)
        new = footprint(self.step, kept, self.work)
        self.insert(new, kept)
        return new

    def insert(self, new: Footprint, kept: Bool) -> None:
        if not any(old.peak <= new.peak and old.again <= new.again for old, _ in self.sets):
            self.sets = [pair for pair in self.sets if not (new.peak <= pair[0].peak and new.again <= pair[0].again)]
            self.sets.append((new, kept))
            self.sets.sort(key=lambda pair: pair[0].peak)

    def within(self, limit: float) -> tuple[Footprint, Bool]:
        """The fastest set with at most so many bytes at its peak; the lowest peak where there is none."""
        fitting = [pair for pair in self.sets if pair[0].peak <= limit]
        return fitting[-1] if fitting else self.sets[0]


def search(step: Step, work: F64, starts: Sequence[Bool], *, evals: int, seed: int) -> tuple[Front, int]:
    """The front from these starts, and the first start's peak (top). evals: prices to compute in the walks."""
    front = Front(step, work)
    top = front.add(starts[0]).peak
    for start in (*starts[1:], *segmented(step)):
        front.add(start)
    each = max(1, evals // (len(RUNGS) + 2))
    _walk(front, front.sets[0][1], 0.0, top, 2 * each, seed)
    for place, rung in enumerate(RUNGS):
        floor = front.sets[0][0].peak
        limit = floor + rung * (top - floor)
        _walk(front, front.within(limit)[1], limit, top, each, seed + 1 + place)
    return front, top


def choose(front: Front, top: int, budget: float) -> tuple[Footprint, Bool]:
    """The set that a budget stands for."""
    floor = front.sets[0][0].peak
    return front.within(floor + budget * (top - floor))


def _walk(front: Front, start: Bool, limit: float, top: int, evals: int, seed: int) -> None:
    """Adds the sets of a walk to the front: within a limit the least work, or (limit 0) the lowest peak."""
    share = front.work / max(float(front.work.sum()), 1e-30)
    rng = np.random.default_rng(seed)
    front.add(_walked(front.step, share, start.copy(), float(limit), float(max(1, top)), evals, rng))


@njit(cache=True, nogil=True)
def _energy(step, saved, share, limit, top):  # type: ignore[no-untyped-def]
    forward, backward, _, again = evaluate(step, saved, share)
    peak = float(max(forward, backward))
    if limit == 0.0:
        return peak / top + FLOOR_WEIGHT * again
    return EXCESS_WEIGHT * max(0.0, peak - limit) / top + again


@njit(cache=True, nogil=True)
def _walked(
    step: Step, share: F64, saved: Bool, limit: float, top: float, evals: int, rng: np.random.Generator
) -> Bool:
    """[N] the best set of an annealed walk that flips an op, or swaps a saved op with one nearby."""
    ops = np.flatnonzero(step.choice)
    best = saved.copy()
    if len(ops) == 0:
        return best
    here = lowest = _energy(step, saved, share, limit, top)
    for i in range(evals):
        first = ops[_drawn(rng, saved, ops)]
        second = ops[min(max(np.searchsorted(ops, first) + rng.integers(-REACH, REACH + 1), 0), len(ops) - 1)]
        swaps = second != first and saved[first] != saved[second] and rng.random() < 0.5
        saved[first] = not saved[first]
        if swaps:
            saved[second] = not saved[second]
        there = _energy(step, saved, share, limit, top)
        if there <= here or rng.random() < np.exp((here - there) / (HOT * (1.0 - i / evals))):
            here = there
            if here < lowest:
                lowest = here
                best[:] = saved
        else:
            saved[first] = not saved[first]
            if swaps:
                saved[second] = not saved[second]
    return best


@njit(cache=True, nogil=True)
def _drawn(rng, saved, ops):  # type: ignore[no-untyped-def]
    """A place in `ops`: of two thirds of the draws one that is saved, if fifty tries find one."""
    place = rng.integers(0, len(ops))
    if rng.random() < 2 / 3:
        for _ in range(50):
            if saved[ops[place]]:
                break
            place = rng.integers(0, len(ops))
    return place


BATCH = 8  # neighbours that are priced together


class SegmentSearch(Optimizer):
    """For steps with a head `recompute`: all sets of `segmented`, then the best of some neighbours of the best so far,
    until the budget ends. A neighbour flips an op, or swaps a saved op with one nearby."""

    accepts = (Recompute,)

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        best, lowest = problem.initial, float(scores(problem, problem.initial[None])[0])
        starts = (saved[:, None].astype(np.int16) for saved in segmented(step_of(problem.graph)))
        for start in starts:
            score = float(scores(problem, start[None])[0])
            if score < lowest:
                best, lowest = start, score
        ops = np.flatnonzero(problem.task.mask(problem.graph)[:, 0])
        while problem.open and len(ops):
            near = np.stack([_neighbour(problem.rng, best, ops) for _ in range(BATCH)])
            found = scores(problem, near[: problem.remaining])
            if len(found) and found.min() <= lowest:
                best, lowest = near[int(found.argmin())], float(found.min())


def _neighbour(rng: np.random.Generator, decision: Decision, ops: NDArray[np.int64]) -> Decision:
    near = decision.copy()
    saved = np.flatnonzero(decision[ops, 0])
    place = int(rng.choice(saved)) if len(saved) and rng.random() < 2 / 3 else int(rng.integers(len(ops)))
    other = int(np.clip(place + rng.integers(-REACH, REACH + 1), 0, len(ops) - 1))
    near[ops[place], 0] ^= 1
    if decision[ops[place], 0] != decision[ops[other], 0] and rng.random() < 0.5:
        near[ops[other], 0] ^= 1
    return near
