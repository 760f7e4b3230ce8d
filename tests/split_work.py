"""A small placement problem priced by hand: two devices, op times by device, a price per cut edge."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.problems.assignment import AssignTask
from graphopt.problems.cost_model import CostModel, Objective, Prices

CONFIG = {
    "machine": {
        "_target_": "graphopt.core.machine.Machine",
        "name": "pair",
        "devices": [{"name": "slow"}, {"name": "fast"}],
    },
    "task": {"_target_": "split_work.Split", "name": "split", "stuck": ""},
    "cost": {"_target_": "split_work.CutCost", "name": "cut", "objective": "runtime", "scale": 1.0},
    "judge": {"_target_": "split_work.CutCost", "name": "cut3", "objective": "runtime", "scale": 3.0},
    "seed": 0,
}


def chain(flops: list[float], kinds: list[str], tensor_bytes: list[int], name: str = "chain") -> Graph:
    """Op i reads the result of op i-1; op i is called `op{i}`; result i has tensor_bytes[i] bytes."""
    b = GraphBuilder(name)
    last = b.tensor((1,), num_bytes=0)
    for i, (count, kind, size) in enumerate(zip(flops, kinds, tensor_bytes)):
        result = b.tensor((1,), num_bytes=size)
        b.op(kind, [last], [result], flops=count, name=f"op{i}")
        last = result
    b.output(last)
    return b.build()


class Split(AssignTask):
    """Head `device`; the default puts everything on device 0. The op named by `stuck` stays there whatever is said."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *, name: str, machine: Machine, stuck: str) -> None:
        self.name, self.machine, self.stuck = name, machine, stuck
        self.heads = (Head("device", machine.num_devices, Role.DEVICE),)

    def initial(self, graph: Graph) -> Decision:
        return np.zeros((graph.num_ops, 1), np.int16)

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        return np.ones((graph.num_ops, 1), bool)

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        free = np.array([name != self.stuck for name in graph.op_names])
        device = np.where(free, decisions[:, :, 0], 0).astype(np.int16)
        return Plans(graph, device, np.zeros(device.shape), np.zeros(device.shape, bool))


class CutCost(CostModel):
    """scale x (sum of op times + bytes of cut edges); an op takes its FLOP on device 0, half on device 1, but tenfold
    there when it is opaque."""

    def __init__(self, *, name: str, objective: Objective, scale: float) -> None:
        self.name, self.objective, self.scale = name, objective, scale

    def price(self, plans: Plans) -> Prices:
        graph = plans.graph
        there = graph.flops * np.where(graph.kind == 0, 10.0, 0.5)
        time = np.where(plans.device == 1, there, graph.flops).sum(1)
        source, target, tensor = graph.edges
        cut = (plans.device[:, source] != plans.device[:, target]) @ graph.tensor_bytes[tensor].astype(np.float64)
        return Prices(self.scale * (time + cut), np.zeros(len(plans)))
