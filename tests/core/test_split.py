"""Training steps split in two: bytes, order and what is saved, against an independent account in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import random_step

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.split import complete, footprint, is_step, step_of

SEEDS = st.integers(0, 10**6)


def reference(graph: Graph, saved: set[int], fleeting: set[int]) -> tuple[int, int, int, set[int]]:
    """(forward peak, backward peak, saved bytes, ops that run twice), from the definitions, with sets of names.
    fleeting: ops whose results take no memory unless they are saved or returned."""
    about, n = graph.attributes, graph.num_ops
    of: dict[int, int | None] = {t: None for t in range(graph.num_tensors) if graph.producer[t] < 0}
    for op in range(n):
        (made,) = graph.results(op)
        of[made] = made if about[op]["alias"][0] < 0 else of[int(graph.operands(op)[about[op]["alias"][0]])]
    sources = [{int(graph.producer[t]) for t in graph.operands(op) if graph.producer[t] >= 0} for op in range(n)]
    stays = lambda op: about[op]["fixed"] or (op in saved and about[op]["alias"][0] < 0)  # noqa: E731

    def reach(start: set[int], stop: set[int]) -> set[int]:
        found, ahead = set(), list(start)
        while ahead:
            op = ahead.pop()
            if op not in found and op not in stop:
                found.add(op)
                ahead += sources[op]
        return found

    late = {op for op in range(n) if about[op]["late"]}
    returned = {op for op in range(n) if about[op]["returned"][0] & 2}
    early = {op for op in range(n) if op not in late}
    second = reach(late | returned, {op for op in early if stays(op)})
    needed = {s for op in second for s in sources[op]} | returned
    kept = {op for op in early if stays(op) and op in needed}
    first = reach(kept | {op for op in early if about[op]["returned"][0] & 1 or about[op]["fixed"]}, set())
    order = []
    for op in sorted(second):
        if op >= min(late, default=n):
            pulled = reach({op}, (set(range(n)) - second) | set(order))
            order += sorted(pulled)
    touched = lambda op: {of[int(t)] for t in (*graph.operands(op), *graph.results(op))} - {None}  # noqa: E731
    used = {s for op in order for s in touched(op)}
    stores = {of[next(iter(graph.results(op)))] for op in kept} & used
    forward = {of[next(iter(graph.results(op)))] for op in early if about[op]["returned"][0] & 1} - {None}
    backward = {of[next(iter(graph.results(op)))] for op in returned} - {None}

    def run(ops: list[int], live: set[int], keep: set[int]) -> int:
        within = {s for s in of.values() if s is not None and graph.producer[s] in fleeting} - live - keep
        held = lambda live: sum(int(graph.tensor_bytes[s]) for s in live - within)  # noqa: E731
        most, reads = held(live), dict[int, set[int | None]]()
        for op in ops:  # what a result is computed from that is never written is read with it
            parts = [reads[int(graph.producer[s])] for s in touched(op) & within if graph.producer[s] in reads]
            reads[op] = touched(op).union(*parts)
        for i, op in enumerate(ops):
            live = live | {of[t] for t in graph.results(op) if about[op]["alias"][0] < 0}
            most = max(most, held(live))
            later = {s for after in ops[i + 1 :] for s in reads[after]}
            live = {s for s in live if s in keep or s in later or s not in reads[op]}
        return most

    return (run(sorted(first), set(), stores | forward), run(order, stores | forward, forward | backward),
            sum(int(graph.tensor_bytes[s]) for s in stores), first & second)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_bytes_are_those_of_the_definitions(seed: int) -> None:
    graph = random_step(seed)
    rng, step = np.random.default_rng(seed), step_of(graph)
    work = rng.random(graph.num_ops)
    for share, fleets in ((0.0, 0.0), (0.3, 0.0), (1.0, 0.0), (0.0, 0.5), (0.3, 0.5), (0.3, 1.0)):
        saved, fleeting = (rng.random(graph.num_ops) < of for of in (share, fleets))
        found = footprint(step._replace(fleeting=np.repeat(fleeting, np.diff(step.made_ptr))), saved, work)
        sets = (set(np.flatnonzero(ops).tolist()) for ops in (saved, fleeting))
        forward, backward, handed, twice = reference(graph, *sets)
        assert (found.forward, found.backward, found.saved) == (forward, backward, handed)
        assert found.again == pytest.approx(sum(work[op] for op in sorted(twice)))


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_what_is_saved_indeed_is_a_fixed_point_and_costs_the_same(seed: int) -> None:
    graph = random_step(seed)
    step, saved = step_of(graph), np.random.default_rng(seed).random(graph.num_ops) < 0.5
    kept, work = complete(step, saved), np.ones(graph.num_ops)
    assert np.array_equal(complete(step, kept), kept)
    assert footprint(step, kept, work) == footprint(step, saved, work)


def test_other_graphs_are_no_steps() -> None:
    b = GraphBuilder("plain")
    x, y = b.tensor((4,)), b.tensor((4,))
    b.op("relu", [x], [y])
    b.output(y)
    graph = b.build()
    assert not is_step(graph)
    with pytest.raises(GraphError, match="is no training step; capture one with dataset=training_step"):
        step_of(graph)


def test_views_of_operands_that_are_not_there_are_refused() -> None:
    b = GraphBuilder("wrong")
    x, y = b.tensor((4,)), b.tensor((4,))
    about = {"late": False, "alias": [3], "returned": [0], "fixed": False, "saved": False}
    b.op("relu", [x], [y], attributes=about)
    with pytest.raises(GraphError, match="is a view of an operand it lacks"):
        step_of(b.build())
