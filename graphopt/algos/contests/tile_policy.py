"""`tile_policy`: `tile_walk` that starts from a descent in which a small network says which move to look at next. It
reads how the groups of ops that a move would undo and make stand to what they cost at least, and what they are, in
columns without units (`graphopt.search.tiling.move_columns`), so that what drawn problems taught it holds for others.

Ours, of no paper. It is taught by moves that walks on training graphs have looked at, most of them drawn by what they
can gain at most, the others evenly: which share of the latency of the groups that would go each gains, 0 where it gains
nothing or cannot be.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphopt.algos.contests.share_learner import ShareLearner
from graphopt.core.graph import F64, Graph
from graphopt.problems.cost_model import CostModel
from graphopt.search.tiling.groupings import Wiring, apart
from graphopt.search.tiling.move_columns import COLUMNS
from graphopt.search.tiling.move_table import POTENTIAL, MoveTable
from graphopt.search.tiling.ordered_descent import made
from graphopt.search.tiling.tile_moves import Draw
from graphopt.search.tiling.tile_walk import TileWalk
from graphopt.tiling.tile_costs import TileCosts
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.tiling.tiling_task import TilingTask
from graphopt.utils.ranges import Between, Count, NotNegative, Positive, Share


@dataclass(frozen=True, kw_only=True)
class Walks:
    """moves, moves_of_op: so many, and so many more for every op, are looked at on each training graph. even: share of
    them drawn evenly, the others by that power of what they gain at most. fade: what a refusal leaves of a move's
    weight. hot, cold: as of `TileWalk`."""

    moves: Count
    moves_of_op: Count
    even: Share
    power: NotNegative
    fade: Share
    hot: Positive
    cold: Share


class TilePolicy(ShareLearner):
    """yaml: conf/algo/tile_policy.yaml. hidden: units of the network. A step is a move; its scale, the latency of what
    would go."""

    accepts = (TilingTask,)
    steps_of_graph = 1024

    def __init__(self, *, name: str, task: Any, cost: CostModel, seed: int,
                 hidden: Annotated[int, Between(1, 256)], rate: NotNegative, lessons: Walks,
                 search: TileWalk) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed, columns=len(COLUMNS), hidden=hidden, rate=rate)
        self.lessons, self.search = lessons, search

    def made_for(self) -> dict[str, Any]:
        """No network of choices."""
        return {"decisions": {}}

    def solved(self, graph: Graph) -> F64:
        """Moves of one walk."""
        lessons, wiring = self.lessons, Wiring(TileCosts(self.task.workload(graph)))
        draw = Draw(np.random.default_rng([self.val_seed, int(graph.hash[:8], 16)]))
        table, now = MoveTable(wiring, POTENTIAL, lessons.power, lessons.fade), apart(wiring)
        hot, moves = lessons.hot * now.cost / len(now.groups), lessons.moves + lessons.moves_of_op * len(now.groups)
        rows = []
        table.enter(now)
        for number in range(moves if table.count else 0):
            even = draw.unit() < lessons.even
            move = table.move(draw.below(table.count)) if even else table.drawn(draw.unit())
            columns, latency = table.described(move)
            found = made(now, move)
            gain = -math.inf if found is None else now.cost - found.cost
            rows.append([*columns, latency / now.mean, min(1.0, max(0.0, gain / latency))])
            if found is None or not _taken(gain, hot * lessons.cold ** (number / moves), draw):
                table.refuse(move)
                continue
            now = found
            table.enter(now)
            if not table.count:
                break
        return np.array(rows).reshape(-1, len(COLUMNS) + 2)

    def solve(self, problem: TilingProblem) -> None:
        self.search.run(problem, self.as_numbers())


def _taken(gain: float, temperature: float, draw: Draw) -> bool:
    return gain >= 0 or draw.unit() < math.exp(gain / temperature)
