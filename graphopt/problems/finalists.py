"""`Finalists`: the few lowest measured prices of a solve. Which of them is lowest is partly luck, so they are priced
once more before one is the answer."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.problems.cost_model import CostModel, better
from graphopt.problems.solution import Solution

KEPT = 6


class Candidate(NamedTuple):
    cost: float  # by the search's cost model
    state: Any  # what a problem takes as its best


class Finalists:
    """The few (`kept`) lowest prices of different decisions: of those of one price, which for measured ones means one
    code, the first. solution: of the problem's best."""

    def __init__(self, solution: Callable[[], Solution], kept: int = KEPT) -> None:
        self._solution, self._kept = solution, kept
        self._of: dict[int, Candidate] = {}  # digest ->
        self._pinned: dict[int, Candidate] = {}

    def offer(self, cost: NDArray[np.float64], digests: Sequence[int], state_at: Callable[[int], Any]) -> None:
        """Keeps what belongs to them."""
        _, first = np.unique(cost, return_index=True)  # the lowest first
        for i in first[: self._kept].tolist():
            known = self._of.get(digests[i])
            if np.isfinite(cost[i]) and (known is None or cost[i] < known.cost) and not self._has(float(cost[i])):
                self._of[digests[i]] = Candidate(float(cost[i]), state_at(i))
        lowest = sorted(self._of.items(), key=lambda item: item[1].cost)[: self._kept]
        self._of = dict(lowest)

    def pin(self, cost: float, digest: int, state: Any) -> None:
        """Keeps a decision whatever else is found."""
        self._pinned[digest] = Candidate(cost, state)

    def _has(self, cost: float) -> bool:
        return any(candidate.cost == cost for candidate in self._of.values())

    @property
    def states(self) -> list[Any]:
        """Theirs: pinned ones, then the lowest first."""
        return [candidate.state for candidate in self.candidates]

    @property
    def candidates(self) -> list[Candidate]:
        """In the order of `states`."""
        return list((self._pinned | self._of).values())

    def winner(self, judge: CostModel, take: Callable[[Any], None]) -> Candidate | None:
        """What the judge prices lowest, None where none is shown to be better than the default."""
        found, lowest = None, float("inf")
        for candidate in self.candidates:
            take(candidate.state)
            solution = self._solution()
            price = solution.price(judge)
            if price.cost < lowest and better(price, solution.default_price(judge)):
                found, lowest = candidate, price.cost
        return found
