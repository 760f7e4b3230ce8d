"""Classes of alike ops against labels that are nested tuples, and the scan over them against one without."""

import numpy as np
import pytest
from cells import fusion
from fusion_graphs import XLA, Net, random_graph

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.operators import OPERATOR_ID
from graphopt.core.plan import Plans
from graphopt.graphs.layered import layered_graph
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import solve
from graphopt.search.fusion.motif_scan import MotifScan
from graphopt.search.walks.classes import alike


def slow_classes(graph: Graph, free: np.ndarray, hops: int) -> set[tuple[int, ...]]:
    """Colours as what they stand for: own facts, and the sorted colours of inputs and of readers."""

    def colour(op: int, left: int) -> object:
        results = graph.results(op)
        own = (int(graph.kind[op]), max([1, *graph.numel[results].tolist()]), bool(free[op]))
        if not left:
            return own
        ends = [column[ptr[op] : ptr[op + 1]].tolist() for ptr, column in (graph.predecessors, graph.successors)]
        return (colour(op, left - 1), *(tuple(sorted((colour(o, left - 1) for o in e), key=repr)) for e in ends))

    found: dict[str, list[int]] = {}
    for op in np.flatnonzero(free).tolist():
        found.setdefault(repr(colour(op, hops)), []).append(op)
    return {tuple(ops) for ops in found.values() if len(ops) > 1}


@pytest.mark.parametrize("seed", range(8))
def test_classes_are_weisfeiler_lehman_colours(seed: int) -> None:
    graph = layered_graph(60, np.random.default_rng(seed), f"g{seed}") if seed % 2 else random_graph(seed, 40)
    free = np.random.default_rng(seed).random(graph.num_ops) < 0.8
    seen: set[tuple[int, ...]] = set()
    for hops, classes in enumerate(alike(graph, free, 3)):
        sizes = [len(ops) for ops in classes]
        found = {tuple(ops.tolist()) for ops in classes}
        assert sizes == sorted(sizes, reverse=True) and not found & seen
        assert found | seen >= slow_classes(graph, free, hops) and found <= slow_classes(graph, free, hops)
        seen |= found


class Taste(CostModel):
    """Likes negations inline and everything else stored: what a kind of op wants it wants everywhere."""

    name, objective = "taste", "runtime"

    def price(self, plans: Plans) -> Prices:
        wish = np.where(plans.graph.kind == OPERATOR_ID["neg"], -1.0, 1.0)
        return Prices(1e3 + (plans.inline * wish).sum(1), np.zeros(len(plans)))


def best(optimizer: MotifScan, blocks: int, evals: int) -> float:
    net = Net("blocks", "blocks")
    x = net.tensor((4, 8))
    for i in range(blocks):
        x = net("relu", net("neg", x, name=f"neg{i}"), name=f"relu{i}")
    net.output(x)
    task = fusion(Machine(name="one", devices=(XLA,)))
    problem, _ = solve(optimizer, net.build(), task, Taste(), evals=evals)
    return problem.best_cost


def test_what_a_block_wants_is_found_once_for_all_blocks() -> None:
    blocks = 40
    optimum = 1e3 - blocks
    assert best(MotifScan(name="motif_scan", depth=3), blocks, 6) == optimum
    assert best(MotifScan(name="rules_scan", depth=None), blocks, 6) > optimum + 5
    assert best(MotifScan(name="motif_scan", depth=3), blocks, 3 * 2 * blocks) == optimum  # a scan ends it
