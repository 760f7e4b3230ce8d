"""From classes of equal terms to an e-graph that can be extracted from, and from a choice back to a program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.extraction.greedy import Egraph
from graphopt.rewrite.ir.terms import Outputs
from graphopt.rewrite.rules.steps import Price


@dataclass(frozen=True, eq=False)
class Extractable:
    """The e-graph of classes of terms. cost: of each node. nodes: which term it is."""

    egraph: Egraph
    cost: list[float]
    nodes: list[int]

    def program(
        self, classes: TermClasses, outputs: Sequence[int], choice: Mapping[int, int]
    ) -> tuple[Outputs, list[int]]:
        """(outputs of the program, terms of the classes that it is made of). choice: node of each needed class."""
        chosen = {classes.find(self.nodes[node]): self.nodes[node] for node in choice.values()}
        made: dict[int, int] = {}
        nodes: list[int] = []
        stack = [classes.find(o) for o in outputs]
        while stack:
            at = stack[-1]
            if at in made:
                stack.pop()
                continue
            node = chosen[at]
            waiting = [child for child in classes.children[node] if child not in made]
            if waiting:
                stack += waiting
                continue
            made[at] = classes.terms.add(classes.operation[node], [made[child] for child in classes.children[node]])
            nodes.append(node)
        return tuple(made[classes.find(o)] for o in outputs), nodes


def extractable(classes: TermClasses, outputs: Sequence[int], price: Price) -> Extractable:
    """Every node with its price alone; what depends on weights alone is free."""
    found = _usable(classes)
    place: dict[int, int] = {}
    for _, at in found:
        place.setdefault(at, len(place))
    members: list[list[int]] = [[] for _ in place]
    for number, (_, at) in enumerate(found):
        members[place[at]].append(number)
    children: list[Sequence[int]] = [[place[child] for child in classes.children[node]] for node, _ in found]
    roots = list(dict.fromkeys(place[classes.find(output)] for output in outputs))
    egraph = Egraph(members, children, [place[at] for _, at in found], roots)
    return Extractable(egraph, [price(node) for node, _ in found], [node for node, _ in found])


def _usable(classes: TermClasses) -> list[tuple[int, int]]:
    """(node, class), without nodes that need a class of which nothing is left."""
    found = [(node, at) for at, members in classes.members.items() for node in members]
    while True:
        there = {at for _, at in found}
        usable = [(node, at) for node, at in found if there.issuperset(classes.children[node])]
        if len(usable) == len(found):
            return found
        found = usable
