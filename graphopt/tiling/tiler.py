"""`Tiler`: solves problems of schedules with tiles."""

from graphopt.problems.optimizer import Solver
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.tiling.tiling_task import TilingTask


class Tiler(Solver[TilingProblem]):
    """Finds a schedule of subgraphs."""

    accepts = (TilingTask,)
