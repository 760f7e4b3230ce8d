"""XLA's cost model against the golden numbers of its own unit tests (RTX A6000)."""

import numpy as np
import pytest

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device
from graphopt.costs.kernel_time import kernel_graph

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
    b = GraphBuilder("add")
    x, y, z = (b.tensor((elements,)) for _ in range(3))
    b.op("add", [x, y], [z])
    b.output(z)
    return b.build()


def add_of_broadcast(rows: int) -> Graph:
    """p0 [rows] is broadcast to [rows, 1e7 / rows], flattened and added to p1 [1e7]."""
    b = GraphBuilder("broadcast_add")
    small, large, total = b.tensor((rows,)), b.tensor((TEN_MILLION,)), b.tensor((TEN_MILLION,))
    wide, flat = b.tensor((rows, TEN_MILLION // rows)), b.tensor((TEN_MILLION,))
    b.op("broadcast", [small], [wide])
    b.op("reshape", [wide], [flat])
    b.op("add", [flat, large], [total])
    b.output(total)
    return b.build()


def test_large_read_write() -> None:
    """Golden: 156.2 us and the launch; 220,284 +- 100 cycles."""
    seconds = time_of(add_of_two(TEN_MILLION)) - MICRO
    assert seconds == pytest.approx(156.2 * MICRO, abs=0.1 * MICRO)
    assert seconds * A6000.clock == pytest.approx(220_284, abs=100)


def test_large_write() -> None:
    """Golden: 53 +- 10 us for a fill of 1e7 elements."""
    b = GraphBuilder("fill")
    z = b.tensor((TEN_MILLION,))
    b.op("fill", [], [z])
    b.output(z)
    assert time_of(b.build()) == pytest.approx(53 * MICRO, abs=10 * MICRO)


def test_small_read_write_is_limited_by_occupancy() -> None:
    """Golden: 38.4 cycles, which XLA rounds down by quarters of a nanosecond per term."""
    seconds = time_of(add_of_two(1000)) - MICRO
    assert seconds * A6000.clock == pytest.approx(38.4, abs=3 * 0.25e-9 * A6000.clock)


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
    b = GraphBuilder("transpose_reduce")
    x, t, y = b.tensor((1500, 32, 128)), b.tensor((1500, 128, 32)), b.tensor((1500, 32))
    b.op("transpose", [x], [t])
    b.op("amax", [t], [y])
    b.output(y)
    assert time_of(b.build()) == pytest.approx(514 * MICRO, abs=10 * MICRO)


def test_fusing_saves_a_launch_a_write_and_a_read() -> None:
    """XLA's test of mul + tanh, [4194304]: fusing saves a launch, a write and a read."""
    b = GraphBuilder("mul_tanh")
    x, y, m, z = (b.tensor((4_194_304,)) for _ in range(4))
    b.op("mul", [x, y], [m], name="mul")
    b.op("tanh", [m], [z], name="tanh")
    b.output(z)
    graph = b.build()
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
