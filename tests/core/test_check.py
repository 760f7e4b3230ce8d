"""The oracles find what is wrong: each rule broken by hand is named."""

from dataclasses import replace

import numpy as np
import pytest

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.oracles import check, check_trace, kernels
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator

MACHINE = Machine(name="two", devices=(Device(), Device()), link_bandwidth=8.0)


def small_graph() -> Graph:
    """x -> exp e -> reshape v -> {sum s -> add o, add p}; w -> matmul m(v, w) -> add p; o and p are outputs."""
    b = GraphBuilder("small")
    x, w = b.tensor((4, 4)), b.tensor((4, 4), weight=True)
    e, v, s, m, o, p = (b.tensor((4, 4)) for _ in range(6))
    b.op("exp", [x], [e], flops=3, name="e")
    b.op("reshape", [e], [v], flops=0, name="v")
    b.op("sum", [v], [s], flops=2, name="s")
    b.op("matmul", [v, w], [m], flops=4, name="m")
    b.op("opaque", [s], [o], flops=1, name="o")
    b.op("add", [v, m], [p], flops=1, name="p")
    b.output(o)
    b.output(p)
    return b.build()


def plan(graph: Graph, inline: str = "v", device: str = "") -> Plans:
    flags = np.array([[name in inline for name in graph.op_names]])
    where = np.array([[int(name in device) for name in graph.op_names]], np.int16)
    return Plans(graph, where, np.zeros(flags.shape), flags)


def test_kernels_are_stored_ops_and_all_inlined_ops_they_need():
    graph = small_graph()
    flags = plan(graph, "evm").inline[0].tolist()
    found = {graph.op_names[root]: (sorted(graph.op_names[m] for m in members), len(reads))
             for root, (members, reads) in kernels(graph, flags).items()}  # fmt: skip
    assert found == {"s": (["e", "s"], 1), "o": (["o"], 1), "p": (["e", "m", "p"], 2)}


@pytest.mark.parametrize(
    "inline, complaint",
    [
        ("v", None),
        ("ve", None),
        ("vem", None),
        ("e", "view v is stored"),
        ("vp", "op p makes a graph output and is inlined"),
        ("vo", "opaque op o is inlined"),
        ("vs", "something is inlined into opaque op o"),
    ],
)
def test_illegal_fusion_is_named(inline, complaint):
    wrong = check(plan(small_graph(), inline), MACHINE)
    assert wrong == [] if complaint is None else complaint in wrong


def test_two_heavy_ops_in_one_kernel_are_named():
    b = GraphBuilder("heavy")
    x, y, z = b.tensor((4, 4)), b.tensor((4, 4)), b.tensor((4, 4))
    b.op("sum", [x], [y], name="s")
    b.op("matmul", [y, x], [z], name="m")
    b.output(z)
    assert check(plan(b.build(), "s"), MACHINE) == ["the kernel of m holds 2 reductions and contractions"]


def test_devices_and_priorities_out_of_range_are_named():
    graph = small_graph()
    good = plan(graph)
    far, undefined = good.device.copy(), good.priority.copy()
    far[0, 0], undefined[0, 5] = 2, np.nan
    assert check(Plans(graph, far, good.priority, good.inline), MACHINE) == ["op e is on device 2 of 2"]
    assert check(Plans(graph, good.device, undefined, good.inline), MACHINE) == ["op p has priority nan"]


def test_a_broken_run_is_found():
    graph = small_graph()
    placed = plan(graph, "v", device="mo")
    trace = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1).simulate(placed)
    assert check_trace(trace, placed, MACHINE) == []
    shifted = trace.kernel_start.copy()
    shifted[-1] -= 1
    memory = trace.memory_bytes.copy()
    memory[1, 0] += 4
    broken = {
        "starts too early": replace(trace, kernel_start=shifted),
        "the makespan is": replace(trace, makespan=trace.makespan + 1),
        "on another device": replace(trace, kernel_device=1 - trace.kernel_device),
        "once each": replace(trace, kernel_op=np.roll(trace.kernel_op, 1) * 0),
        "the memory curve": replace(trace, memory_bytes=memory),
        "peaks are": replace(trace, peak_bytes=trace.peak_bytes + 1),
        "is sent before": replace(trace, transfer_start=trace.transfer_start - 2, transfer_end=trace.transfer_end - 2),
        "takes": replace(trace, transfer_end=trace.transfer_end + 1),
        "what was sent": replace(
            trace, transfer_tensor=trace.transfer_tensor[:1] * np.ones_like(trace.transfer_tensor)
        ),
    }
    for complaint, wrong in broken.items():
        assert any(complaint in sentence for sentence in check_trace(wrong, placed, MACHINE)), complaint


def test_a_wrong_order_is_found():
    b = GraphBuilder("order")
    x = b.tensor((1,))
    for name in "abc":
        b.op("opaque", [x], [b.tensor((1,))], flops=1, name=name)
    graph = b.build()
    done = plan(graph, "")
    trace = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1).simulate(done)
    urgent = Plans(graph, done.device, np.array([[0.0, 0.0, 5.0]]), done.inline)
    assert check_trace(trace, urgent, MACHINE) == ["a starts before c on device 0", "b starts before c on device 0"]
