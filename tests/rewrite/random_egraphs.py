"""Tiny random e-graphs with cycles and sharing, and their least costs by trying every choice."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from graphopt.rewrite.extraction.greedy import Egraph


class Enode(NamedTuple):
    """An operator of a class, applied to classes. A node of infinite cost may not be chosen."""

    op: str
    children: Sequence[Any]
    eclass: Any
    cost: float


class Priced(NamedTuple):
    """An e-graph, and what each of its nodes costs."""

    egraph: Egraph
    cost: list[float]


def egraph_of(nodes: Sequence[Enode], roots: Sequence[Any]) -> Priced:
    """Classes are numbered in the order of their first nodes."""
    number = {name: at for at, name in enumerate(dict.fromkeys(node.eclass for node in nodes))}
    members: list[list[int]] = [[] for _ in number]
    for at, node in enumerate(nodes):
        if node.cost < math.inf:
            members[number[node.eclass]].append(at)
    children: list[Sequence[int]] = [[number[child] for child in node.children] for node in nodes]
    wanted = list(dict.fromkeys(number[root] for root in roots))
    made = Egraph(members, children, [number[node.eclass] for node in nodes], wanted)
    return Priced(made, [node.cost for node in nodes])


def costs_of(made: Priced, choice: Mapping[int, int]) -> "Least":
    """Checks a choice and says what it costs; knows nothing of how it was found. Raises ValueError: a needed class has
    no node, or one of another class; the choice has a cycle."""
    egraph, cost = made
    tree: dict[int, float] = {}  # of finished classes, children first
    waiting: set[int] = set()
    stack = list(egraph.roots)
    while stack:
        eclass = stack[-1]
        if choice.get(eclass) not in egraph.nodes[eclass]:
            raise ValueError(f"class {eclass} is needed, but no node of it is chosen")
        children = egraph.children[choice[eclass]]
        missing = [child for child in children if child not in tree]
        if eclass in tree or not missing:
            stack.pop()
            waiting.discard(eclass)
            tree[eclass] = cost[choice[eclass]] + sum(tree[child] for child in children)
        elif eclass in waiting:
            raise ValueError(f"the choice has a cycle through class {eclass}")
        else:
            waiting.add(eclass)
            stack += missing
    return Least(sum(tree[root] for root in egraph.roots), math.fsum(cost[choice[eclass]] for eclass in tree))


COSTS = ([1, 2, 3], [0, 1, 2], [0, 0, 1, 5], [1.5, 0.1, 2.7, 0.3])
MOST_CHOICES = 2000


class Least(NamedTuple):
    """Of all choices; infinite without any."""

    tree: float
    dag: float


def random_nodes(draw: random.Random, classes: int) -> list[Enode]:
    """Some classes have leaves, some only cycles; a node in thirty may not be chosen."""
    costs = draw.choice(COSTS)
    nodes = []
    for eclass in range(classes):
        for _ in range(draw.choice([1, 1, 2, 3])):
            children = [draw.randrange(classes) for _ in range(draw.choice([0, 1, 1, 2, 2, 3]))]
            nodes.append(Enode("f", children, eclass, draw.choice(costs) if draw.random() > 1 / 30 else math.inf))
        if draw.random() < 0.35:
            nodes.append(Enode("leaf", [], eclass, draw.choice([1, 4, 8])))
    draw.shuffle(nodes)
    return nodes


def covering_nodes(draw: random.Random, classes: int) -> list[Enode]:
    """Cheap nodes of a few classes need dear leaves, which they can share, or each other."""
    leaves = [Enode("leaf", [], name, draw.choice([3, 4, 5, 8])) for name in range(classes, classes + 4)]
    nodes = []
    for eclass in range(classes):
        for _ in range(draw.choice([2, 3])):
            children = draw.sample(range(classes, classes + 4), draw.choice([1, 1, 2]))
            children += [draw.randrange(classes)] * (draw.random() < 0.4)
            nodes.append(Enode("f", children[draw.random() < 0.3 :], eclass, draw.choice([0, 0, 1])))
    return [*nodes, *leaves]


def layered_nodes(draw: random.Random, classes: int) -> list[Enode]:
    """No cycles, and much that is free, as in e-graphs of programs: a class needs earlier ones alone."""
    nodes = []
    for eclass in range(classes):
        for _ in range(draw.choice([1, 1, 1, 2, 2, 3])):
            children = draw.sample(range(eclass), min(eclass, draw.choice([1, 1, 1, 2, 2, 3])))
            nodes.append(Enode("f", children, eclass, draw.choice([0, 0, 0, 1, 1, 2, 3, 5, 8])))
    return nodes


def random_egraph(seed: int) -> Priced:
    """Of one of three kinds, with few enough choices to try them all."""
    draw = random.Random(seed)
    while True:
        kind = draw.choice([random_nodes, covering_nodes, layered_nodes])
        if kind is layered_nodes:
            classes = draw.randint(3, 12)
            roots = list(range(classes - draw.choice([1, 1, 2]), classes))
        else:
            classes = draw.randint(4, 6) if kind is covering_nodes else draw.randint(2, 8)
            roots = draw.sample(range(classes), classes - 1 if kind is covering_nodes else draw.choice([1, 1, 2]))
        made = egraph_of(kind(draw, classes), roots)
        if math.prod(max(len(nodes), 1) for nodes in made.egraph.nodes) <= MOST_CHOICES:
            return made


def least(made: Priced) -> Least:
    """By trying every choice."""
    result, nodes = Least(math.inf, math.inf), made.egraph.nodes
    for choice in itertools.product(*(members or [-1] for members in nodes)):
        try:
            costs = costs_of(made, dict(enumerate(choice)))
        except ValueError:
            continue
        result = Least(min(result.tree, costs.tree), min(result.dag, costs.dag))
    return result


def side_by_side(several: Sequence[Priced]) -> Priced:
    """One e-graph of which a program has a program of each: least costs add up."""
    nodes, roots = list[Enode](), list[str]()
    for number, (egraph, cost) in enumerate(several):
        for node, eclass in enumerate(egraph.class_of):
            children = [f"{number}.{child}" for child in egraph.children[node]]
            nodes.append(Enode("f", children, f"{number}.{eclass}", cost[node]))
        roots += [f"{number}.{root}" for root in egraph.roots]
    return egraph_of([*nodes, Enode("all", roots, "all", 0.0)], ["all"])
