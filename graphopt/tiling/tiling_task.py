"""The contract of tasks that tile: a decision is a schedule of subgraphs, with tiles and what stays in fast memory."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import Task
from graphopt.tiling.schedule import CHOICE_NAME, TileSchedule
from graphopt.tiling.tile_workload import TileWorkload
from graphopt.tiling.tiled import Tiled
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.tiling.workload_graph import CARRIES


class TilingTask(Task):
    """Schedules of subgraphs. Its plans have one choice, `schedule`, as numbers."""

    noun = "a task that schedules subgraphs with tiles"
    needs = frozenset({CARRIES})
    roles: ClassVar[Mapping[str, Role]] = {CHOICE_NAME: Role.CHOICE}
    decided = Tiled

    @abstractmethod
    def workload(self, graph: Graph) -> TileWorkload:
        """What a graph carries, as this task reads the rules."""

    @abstractmethod
    def initial(self, graph: Graph) -> TileSchedule:
        """What runs without any search."""

    @abstractmethod
    def realise(self, graph: Graph, schedule: TileSchedule) -> Plans:
        """The plan of a schedule: a batch of one."""

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> TilingProblem:  # fmt: skip
        return TilingProblem(graph, self, cost, evals=evals, seconds=seconds, seed=seed)
