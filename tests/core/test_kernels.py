"""Which kernels store/inline requests make: by hand, against an independent reference, and as properties."""

import numpy as np
import pytest
from fusion_graphs import LIMITS, Net, random_graph, random_requests
from fusion_reference import Inline, Reference
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core import oracles
from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline, legalise, legalise_by_priority

LOOSE = KernelLimits(64, 16, 8)
SEEDS, STEPS = st.integers(0, 10**6), st.integers(1, 40)


def flags(graph: Graph, inline: Inline, views: bool = True) -> np.ndarray:
    """[N] bool of a set of ops, views included."""
    out = view_inline(graph) & views
    out[list(inline)] = True
    return out


def ops(graph: Graph, inline: np.ndarray) -> Inline:
    """The set of inlined ops, views left out."""
    return frozenset(np.flatnonzero(inline & ~view_inline(graph)).tolist())


def fused(graph: Graph, *names: str, limits: KernelLimits = LOOSE) -> set[str]:
    """Names of the ops that are inlined when these are asked for (all when none is named)."""
    request = np.array([[not names or name in names for name in graph.op_names]], np.uint8)
    return {graph.op_names[op] for op in ops(graph, legalise(graph, request, limits)[0])}


def chain() -> Graph:
    net = Net("chain")
    a = net("relu", net.tensor((4, 8)), name="a")
    return net.done(net("exp", net("neg", a, name="b"), name="c"))


def test_a_chain_becomes_one_kernel() -> None:
    graph = chain()
    assert fused(graph) == {"a", "b"}
    assert oracles.kernels(graph, legalise(graph, np.ones((1, 3), np.uint8), LOOSE)[0].tolist()) == {
        2: ([2, 1, 0], [0])
    }


@pytest.mark.parametrize(
    ("limits", "inlined"),
    [
        (KernelLimits(1, 16, 8), set()),
        (KernelLimits(2, 16, 8), {"b"}),
        (KernelLimits(3, 16, 8), {"a", "b"}),
        (KernelLimits(64, 1, 8), {"a", "b"}),
    ],
)
def test_the_cap_on_ops_counts_the_stored_one(limits: KernelLimits, inlined: set[str]) -> None:
    """From the outputs backwards: what is nearest to the result is taken first."""
    assert fused(chain(), limits=limits) == inlined


def test_a_refused_op_does_not_refuse_those_before_it() -> None:
    graph = chain()
    assert fused(graph, "a") == {"a"}  # into the kernel of b


def test_inputs_are_counted_as_distinct_tensors() -> None:
    net = Net("inputs")
    x, y, z = (net.tensor((4, 8)) for _ in range(3))
    a = net("add", x, y, name="a")
    b = net("add", a, x, name="b")  # with a inlined: x and y, two tensors
    graph = net.done(net("add", b, z, name="c"))
    assert fused(graph, limits=KernelLimits(64, 3, 8)) == {"a", "b"}
    assert fused(graph, limits=KernelLimits(64, 2, 8)) == {"a"}  # b would bring a, x, z


def test_an_op_is_duplicated_into_every_kernel_up_to_the_cap() -> None:
    net = Net("fan")
    a = net("relu", net.tensor((4, 8)), name="a")
    graph = net.done(*(net("neg", a, name=f"r{i}") for i in range(3)))
    assert fused(graph, limits=KernelLimits(64, 16, 3)) == {"a"}
    assert fused(graph, limits=KernelLimits(64, 16, 2)) == set()
    once = legalise(graph, np.full((1, 4), 2, np.uint8), LOOSE)[0]
    assert not once[0]  # INLINE_ONCE: not when that duplicates it


def test_a_diamond_in_one_kernel_is_no_duplication() -> None:
    net = Net("diamond")
    a = net("exp", net.tensor((4, 8)), name="a")
    graph = net.done(net("add", net("neg", a, name="b"), net("relu", a, name="c"), name="d"))
    assert fused(graph, limits=KernelLimits(64, 16, 1)) == {"a", "b", "c"}
    assert ops(graph, default_inline(graph, LOOSE)) == {0, 1, 2}


def test_the_default_never_duplicates_what_is_expensive() -> None:
    net = Net("expensive")
    x = net.tensor((4, 8))
    cheap, dear = net("relu", x, name="cheap"), net("exp", x, name="dear")
    graph = net.done(*(net("add", cheap, dear, name=f"r{i}") for i in range(2)))
    default = default_inline(graph, LOOSE)
    assert [graph.op_names[op] for op in ops(graph, default)] == ["cheap"]


def test_the_default_puts_nothing_in_front_of_a_contraction() -> None:
    net = Net("prologue")
    a = net("relu", net.tensor((4, 8)), name="a")
    m = net("matmul", a, net.tensor((8, 8), weight=True), name="m", flops=512)
    graph = net.done(net("relu", m, name="r"))
    assert fused(graph) == {"m", "a"}
    assert ops(graph, default_inline(graph, LOOSE)) == {1}


def softmax() -> Graph:
    net = Net("softmax")
    x = net.tensor((4, 8))
    m = net("amax", x, name="m", shape=(4, 1))
    e = net("exp", net("sub", x, m, name="s"), name="e")
    z = net("sum", e, name="z", shape=(4, 1))
    return net.done(net("div", e, z, name="o"))


def test_softmax_rows() -> None:
    """The sum goes into the division, which walks over its input; the maximum would be a second reduction."""
    graph = softmax()
    assert fused(graph) == {"s", "e", "z"}
    assert fused(graph, "m") == {"m"}  # s alone is elementwise over the maximum's input
    assert fused(graph, "m", "s") == {"m", "s"}  # both in the kernel of e
    assert fused(graph, "s", "e") == {"s", "e"}  # duplicated into z and o
    assert fused(graph, "m", "s", "e") == {"s", "e"}  # the maximum would be computed twice


def test_a_reduction_is_not_inlined_where_the_space_differs() -> None:
    net = Net("spaces")
    z = net("sum", net.tensor((4, 8)), name="z", shape=(4, 1))
    graph = net.done(net("add", z, net.tensor((4, 64)), name="wide", shape=(4, 64)))
    assert not fusible(graph).op["can_inline"][0]


@pytest.mark.parametrize(
    ("reader", "allowed"), [("relu", True), ("sum", False), ("matmul", False), ("concat", False), ("opaque", False)]
)
def test_who_takes_a_contraction(reader: str, allowed: bool) -> None:
    net = Net("epilogue")
    m = net("matmul", net.tensor((4, 8)), net.tensor((8, 8), weight=True), name="m", flops=512)
    graph = net.done(net(reader, m, name="r", flops=512))
    assert fused(graph) == ({"m"} if allowed else set())


def test_two_contractions_never_share_a_kernel_nor_is_one_computed_twice() -> None:
    net = Net("two")
    x, w = net.tensor((4, 8)), net.tensor((8, 8), weight=True)
    m1, m2 = (net("matmul", x, w, name=f"m{i}", flops=512) for i in range(2))
    total = net("add", m1, m2, name="total")
    graph = net.done(net("neg", total, name="r1"), net("exp", total, name="r2"))
    assert fused(graph, "m0", "m1") == {"m1"}  # the later one was asked first
    assert fused(graph, "m0", "m1", "total") == {
        "total"
    }  # total is in two kernels: the products would be computed twice


@pytest.mark.parametrize("last", ["reshape", "transpose", "slice", "broadcast"])
def test_outputs_are_stored_also_behind_views(last: str) -> None:
    net = Net("outputs")
    a = net("relu", net.tensor((4, 8)), name="a")
    view = net(last, a, name="view")
    graph = net.done(net("neg", view, name="b"), view)
    assert fused(graph) == set()
    assert legalise(graph, np.zeros((1, 3), np.uint8), LOOSE)[0].tolist() == [False, True, False]


def test_opaque_ops_take_nothing_in_and_unused_ops_stay() -> None:
    net = Net("opaque")
    x = net.tensor((4, 8))
    a, unused = net("relu", x, name="a"), net("neg", x, name="unused")
    o = net("opaque", net("reshape", a, name="v"), name="o")
    graph = net.done(net("neg", o, name="b"))
    assert fused(graph) == set()
    assert unused


def test_levels_decide_who_is_tried_first() -> None:
    graph = chain()
    two = KernelLimits(2, 16, 8)  # a kernel has room for one more
    assert fused(graph, limits=two) == {"b"}
    levels = np.array([[2, 1, 3], [1, 2, 3], [1, 1, 1], [0, 0, 5], [1, 0, 0]], np.int16)
    inlined = [ops(graph, row) for row in legalise_by_priority(graph, levels, two)]
    assert inlined == [{0}, {1}, {1}, frozenset(), {0}]


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, steps=STEPS, limits=st.sampled_from(LIMITS), share=st.sampled_from([0.3, 0.7, 1.0]))
def test_legalise_equals_the_reference(seed: int, steps: int, limits: KernelLimits, share: float) -> None:
    graph = random_graph(seed, steps)
    reference, requests = Reference(graph), random_requests(graph, seed, 3, share)
    legal = legalise(graph, requests, limits)
    assert set(np.flatnonzero(fusible(graph).op["can_inline"]).tolist()) == reference.may_inline
    for request, inline in zip(requests.tolist(), legal):
        assert ops(graph, inline) == reference.decode(request, limits)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, steps=STEPS, limits=st.sampled_from(LIMITS), levels=st.sampled_from([2, 20]))
def test_priorities_equal_the_reference(seed: int, steps: int, limits: KernelLimits, levels: int) -> None:
    graph = random_graph(seed, steps)
    reference, level = Reference(graph), np.random.default_rng(seed).integers(0, levels, (2, graph.num_ops))
    for row, inline in zip(level.tolist(), legalise_by_priority(graph, level.astype(np.int16), limits)):
        assert ops(graph, inline) == reference.decode_by_priority(row, limits)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, steps=STEPS, limits=st.sampled_from(LIMITS))
def test_every_decoded_state_is_legal(seed: int, steps: int, limits: KernelLimits) -> None:
    """Caps, one reduction or contraction per kernel, outputs and opaque ops stored, views never kernels."""
    graph = random_graph(seed, steps)
    reference, rng = Reference(graph), np.random.default_rng(seed)
    states = [
        *legalise(graph, random_requests(graph, seed, 2, 0.9), limits),
        *legalise_by_priority(graph, rng.integers(0, 20, (2, graph.num_ops)).astype(np.int16), limits),
        default_inline(graph, limits),
    ]
    for state in states:
        inline = ops(graph, state)
        assert state[list(reference.views)].all()
        assert inline <= reference.may_inline
        assert all(reference.roots(op, inline) for op in inline)
        assert [fault for root in reference.stored(inline) for fault in reference.faults(root, inline, limits)] == []
        found = oracles.kernels(graph, state.tolist())
        assert {root: (set(m), set(r)) for root, (m, r) in found.items()} == {
            root: (reference.members(root, inline), reference.inputs(root, inline)) for root in reference.stored(inline)
        }


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, steps=STEPS, limits=st.sampled_from(LIMITS), share=st.sampled_from([0.3, 0.7, 1.0]))
def test_legalising_twice_changes_nothing(seed: int, steps: int, limits: KernelLimits, share: float) -> None:
    graph = random_graph(seed, steps)
    once = legalise(graph, random_requests(graph, seed, 3, share), limits)
    assert np.array_equal(legalise(graph, once.astype(np.uint8), limits), once)
    default = default_inline(graph, limits)
    assert np.array_equal(legalise(graph, default[None].astype(np.uint8), limits)[0], default)


def test_flags_of_views_and_of_ops_without_a_choice_do_not_matter() -> None:
    graph = random_graph(3, 60)
    requests = random_requests(graph, 3, 4, 0.6)
    hidden = ~fusible(graph).op["can_inline"]
    assert hidden.any()
    assert np.array_equal(legalise(graph, np.where(hidden, 1 - requests % 2, requests).astype(np.uint8), LOOSE),
                          legalise(graph, requests, LOOSE))  # fmt: skip
