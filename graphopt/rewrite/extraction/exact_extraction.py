"""The cheapest shared program, with a bound: reduce, take apart, eliminate, cut the linear program, then integers.

Choices that do not touch each other are parts. Narrow ones are solved by elimination (extraction_elimination.py), the
others one by one, the smallest first. The linear program of a part gets landmarks while they raise its bound; its
values guide the greedy search to better programs, and nodes that no better program can have go. What is left is solved
as an integer program, again and again while its answer has cycles.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.rewrite.extraction.cuts import violated
from graphopt.rewrite.extraction.elimination import cheapest_narrow
from graphopt.rewrite.extraction.greedy_extraction import Alternatives, cheapest_shared, cheapest_terms
from graphopt.rewrite.extraction.growth import Growth, Landmark
from graphopt.rewrite.extraction.ilp import IntegerProgram, Relaxed
from graphopt.rewrite.extraction.large_neighbourhoods import SIZES, LargeNeighbourhoods, price
from graphopt.rewrite.extraction.parts import Piece, apart, used
from graphopt.rewrite.extraction.reduce import Reduced, least, reduce

TOLERANCE = 1e-6  # relative: a cost so close to the bound is the least
LARGE_SHARE = 0.3  # of a large part's time that is spent on neighbourhoods first
LINEAR_SHARE = 0.65  # of a part's time, after which no round of the linear program begins
MANY, AGAIN_SHARE = 1500, 0.9  # nodes; where more are left open, neighbourhoods are searched again until then
STALLED, RISE = 6, 0.02  # in so many rounds of the linear program the bound must rise by this share of the gap
SMALL = 500  # nodes; parts of fewer are put together, and need no linear program first
SHRUNK = 0.8  # share of its nodes with which a part is reduced again
EQUAL = 1e-9  # relative: costs this close are the same
HINT = 1e-6  # share of its cost that a node keeps which the solver chooses, so that others tie no longer


@dataclass(frozen=True, eq=False)
class Found:
    """class -> node, for all classes that are needed and more; and what no program costs less than."""

    choice: dict[int, int]
    bound: float


def cheapest(open_to: Alternatives, cost: Sequence[float], seconds: float) -> Found:
    """The cheapest shared program that is found in time; none where a root has none. Reducing is not interrupted."""
    Growth(Alternatives([[0]], [()], [0], [0]), [1.0]).minimal(0, {0}, {})  # compiled before the clock runs
    return _cheapest(open_to, cost, seconds, math.inf, large=True)


def _smaller(open_to: Alternatives, cost: Sequence[float], seconds: float, most: float) -> tuple[dict[int, int], float]:
    """(choice, bound) of a neighbourhood."""
    found = _cheapest(open_to, cost, seconds, most, large=False)
    return found.choice, found.bound


def _cheapest(open_to: Alternatives, cost: Sequence[float], seconds: float, most: float, large: bool) -> Found:
    """most: programs of at least this cost are of no use. large: whether large parts are searched by neighbourhoods."""
    deadline = time.monotonic() + seconds
    reduced = reduce(open_to, cost)
    if reduced.open_to is None:
        return Found({}, 0.0)
    narrow = cheapest_narrow(reduced.open_to, cost)
    choice = cheapest_terms(open_to, cost)[0] | reduced.settled | narrow.choice
    bound = narrow.cost
    pieces = apart(narrow.left, used(open_to, reduced), SMALL)
    costs = [[cost[node] for node in piece.nodes] for piece in pieces]
    others = [least(piece.open_to, costs[number]) for number, piece in enumerate(pieces)]
    for number, piece in enumerate(pieces):
        left = max(deadline - time.monotonic(), 0.0)
        most_here = most - bound - sum(others[number + 1 :])
        part = Part(piece, costs[number], left / (len(pieces) - number), most_here)
        part.run(large)
        choice |= {open_to.class_of[piece.nodes[node]]: piece.nodes[node] for node in part.choice.values()}
        bound += part.bound
    return Found(choice, bound)


class Part:
    """The search in one part: what may still be chosen, the best choice so far, and the bound.

    most: programs of at least this cost are of no use. The bound is true of programs below it.
    """

    def __init__(self, piece: Piece, cost: Sequence[float], seconds: float, most: float = math.inf) -> None:
        open_to = piece.open_to
        self.whole, self.cost, self.most = open_to, cost, most
        self.start, self.seconds = time.monotonic(), seconds
        self.base = cheapest_terms(open_to, cost)[0]  # for classes that are no longer looked at
        self.choice, self.best = self.base, price(open_to, self.base, cost)
        self.bound, self.rises = least(open_to, cost), list[float]()
        self.landmarks = dict.fromkeys(piece.landmarks)
        self.gone: set[int] = set()  # nodes that no better program has
        self._look_at(open_to)
        self._try(cost)

    def run(self, large: bool) -> None:
        """Until the bound is proved to be reached, or time is up. large: with a search by neighbourhoods."""
        large = large and len(self.program.nodes) > SMALL and self.whole.classes > SIZES[0]
        if large:
            self._improve(LARGE_SHARE)
        if len(self.program.nodes) > SMALL:
            while self._open(LINEAR_SHARE) and self._linear():
                pass
        if self.gone:
            self._reduce()
        if large and len(self.program.nodes) > MANY:
            self._improve(AGAIN_SHARE)
        while self._open(1.0) and self._integer():
            pass

    def _improve(self, share: float) -> None:
        """The best choice by the search of its neighbourhoods."""
        search = LargeNeighbourhoods(self.whole, self.cost, self.choice, _smaller)
        search.run(self.start + share * self.seconds, self.bound * (1 + TOLERANCE))
        self.choice, self.best = search.choice, search.best

    @property
    def limit(self) -> float:
        """Only cheaper programs are looked for."""
        return min(self.best, self.most)

    def _look_at(self, open_to: Alternatives) -> None:
        self.open_to, self.growth = open_to, Growth(open_to, self.cost)
        self.program = IntegerProgram(open_to, self.cost, self.best)
        for landmark in self.landmarks:
            self.program.add(landmark)

    def _open(self, share: float) -> bool:
        return self.bound < self.limit * (1 - TOLERANCE) and self._left(share) > 0

    def _left(self, share: float) -> float:
        return self.start + share * self.seconds - time.monotonic()

    def _linear(self) -> bool:
        """A round of the linear program. False when another is not worth it."""
        answer = self.program.linear(self._left(1.0))
        self._learn(answer)
        if answer.value is None:
            return False
        if self._shrunk(answer):
            self._reduce()
            return True
        before = self.rises[-1 - STALLED] if len(self.rises) > STALLED else -math.inf
        return self.bound - before >= RISE * (self.limit - self.bound) and self._cut(answer.value)

    def _integer(self) -> bool:
        """A round of the integer program. False when another would find the same."""
        answer = self.program.integer(self._left(1.0))
        self._learn(answer)
        return answer.value is not None and self._cut(answer.value)

    def _learn(self, answer: Relaxed) -> None:
        """A program that may only be better than the best has no bound above it."""
        self.bound = min(max(self.bound, answer.bound), self.limit)
        self.rises.append(self.bound)
        if answer.value is not None:
            hints = answer.value
            self._try([c * max(1 - hints.get(node, 0.0), HINT) for node, c in enumerate(self.cost)])

    def _try(self, weights: Sequence[float]) -> None:
        """The greedy choice by other costs, at its true price."""
        choice = self.base | cheapest_shared(self.open_to, weights)
        if (cost := price(self.whole, choice, self.cost)) < self.best:
            self.choice, self.best = choice, cost

    def _cut(self, value: Mapping[int, float]) -> bool:
        """Adds the landmarks that an answer violates; whether there are new ones."""
        late = self._left(1.0)
        found = violated(self.open_to, self.growth, value, lambda: self._left(1.0) <= late / 2)
        new = [landmark for landmark in found if landmark not in self.landmarks]
        for landmark in new:
            self.landmarks[landmark] = None
            self.program.add(landmark)
        return bool(new)

    def _shrunk(self, answer: Relaxed) -> bool:
        """Notes nodes with which no program is better than the best; whether they are many."""
        self.gone |= {node for node, more in answer.more.items() if answer.bound + more >= self.limit * (1 - EQUAL)}
        return len(self.gone) >= (1 - SHRUNK) * len(self.program.nodes)

    def _reduce(self) -> None:
        nodes = [[node for node in choices if node not in self.gone] for choices in self.open_to.nodes]
        reduced = reduce(
            Alternatives(nodes, self.open_to.children, self.open_to.class_of, self.open_to.roots), self.cost
        )
        self.gone = set()
        if reduced.open_to is None:
            self.bound = self.limit
            return
        self.base = self.base | reduced.settled
        self.landmarks = dict.fromkeys(mark for mark in self.landmarks if self._lasts(mark, reduced))
        self._look_at(reduced.open_to)

    def _lasts(self, landmark: Landmark, reduced: Reduced) -> bool:
        """Classes that cost nothing are no longer in the program, nor classes that are out of reach."""
        assert reduced.open_to is not None
        classes = {landmark.eclass, *(self.open_to.class_of[node] for node in landmark.nodes)}
        return bool(reduced.open_to.nodes[landmark.eclass]) and classes.isdisjoint(reduced.settled)
