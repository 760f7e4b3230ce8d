"""Random graphs, machines and plans for property tests: small whole times, so that ties abound."""

import numpy as np

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits, legalise
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.plan import Plans

ORDERS = ["priority", "fifo"]


def random_graph(rng: np.random.Generator, ops: int) -> Graph:
    """Ops with one or two results, views, weights, unused results, outputs; FLOP and bytes are small whole numbers."""
    b = GraphBuilder("random")
    made = [b.tensor((4,), num_bytes=int(rng.integers(0, 9)), weight=bool(rng.integers(2))) for _ in range(3)]
    for _ in range(ops):
        kind = str(rng.choice(["add", "opaque", "reshape", "matmul", "sum"], p=[0.4, 0.2, 0.15, 0.15, 0.1]))
        operands = [
            made[i] for i in rng.integers(max(0, len(made) - 8), len(made), 1 if kind in ("reshape", "sum") else 2)
        ]
        count = 2 if kind == "opaque" and rng.random() < 0.3 else 1
        results = [b.tensor((4,), num_bytes=int(rng.integers(0, 9))) for _ in range(count)]
        b.op(kind, operands, results, flops=0.0 if kind == "reshape" else float(rng.integers(0, 5)))
        made += results
        if rng.random() < 0.1:
            b.output(results[0])
    b.output(made[-1])
    return b.build()


def random_machine(rng: np.random.Generator) -> Machine:
    """Up to four devices of different speeds under any transfer rule."""
    devices = int(rng.integers(1, 5))
    lane, order, op_order = (str(rng.choice(options)) for options in (["link", "source", "unlimited"], *2 * [ORDERS]))
    by_name = lane != "unlimited" and order == op_order == "fifo" and rng.random() < 0.5
    rule = TransferRule(
        lane=lane, multicast=bool(rng.integers(2)), order=order, op_order=op_order, ties="name" if by_name else "id",
        clock=str(rng.choice(["grid", "grid", "tick"])), op_overhead=float(rng.integers(0, 3)) / 2,
        lane_overhead=float(rng.integers(0, 3)) / 2 if lane != "unlimited" else 0.0,
        free=str(rng.choice(["end", "end", "tick_before"])), tick=1.0,
    )  # fmt: skip
    bandwidth = rng.choice([1.0, 2.0, 4.0, np.inf], (devices, devices))
    return Machine(
        name="random",
        devices=tuple(
            Device(vector_flops=s, contraction_flops=s) for s in rng.choice([0.5, 1.0, 2.0], devices).tolist()
        ),
        link_bandwidth=tuple(map(tuple, bandwidth.tolist())), link_latency=float(rng.integers(0, 2)), transfer=rule,
    )  # fmt: skip


def random_plans(rng: np.random.Generator, graph: Graph, machine: Machine, count: int) -> Plans:
    """Legal plans: random devices, priorities from few or many values, random fusion, sometimes transfer keys."""
    shape = (count, graph.num_ops)
    priority = rng.integers(-2, 3, shape).astype(np.float64) if rng.random() < 0.5 else rng.standard_normal(shape)
    inline = legalise(graph, rng.integers(0, 2, shape).astype(np.uint8), KernelLimits(64, 64, 8))
    keys = rng.random((count, graph.num_tensors, machine.num_devices)) if rng.random() < 0.3 else None
    return Plans(graph, rng.integers(0, machine.num_devices, shape).astype(np.int16), priority, inline, keys)
