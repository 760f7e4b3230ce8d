"""`sharding_policy`: `sharding_search` in which a small network says which region to solve next. It reads how the node
tables, edge tables and memory prices of candidates stand to the bound, in columns without units
(`graphopt.sharding.region_choice`), so that what other instances taught it holds for a new one.

Ours, of no paper. That a learned policy chooses neighbourhoods is after Song, Lanka, Yue and Dilkina, "A General Large
Neighborhood Search Framework for Solving Integer Linear Programs" (NeurIPS 2020): theirs predicts a partition of the
variables, ours values regions that were grown. It is taught by regions that searches on training instances have solved,
drawn evenly: which share of its gap each has gained (`share_learner`).
"""

from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated

import numpy as np

from graphopt.algos.contests.share_learner import ShareLearner
from graphopt.core.graph import F64, Graph
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import AssignTask
from graphopt.search.sharding.sharding_search import ShardingSearch
from graphopt.sharding.hunt import Hunt
from graphopt.sharding.instance import tables_of
from graphopt.sharding.reducing import reduced
from graphopt.sharding.region_choice import COLUMNS
from graphopt.tasks.sharding_task import Sharding
from graphopt.utils.ranges import Between, Count, NotNegative, Share


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """looks: length of the search on each training instance, in looks at its clock (64 regions, or a step of prices,
    between two); regions: of each that are kept, at most; unpriced: share of them solved as if memory had no price."""

    looks: Count
    regions: Count
    unpriced: Share


class ShardingPolicy(ShareLearner):
    """yaml: conf/algo/sharding_policy.yaml. hidden: units of the network. A step is a region, its scale is its gap."""

    accepts = (Sharding,)

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int,
                 hidden: Annotated[int, Between(1, 256)], rate: NotNegative, lessons: Lessons,
                 search: ShardingSearch) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed, columns=len(COLUMNS), hidden=hidden, rate=rate)
        self.lessons, self.search = lessons, search

    def solved(self, graph: Graph) -> F64:
        """Regions drawn evenly."""
        tables, looks = tables_of(graph), count()
        settings = replace(self.search.hunt, candidates=1, unpriced=self.lessons.unpriced)
        hunt = Hunt(reduced(tables), tables, self.search.ascents, settings,
                    np.random.default_rng([self.val_seed, int(graph.hash[:8], 16)]),
                    lambda: next(looks) / self.lessons.looks, samples=self.lessons.regions)  # fmt: skip
        hunt.start(self.task.initial(graph)[:, 0].astype(np.int64))
        hunt.run(1, lambda: None)
        return hunt.samples

    def solve(self, problem: AssignProblem) -> None:
        self.search.run(problem, self.as_numbers())
