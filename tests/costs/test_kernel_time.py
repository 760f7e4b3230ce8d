"""What one kernel costs: by hand, against an independent reference, and against XLA's golden numbers."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from fusion_graphs import DEVICES, GPU, LIMITS, RICH, Net, random_graph, random_requests
from fusion_reference import Reference
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import legalise
from graphopt.core.machine import Device
from graphopt.costs.one_kernel.kernel_time import (
    QUANTUM,
    device_constants,
    kernel_graph,
    runtime_on_one_device,
    workspace,
)

# --- What one kernel costs: each term by hand, and all of them on random graphs against an independent reference. By
# hand, a tensor x of [4, 8] float32 has 32 elements and 128 bytes; the device moves 128 bytes and computes 32 FLOP of
# elementwise work a second, so whole numbers of seconds can be counted off.

UNIT = Device(launch=1.0, vector_flops=32.0, contraction_flops=32.0, bandwidth=128.0)
MEMORY = replace(UNIT, launch=0.0, vector_flops=1e12, contraction_flops=1e12)  # only bytes count
ARITHMETIC = replace(UNIT, launch=0.0, bandwidth=float("inf"))  # only FLOP count


def times(graph: Graph, inline: np.ndarray, device: Device) -> np.ndarray:
    """[N] seconds of every kernel."""
    out = np.full(graph.num_ops, np.nan)
    total = runtime_on_one_device(fusible(graph), inline, device_constants([device])[0], workspace(graph), out)
    assert total == out.sum()
    return out


def seconds(graph: Graph, device: Device, *inlined: str) -> dict[str, float]:
    """Name of each stored op -> seconds of its kernel, with these ops inlined."""
    inline = view_inline(graph)
    inline[[graph.op_names.index(name) for name in inlined]] = True
    return {graph.op_names[op]: time for op, time in enumerate(times(graph, inline, device).tolist()) if not inline[op]}


Check = tuple[Device, str, dict[str, float]]


def cases() -> Iterator[tuple[Graph, list[Check]]]:
    """Graphs by hand, each with (device, what is inlined, seconds of the kernels)."""
    net = Net("launch, and the larger of arithmetic (1 s) and memory (3 s): two reads and a write")
    yield net.done(net("add", net.x(), net.x(), name="a")), [
        (UNIT, "", {"a": 4.0}), (replace(UNIT, bandwidth=1e9), "", {"a": 2.0})]  # fmt: skip
    net = Net("a chain: stored, three launches, each moves two tensors, exp has 12 FLOP an element")
    a = net("relu", net.x(), name="a")
    yield net.done(net("exp", net("neg", a, name="b"), name="c")), [
        (UNIT, "", {"a": 3.0, "b": 3.0, "c": 13.0}),
        (UNIT, "a b", {"c": 15.0}),  # one launch, x and c move
        (MEMORY, "a b", {"c": 2.0}), (ARITHMETIC, "a", {"b": 2.0, "c": 12.0})]  # fmt: skip
    # o = e / sum(e), e = exp(x - m): in one kernel e serves the sum and the division in one evaluation (12 + 1 FLOP),
    # the sum adds 1 and the division 8. m (4 elements) is read once per element of x: 4 fresh reads and 28 others.
    net = Net("softmax")
    x, m = net.x(), net.x(4, 1)
    e = net("exp", net("sub", x, m, name="s"), name="e")
    yield net.done(net("div", e, net("sum", e, name="z", shape=(4, 1)), name="o")), [
        (ARITHMETIC, "s e z", {"o": 12.0 + 1.0 + 1.0 + 8.0}), (ARITHMETIC, "s e", {"z": 14.0, "o": 21.0}),
        (MEMORY, "s e z", {"o": 2.0 + 16 / 128}),
        (replace(MEMORY, reread_factor=0.5), "s e z", {"o": 2.0 + 16 / 128 + 0.5 * 112 / 128})]  # fmt: skip
    net = Net("a broadcast producer is computed again for every read: 4 elements, 32 evaluations")
    c = net("exp", net.x(4, 1), name="c", shape=(4, 1))
    yield net.done(net("add", net.x(), c, name="a")), [
        (ARITHMETIC, "", {"c": 1.5, "a": 1.0}), (ARITHMETIC, "c", {"a": 13.0})]  # fmt: skip
    for view, shape, fresh, again in (("broadcast", (4, 1), 16, 112), ("reshape", (8, 4), 128, 0)):
        net = Net("a view costs nothing but its reads")
        yield net.done(net("add", net.x(), net(view, net.x(*shape), name="v"), name="a")), [
            (replace(MEMORY, reread_factor=0.25), "", {"a": 2.0 + fresh / 128 + 0.25 * again / 128})]  # fmt: skip
    # [4, 16] x [16, 8]: 1,024 FLOP = 32 s of contraction; bias and relu add 1 s each; the product is never stored.
    net = Net("a product's epilogue")
    product = net("matmul", net.x(4, 16), net.x(16, 8), name="m", flops=1024)
    yield net.done(net("relu", net("add", product, net.x(8), name="b"), name="r")), [
        (ARITHMETIC, "m b", {"r": 34.0}), (replace(ARITHMETIC, contraction_flops=1024.0), "m b", {"r": 3.0}),
        (MEMORY, "m b", {"r": (256 + 512 + 32 + 128) / 128}),
        (replace(ARITHMETIC, prologue_factor=1.5), "m b", {"r": 34.0})]  # fmt: skip
    # [4, 8] x [8, 512]: each element of the left operand has 512 uses, so it is read for 4 tiles of 128.
    net = Net("a product's prologue is computed again for every tile")
    a, weight = net("exp", net.x(), name="a"), net.tensor((8, 512), weight=True)
    flops, moved = 2.0 * 4 * 8 * 512, (128 + 8 * 512 * 4 + 4 * 512 * 4) / 128
    yield net.done(net("matmul", a, weight, name="m", shape=(4, 512), flops=flops)), [
        (ARITHMETIC, "", {"a": 12.0, "m": flops / 32}), (ARITHMETIC, "a", {"m": flops / 32 + 4 * 12.0}),
        (replace(ARITHMETIC, prologue_factor=1.5), "a", {"m": 1.5 * flops / 32 + 4 * 12.0}),
        (replace(MEMORY, reread_factor=0.5), "", {"a": 2.0, "m": moved + 0.5 * 3})]  # fmt: skip
    # y is read strided (3 x 128 bytes), also by an op inlined behind the transposition, which is computed out of order
    strided = replace(MEMORY, strided_factor=3.0)
    net = Net("reading through a transposition is strided")
    y = net("relu", net.x(8, 4), name="y", shape=(8, 4))
    yield net.done(net("add", net.x(), net("transpose", y, name="t"), name="a")), [
        (strided, "", {"y": 2.0, "a": 1.0 + 3.0 + 1.0}), (strided, "y", {"a": 1.0 + 3.0 + 1.0})]  # fmt: skip
    net = Net("an op read in order and transposed is computed twice")
    e = net("exp", net.x(4, 4), name="e", shape=(4, 4))
    t = net("transpose", e, name="t", shape=(4, 4))
    yield net.done(net("add", e, t, name="a", shape=(4, 4))), [(ARITHMETIC, "e", {"a": 0.5 + 2 * 6.0})]
    net = Net("64 rows of a table of 4: 16 elements, each read 16 times; the index once per row")
    yield net.done(net("gather", net.x(4, 4), net.x(64), name="g", shape=(64, 4))), [
        (replace(MEMORY, reread_factor=0.5), "", {"g": (64 + 256 + 1024 + 0.5 * 4 * (256 - 16)) / 128})]  # fmt: skip
    net = Net("a slice reads only its part")
    yield net.done(net("relu", net("slice", net.x(64, 8), name="part"), name="a")), [(MEMORY, "", {"a": 2.0})]
    # 32 of 128 elements in flight: four times as long, launch excepted. A reduction counts what it reads.
    net = Net("small kernels do not fill the device")
    x = net.x()
    yield net.done(net("relu", x, name="a"), net("sum", x, name="z", shape=(4, 1))), [
        (replace(UNIT, saturation=128.0), "", {"a": 1.0 + 4 * 2.0, "z": 1.0 + 4 * (128 + 16) / 128}),
        (replace(UNIT, saturation=32.0), "", {"a": 1.0 + 2.0, "z": 1.0 + (128 + 16) / 128})]  # fmt: skip
    net = Net("several results are all written")
    mean, variance = net.x(4, 1), net.x(4, 1)
    net.op("norm_stats", [net.x()], [mean, variance], name="n")
    yield net.done(mean, variance), [(MEMORY, "", {"n": (128 + 2 * 16) / 128}), (ARITHMETIC, "", {"n": 8.0})]


@pytest.mark.parametrize("graph, checks", [pytest.param(*case, id=case[0].name) for case in cases()])
def test_kernels_by_hand(graph: Graph, checks: list[Check]) -> None:
    for device, inlined, expected in checks:
        assert seconds(graph, device, *inlined.split()) == expected


def test_many_inputs_spill() -> None:
    """Ten inputs, two beyond the eight that fit: memory time x 1.2."""
    net = Net("spill")
    graph = net.done(net("concat", *(net.x() for _ in range(10)), name="c", shape=(40, 8)))
    device = replace(MEMORY, spill_inputs=8, spill_factor=0.1)
    assert seconds(graph, device)["c"] == pytest.approx(20 * 1.2)
    assert seconds(graph, replace(device, spill_inputs=10)) == {"c": 20.0}


def test_empty_tensors_and_scalars_have_a_price() -> None:
    net = Net("empty")
    nothing = net("relu", net.x(0, 8), name="a", shape=(0, 8))
    scalar = net("sum", nothing, name="z", shape=())
    graph = net.done(net("neg", scalar, name="b", shape=()))
    for device in DEVICES:
        assert all(0 <= t < 8000 and np.isfinite(t) for t in seconds(graph, device).values())


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 40), limits=st.sampled_from(LIMITS),
       device=st.sampled_from(DEVICES[:3]), share=st.sampled_from([0.4, 0.8, 1.0]))  # fmt: skip
def test_every_kernel_equals_the_reference(seed, steps, limits, device, share) -> None:
    graph = random_graph(seed, steps)
    reference = Reference(graph)
    state = legalise(graph, random_requests(graph, seed, 1, share), limits)[0]
    inline = frozenset(np.flatnonzero(state).tolist()) - reference.views
    found = times(graph, state, device)
    for op in range(graph.num_ops):
        expected = 0.0 if state[op] else reference.seconds(op, inline, device)
        assert found[op] == pytest.approx(expected, rel=1e-9, abs=QUANTUM)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), device=st.sampled_from(DEVICES))
def test_times_are_whole_quanta_so_sums_do_not_depend_on_order(seed, device) -> None:
    graph = random_graph(seed, 30)
    found = times(graph, legalise(graph, random_requests(graph, seed, 1, 0.7), LIMITS[0])[0], device)
    assert np.array_equal(found / QUANTUM, np.round(found / QUANTUM))
    assert np.random.default_rng(seed).permutation(found).sum() == found.sum() == np.sort(found).sum()


def test_prices_do_not_depend_on_what_was_priced_before() -> None:
    """The scratch space is clean after every kernel."""
    graph = random_graph(5, 40)
    constants, work = device_constants([RICH])[0], workspace(graph)
    states = legalise(graph, random_requests(graph, 5, 6, 0.7), LIMITS[0])
    shared = [runtime_on_one_device(fusible(graph), s, constants, work, np.zeros(graph.num_ops)) for s in states]
    assert shared == [times(graph, s, RICH).sum() for s in states]


def test_kernel_graph_has_a_column_per_device_and_the_tensors_read() -> None:
    graph = random_graph(7, 40)
    reference = Reference(graph)
    state = legalise(graph, random_requests(graph, 7, 1, 0.7), LIMITS[0])[0]
    inline = frozenset(np.flatnonzero(state).tolist()) - reference.views
    made = kernel_graph(graph, state, (GPU, RICH, replace(GPU, name="other", capacity=1.0)))
    assert np.array_equal(made.time, np.stack([times(graph, state, d) for d in (GPU, RICH, GPU)], 1))
    assert np.array_equal(made.is_kernel, ~state)
    for op in range(graph.num_ops):
        read = made.in_tensor[made.in_ptr[op] : made.in_ptr[op + 1]].tolist()
        assert len(read) == len(set(read))
        assert set(read) == (set() if state[op] else reference.inputs(op, inline))


# --- XLA's cost model against the golden numbers of its own unit tests (RTX A6000).

MICRO = 1e-6
A6000 = Device(
    name="rtx_a6000", fusion_model="xla_gpu", bandwidth=768.096e9, launch=MICRO, contraction_flops=38.7e12,
    clock=1.41e9, cores=84, fpus_per_core=128, l2_bytes=6 * 2**20,
)  # fmt: skip
TEN_MILLION = 10_000_000


def time_of(graph: Graph, inline: list[str] | None = None, device: Device = A6000) -> float:
    """Seconds on one device with the named ops (and every view) inlined."""
    flags = view_inline(graph) | np.isin(graph.op_names, inline or [])
    return float(kernel_graph(graph, flags, (device,)).time.sum())


def add_of_two(elements: int) -> Graph:
    net, shape = Net("add"), (elements,)
    return net.done(net("add", net.x(*shape), net.x(*shape), name="add", shape=shape))


def add_of_broadcast(rows: int) -> Graph:
    """p0 [rows] is broadcast to [rows, 1e7 / rows], flattened and added to p1 [1e7]."""
    net, whole = Net("broadcast_add"), (TEN_MILLION,)
    wide = net("broadcast", net.x(rows), name="wide", shape=(rows, TEN_MILLION // rows))
    flat = net("reshape", wide, name="flat", shape=whole)
    return net.done(net("add", flat, net.x(*whole), name="total", shape=whole))


def test_large_and_small_reads_and_writes() -> None:
    """Golden: 156.2 us and the launch, 220,284 +- 100 cycles; 53 +- 10 us for a fill of 1e7 elements; 38.4 cycles for
    1,000, limited by occupancy, which XLA rounds down by quarters of a nanosecond per term."""
    large, small = (time_of(add_of_two(elements)) - MICRO for elements in (TEN_MILLION, 1000))
    assert large == pytest.approx(156.2 * MICRO, abs=0.1 * MICRO)
    assert large * A6000.clock == pytest.approx(220_284, abs=100)
    assert small * A6000.clock == pytest.approx(38.4, abs=3 * 0.25e-9 * A6000.clock)
    net = Net("fill")
    filled = net.done(net("fill", name="fill", shape=(TEN_MILLION,)))
    assert time_of(filled) == pytest.approx(53 * MICRO, abs=10 * MICRO)


@pytest.mark.parametrize(("rows", "golden"), [(10_000, 118), (1_000_000, 123)])
def test_broadcast_reads_hit_the_caches(rows: int, golden: float) -> None:
    """Golden: 118 +- 12 us when the operand fits the first-level caches, 123 +- 12 us when only the second."""
    assert time_of(add_of_broadcast(rows)) == pytest.approx(golden * MICRO, abs=12 * MICRO)


def test_cache_tiers_by_hand() -> None:
    """Write and read of p1, the first read of p0, re-reads at 20x, 2.5x and 1x of the bandwidth."""
    streamed, byte = 2 * 4e7, 1 / A6000.bandwidth
    overlap = 0.05 * 1e7 / (2 * A6000.clock * 84 * 128)
    for rows, speedup in ((10_000, 20.0), (1_000_000, 2.5), (2_500_000, 1.0)):
        memory = (streamed + 4 * rows + (4e7 - 4 * rows) / speedup) * byte
        assert time_of(add_of_broadcast(rows)) == pytest.approx(MICRO + memory + overlap, abs=1e-12)


def test_transposed_read_is_slow() -> None:
    """Golden: 514 +- 10 us for a transposition fused into a reduction (f32[1500,32,128])."""
    net = Net("transpose_reduce")
    turned = net("transpose", net.x(1500, 32, 128), name="t", shape=(1500, 128, 32))
    graph = net.done(net("amax", turned, name="y", shape=(1500, 32)))
    assert time_of(graph) == pytest.approx(514 * MICRO, abs=10 * MICRO)


def test_fusing_saves_a_launch_a_write_and_a_read() -> None:
    """XLA's test of mul + tanh, [4194304]: fusing saves a launch, a write and a read."""
    net, shape = Net("mul_tanh"), (4_194_304,)
    product = net("mul", net.x(*shape), net.x(*shape), name="mul", shape=shape)
    graph = net.done(net("tanh", product, name="tanh", shape=shape))
    fused, apart = time_of(graph, ["mul"]), time_of(graph)
    assert apart - fused == pytest.approx(MICRO + 2 * 4 * 4_194_304 / A6000.bandwidth, rel=0.01)


def test_transposed_half_precision_wastes_more() -> None:
    """An uncoalesced read moves 64 bytes per element, whatever its size."""
    times = []
    for dtype in ("float32", "float16"):
        b = GraphBuilder(dtype)
        x, t, y = b.tensor((4096, 4096), dtype), b.tensor((4096, 4096), dtype), b.tensor((4096, 4096), dtype)
        b.op("transpose", [x], [t])
        b.op("neg", [t], [y])
        b.output(y)
        times.append(time_of(b.build()) - b._tensors[y].num_bytes / A6000.bandwidth)
    assert times[0] == pytest.approx(times[1], rel=1e-6)
