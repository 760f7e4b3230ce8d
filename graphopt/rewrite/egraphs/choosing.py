"""From classes of equal terms to an e-graph that can be extracted from, and from what was chosen back to a program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.egraph import Egraph, Enode, egraph_of
from graphopt.rewrite.ir.terms import Outputs
from graphopt.rewrite.rules.steps import Price


@dataclass(frozen=True, eq=False)
class Choice:
    """An e-graph of classes; `nodes` says which node of the classes stands at which place of it."""

    egraph: Egraph
    nodes: tuple[int, ...]

    def by_class(self, chosen: Mapping[int, int]) -> dict[int, int]:
        """What was chosen there, node by class, said of classes here."""
        return {int(self.egraph.class_names[at]): self.nodes[node] for at, node in chosen.items()}


def choice_of(classes: TermClasses, outputs: Sequence[int], price: Price) -> Choice:
    """Every node with its price alone; what depends on weights alone is free."""
    found = _usable(classes)
    made = [Enode(classes.operation[node].name, classes.children[node], at, price(node)) for node, at in found]
    roots = dict.fromkeys(map(classes.find, outputs))
    return Choice(egraph_of(made, roots), tuple(node for node, _ in found))


def _usable(classes: TermClasses) -> list[tuple[int, int]]:
    """(node, class), without nodes that need a class of which nothing is left."""
    found = [(node, at) for at, members in classes.members.items() for node in members]
    while True:
        there = {at for _, at in found}
        usable = [(node, at) for node, at in found if there.issuperset(classes.children[node])]
        if len(usable) == len(found):
            return found
        found = usable


def program_from(classes: TermClasses, outputs: Sequence[int], chosen: Mapping[int, int]) -> tuple[Outputs, list[int]]:
    """(outputs of the program, nodes that it is made of). chosen: node by class, for all classes that are needed."""
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
