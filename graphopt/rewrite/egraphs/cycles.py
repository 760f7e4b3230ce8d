"""Keeping classes of equal terms free of cycles, as Tensat does (section 5.2), or not.

Below is what a class needs, whichever of its nodes is taken: sets of classes as bits of long integers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from graphopt.rewrite.egraphs.eclasses import TermClasses


class Searched:
    """What stands below classes as they are now."""

    def __init__(self, classes: TermClasses) -> None:
        self.classes = classes

    def reaches(self, starts: Sequence[int], goals: Sequence[int]) -> bool:
        """Whether one of the starts is one of the goals, or needs one."""
        find, children, wanted = self.classes.find, self.classes.children, set(goals)
        stack, found = list(starts), set(starts)
        while stack:
            at = stack.pop()
            if at in wanted:
                return True
            for node in self.classes.members[at]:
                for child in map(find, children[node]):
                    if child not in found:
                        found.add(child)
                        stack.append(child)
        return False


class Remembered:
    """What stood below every class when this was made."""

    def __init__(self, classes: TermClasses) -> None:
        self.below = descendants(classes)
        self.classes = classes
        self.bit = {at: 1 << place for place, at in enumerate(self.below)}

    def reaches(self, starts: Sequence[int], goals: Sequence[int]) -> bool:
        wanted = 0
        for goal in goals:
            wanted |= self.bit.get(goal, 0)
        return any((self.below.get(start, 0) | self.bit.get(start, 0)) & wanted for start in starts)


Below = Searched | Remembered


class CycleFilter(NamedTuple):
    """What is done about cycles. below: what each application of a round is checked against. cut: whether cycles that
    came about nevertheless are cut at the end of a round."""

    below: Callable[[TermClasses], Below]
    cut: bool


FILTERS = {
    "allowed": CycleFilter(Remembered, cut=False),
    "vanilla": CycleFilter(Searched, cut=True),
    "efficient": CycleFilter(Remembered, cut=True),
}


def descendants(classes: TermClasses) -> dict[int, int]:
    """Bits of all that each class needs; bit p is the p-th class of the result."""
    order = _postorder(classes)
    bit = {at: 1 << place for place, at in enumerate(order)}
    below = dict.fromkeys(order, 0)
    changed = True
    while changed:  # once more than needed without cycles
        changed = False
        for at in order:
            bits = below[at]
            for node in classes.members[at]:
                for child in classes.children[node]:
                    bits |= below[child] | bit[child]
            if bits != below[at]:
                below[at], changed = bits, True
    return below


def _postorder(classes: TermClasses) -> list[int]:
    """Classes after those they need, cycles aside."""
    order: dict[int, None] = {}
    for start in classes.members:
        stack, entered = [(start, False)], set[int]()
        while stack:
            at, done = stack.pop()
            if at in order or (at in entered and not done):
                continue
            if done:
                order[at] = None
                continue
            entered.add(at)
            stack.append((at, True))
            stack += [(child, False) for node in classes.members[at] for child in classes.children[node]]
    return list(order)


def forbid_cycles(classes: TermClasses) -> None:
    """Takes the newest node out of every cycle, until there is none; if it can, none that is the last of its class."""
    while cycles := _cycles(classes):
        for cycle in cycles:
            if all(node in classes.children for node in cycle):
                several = [node for node in cycle if len(classes.members[classes.find(node)]) > 1]
                classes.forbid(max(several or cycle, key=classes.born.__getitem__))


def _cycles(classes: TermClasses) -> list[list[int]]:
    """Nodes of some cycles, at least one if there are any: those that one depth-first search closes."""
    cycles, finished = list[list[int]](), set[int]()
    for start in classes.members:
        if start in finished:
            continue
        way: list[int] = []  # nodes from the start to here
        place = {start: 0}  # of classes on the way
        stack = [iter(_edges(classes, start))]
        at = [start]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                done = at.pop()
                finished.add(done)
                del place[done]
                if way:
                    way.pop()
                continue
            node, child = step
            if child in place:
                cycles.append([*way[place[child] :], node])
            elif child not in finished:
                way.append(node)
                place[child] = len(at)
                at.append(child)
                stack.append(iter(_edges(classes, child)))
    return cycles


def _edges(classes: TermClasses, at: int) -> list[tuple[int, int]]:
    """(node, class that it needs) of a class."""
    return [(node, child) for node in classes.members[at] for child in dict.fromkeys(classes.children[node])]
