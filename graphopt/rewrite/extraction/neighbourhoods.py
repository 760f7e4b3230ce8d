"""A neighbourhood of a choice: some classes may choose anew, all other needed classes keep their nodes.

What is kept has been paid. Kept classes that do not stand above a free one may be used for nothing; those that stand
above one may not be used at all, so that no cycle comes about. What the kept classes use of the free ones are the roots
of the smaller search.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphopt.rewrite.extraction.greedy_extraction import Alternatives


@dataclass(frozen=True, eq=False)
class FreedClasses:
    """The smaller search, numbered for itself, and what its classes and nodes are."""

    open_to: Alternatives
    classes: list[int]
    nodes: list[int]
    freed: set[int]  # needed classes that may choose anew or go

    def taken_over(self, choice: Mapping[int, int], found: Mapping[int, int]) -> dict[int, int] | None:
        """The choice with what was found here in place of what was freed; None if a root was not found."""
        result = dict(choice)
        stack, seen = list(self.open_to.roots), set(self.open_to.roots)
        while stack:
            eclass = stack.pop()
            if eclass not in found:
                return None
            result[self.classes[eclass]] = self.nodes[found[eclass]]
            new = set(self.open_to.children[found[eclass]]) - seen
            seen |= new
            stack += new
        return result


def needed(open_to: Alternatives, choice: Mapping[int, int]) -> set[int]:
    """Classes that the roots need."""
    return closure(open_to.roots, lambda eclass: open_to.children[choice[eclass]])


def closure(start: Iterable[int], step: Callable[[int], Iterable[int]]) -> set[int]:
    """All that steps lead to, the start included."""
    found = set(start)
    stack = list(found)
    while stack:
        new = set(step(stack.pop())) - found
        found |= new
        stack += new
    return found


def neighbourhood(open_to: Alternatives, choice: Mapping[int, int], taken: set[int]) -> FreedClasses | None:
    """That in which the classes `taken` are free; None where none of them is needed.

    Free as well are classes that stand between free ones, and those that free ones alone use.
    """
    need = needed(open_to, choice)
    users: dict[int, list[int]] = {eclass: [] for eclass in need}
    for eclass in need:
        for child in open_to.children[choice[eclass]]:
            users[child].append(eclass)
    always = set(open_to.roots)
    free = taken & need
    below = closure(free, lambda eclass: open_to.children[choice[eclass]])
    free = below & closure(free, users.__getitem__)
    _own(free, below, users, always)
    above = closure(free, users.__getitem__) - free
    roots = [eclass for eclass in sorted(free) if eclass in always or not free.issuperset(users[eclass])]
    if not roots:
        return None
    return _numbered(open_to, (taken | free) - (need - free), need - free - above, roots, free)


def _own(free: set[int], below: set[int], users: Mapping[int, Sequence[int]], always: set[int]) -> None:
    """Adds classes below that free ones alone use."""
    stack = sorted(below - free - always)
    while stack:
        new = [eclass for eclass in stack if free.issuperset(users[eclass])]
        free.update(new)
        stack = [eclass for eclass in stack if eclass not in free] if new else []


def _numbered(open_to: Alternatives, classes: set[int], paid: set[int], roots: Sequence[int],
              freed: set[int]) -> FreedClasses:  # fmt: skip
    """Nodes whose other children are all paid."""
    order = sorted(classes)
    place = {eclass: number for number, eclass in enumerate(order)}
    choices: list[list[int]] = []
    nodes, class_of, children = list[int](), list[int](), list[Sequence[int]]()
    for eclass in order:
        first = len(nodes)
        for node in open_to.nodes[eclass]:
            unpaid = [child for child in open_to.children[node] if child not in paid]
            if all(child in place for child in unpaid):
                nodes.append(node)
                children.append(tuple([place[child] for child in unpaid]))
        class_of += [place[eclass]] * (len(nodes) - first)
        choices.append(list(range(first, len(nodes))))
    smaller = Alternatives(choices, children, class_of, [place[root] for root in roots])
    return FreedClasses(smaller, order, nodes, freed)
