"""`task=tiling`: subgraphs, their order, their tiles, what is computed twice and what stays in fast memory."""

from dataclasses import replace
from typing import Any

import numpy as np

from graphopt.core.graph import Graph, GraphError
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.errors import Unreadable
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import Clock
from graphopt.tasks.fusion import on_first_device
from graphopt.tiling.pricing_tiles import judge
from graphopt.tiling.referee import objections
from graphopt.tiling.schedule import CHOICE_NAME, TileSchedule, decode, encode
from graphopt.tiling.tile_costs import TileCosts
from graphopt.tiling.tile_workload import SharedSlices, TileWorkload
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.tiling.tiling_task import TilingTask
from graphopt.tiling.workload_graph import workload_of


class Tiling(TilingTask):
    """Without a search every op is a subgraph with its best tile. The core's sizes come with the graph; of the machine
    nothing counts.

    shared_slices: how much room a slice takes that several operands of a subgraph read: its own `once`, or
    `per_operand`. clock: what seconds are: of the `wall`, or of the `processor`.
    """

    def __init__(self, *, name: str, machine: Machine, shared_slices: SharedSlices, clock: Clock) -> None:
        self.name, self.machine, self.shared_slices, self.clock = name, machine, shared_slices, clock

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> TilingProblem:  # fmt: skip
        problem = super().open(graph, cost, evals=evals, seconds=seconds, seed=seed)
        problem.tell_time_by(self.clock)
        return problem

    def workload(self, graph: Graph) -> TileWorkload:
        return workload_of(graph, self.shared_slices)

    def initial(self, graph: Graph) -> TileSchedule:
        workload = self.workload(graph)
        costs = TileCosts(workload)
        order = sorted(range(workload.num_ops), key=workload.rank.__getitem__)
        for op in order:
            if not costs.best(1 << op).width:
                raise GraphError(f"op {op} of {workload.name} fits into fast memory with no tile; give more capacity")
        return TileSchedule(tuple(costs.step(1 << op) for op in order))

    def realise(self, graph: Graph, schedule: TileSchedule) -> Plans:
        nothing = np.zeros((1, graph.num_ops), np.bool_)
        numbers: Any = encode(schedule)[None]  # wider than choices of ops are
        return replace(on_first_device(graph, nothing), choices={CHOICE_NAME: numbers})

    def objections(self, plans: Plans) -> list[str]:
        """What the second evaluator finds wrong with a schedule, or with its price."""
        workload = self.workload(plans.graph)
        try:
            schedule = decode(plans.choices[CHOICE_NAME][0])
        except Unreadable as error:
            return [str(error)]
        verdict = judge(workload, schedule)
        return [verdict.wrong] if verdict.wrong else objections(workload, schedule, verdict.cost)
