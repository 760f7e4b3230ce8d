"""Makes a choice cheaper, again and again, where the whole search is too large: large neighbourhood search.

Classes around one that is drawn may choose anew, all others keep their nodes, and the cheapest such choice is found
exactly (Shaw, Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems, 1998). How many
are freed is drawn by what that has saved per second so far, as adaptive large neighbourhood search draws its moves
(Ropke and Pisinger, 2006). A start around which nothing cheaper was proved to be waits until something near changes.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from graphopt.rewrite.extraction.greedy_extraction import Alternatives
from graphopt.rewrite.extraction.needs import edges
from graphopt.rewrite.extraction.neighbourhoods import FreedClasses, needed, neighbourhood

SIZES = (80, 160, 320, 640)  # classes around a start
NEAR = 3  # of so many classes that were met first, one goes on
SECONDS = 2.0  # for one neighbourhood
MEMORY = 0.8  # share of what a size has saved per second that is remembered
LEAST = 0.1  # share of the mean rate that every size is drawn by
EQUAL = 1e-9  # relative: costs this close are the same

Solver = Callable[[Alternatives, Sequence[float], float, float], tuple[dict[int, int], float]]


class LargeNeighbourhoods:
    """The search from one choice. solve: (choice, bound) of a smaller search by its costs, with seconds, where programs
    of at least the last number are of no use."""

    def __init__(self, open_to: Alternatives, cost: Sequence[float], choice: Mapping[int, int], solve: Solver) -> None:
        self.open_to, self.cost, self.choice, self.solve = open_to, cost, dict(choice), solve
        self.best = price(open_to, self.choice, cost)
        self.draw = random.Random(0)
        self.near = _near(open_to)
        self.rate = dict.fromkeys(SIZES, self.best)  # saved per second
        self.proved: set[tuple[int, int]] = set()  # (start, size) around which nothing is cheaper

    def run(self, until: float, enough: float) -> None:
        """Until that time, a cost of `enough`, or nothing cheaper is around any start."""
        while self.best > enough and (left := until - time.monotonic()) > 0:
            start = self._start()
            if start is None:
                return
            self._look_around(*start, min(left, SECONDS))

    def _start(self) -> tuple[int, int] | None:
        """A class and how many to free around it."""
        waiting = sorted(needed(self.open_to, self.choice))
        open_ones = {size: [c for c in waiting if (c, size) not in self.proved] for size in SIZES}
        sizes = [size for size in SIZES if open_ones[size]]
        if not sizes:
            return None
        floor = LEAST * math.fsum(self.rate.values()) / len(SIZES)
        (size,) = self.draw.choices(sizes, [self.rate[size] + floor + 1e-300 for size in sizes])
        return self.draw.choice(open_ones[size]), size

    def _look_around(self, start: int, size: int, seconds: float) -> None:
        began, before = time.monotonic(), self.best
        taken = self._around(start, size)
        found = neighbourhood(self.open_to, self.choice, taken)
        if found is None or self._nothing(found, seconds):
            self.proved.add((start, size))
        if self.best < before:
            self.proved = {(c, s) for c, s in self.proved if c not in taken}
        spent = max(time.monotonic() - began, 1e-4)
        self.rate[size] = MEMORY * self.rate[size] + (1 - MEMORY) * (before - self.best) / spent

    def _nothing(self, found: FreedClasses, seconds: float) -> bool:
        """Takes what is cheaper there; whether it is proved that nothing is."""
        costs = [self.cost[node] for node in found.nodes]
        before = math.fsum(self.cost[self.choice[eclass]] for eclass in found.freed)
        choice, bound = self.solve(found.open_to, costs, seconds, before)
        other = found.taken_over(self.choice, choice)
        if other is not None and (cost := price(self.open_to, other, self.cost)) < self.best * (1 - EQUAL):
            self.choice, self.best = other, cost
            return False
        return bound >= before * (1 - EQUAL)

    def _around(self, start: int, size: int) -> set[int]:
        """So many classes, near ones first: parents and children of any node, whether chosen or not."""
        found, edge = {start}, [start]
        while edge and len(found) < size:
            near = self.near[edge.pop(self.draw.randrange(min(len(edge), NEAR)))]
            for other in self.draw.sample(near, len(near)):
                if other not in found and len(found) < size:
                    found.add(other)
                    edge.append(other)
        return found


def price(open_to: Alternatives, choice: Mapping[int, int], cost: Sequence[float]) -> float:
    """What the chosen nodes that the roots need cost together."""
    return math.fsum(cost[choice[eclass]] for eclass in needed(open_to, choice))


def _near(open_to: Alternatives) -> list[list[int]]:
    near: list[set[int]] = [set() for _ in open_to.nodes]
    for eclass, child in edges(open_to).tolist():
        near[eclass].add(child)
        near[child].add(eclass)
    return [sorted(others) for others in near]
