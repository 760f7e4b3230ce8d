"""Tiny random e-graphs with cycles and sharing, and their least costs by trying every choice."""

import itertools
import math
import random
from typing import NamedTuple

import numpy as np

from graphopt.rewrite.egraphs.egraph import Egraph, EgraphError, Enode, egraph_of
from graphopt.rewrite.extraction.extracting import costs_of

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


def random_egraph(seed: int) -> Egraph:
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
        if math.prod(len(made.nodes_of(eclass)) for eclass in range(made.classes)) <= MOST_CHOICES:
            return made


def least(egraph: Egraph) -> Least:
    """By trying every choice."""
    result = Least(math.inf, math.inf)
    for choice in itertools.product(*(egraph.nodes_of(eclass).tolist() for eclass in range(egraph.classes))):
        try:
            costs = costs_of(egraph, np.array(choice, np.int32))
        except EgraphError:
            continue
        result = Least(min(result.tree, costs.tree), min(result.dag, costs.dag))
    return result


def side_by_side(egraphs: list[Egraph]) -> Egraph:
    """One e-graph of which a program has a program of each: least costs add up."""
    nodes, roots = [], []
    for number, egraph in enumerate(egraphs):
        names = [f"{number}.{name}" for name in egraph.class_names]
        for node, op in enumerate(egraph.ops):
            children = [names[child] for child in egraph.children_of(node)]
            nodes.append(Enode(op, children, names[egraph.class_of[node]], float(egraph.cost[node])))
        roots += [names[root] for root in egraph.roots]
    return egraph_of([*nodes, Enode("all", roots, "all", 0.0)], ["all"])
