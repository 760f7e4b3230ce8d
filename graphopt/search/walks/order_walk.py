"""`order_walk`: annealing on the order of ops for least peak memory, from the best of the compilers' orders.

The moves and the energy are in order_moves.py. What a move changes is judged inside its window, by the table of what
every op allocates, so a price costs microseconds; each counts as one evaluation. The search also proves a lower bound
(`graphopt.search.solvers.memory_bound`), and stops where its best order reaches it.

Ours, of no paper. Shape legend: K ordered ops.
"""

import numpy as np

from graphopt.core.graph import I64
from graphopt.core.head import Role
from graphopt.core.live_storage import LiveStorage, peaks
from graphopt.core.op_storage import op_storage
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.compiler_orders import ORDERS, keys_of, storage_of
from graphopt.search.solvers.memory_bound import memory_bound
from graphopt.search.walks.order_moves import descend, walk_from
from graphopt.utils.ranges import Count, NotNegative, Positive, Whole

CHUNK = 20_000  # moves between looks at the clock


class OrderWalk(Optimizer):
    """yaml: conf/algo/order_walk.yaml.

    rounds: times that it cools down, each from the best order so far. hot, cold: how much worse, in steps at the peak,
    an order may be that is taken with probability 1/e, at a round's begin and end. sharpness: power of the bytes of a
    step in the energy. widest: steps that a move changes at most.
    """

    needs_roles = frozenset({Role.PRIORITY})
    needs_cost = frozenset({"storage"})
    knows_roles = frozenset({Role.PRIORITY})

    def __init__(
        self, *, name: str, rounds: Whole, hot: Positive, cold: Positive, sharpness: NotNegative, widest: Count
    ) -> None:
        self.name, self.rounds, self.widest = name, rounds, widest
        self.hot, self.cold, self.sharpness = hot, cold, sharpness

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        table = storage_of(problem)
        problem.prove(float(memory_bound(table)))
        order = self._start(problem, table)
        for turn in range(self.rounds):
            order = self._cooled(problem, table, order, turn)

    def _start(self, problem: AssignProblem, table: LiveStorage) -> I64:
        """The best of the compilers' orders and the graph's own."""
        starts = [table.ordered, *(order(table) for order in ORDERS.values())]
        costs = problem.cost_keys(np.stack([keys_of(problem, order) for order in starts]))
        return starts[int(np.argmin(costs))]

    def _cooled(self, problem: AssignProblem, table: LiveStorage, order: I64, turn: int) -> I64:
        """The best order of one round."""
        ops, best, lowest = op_storage(table), order, float(peaks(table, order[None])[0])
        walk, scale = walk_from(ops, order), lowest
        found, until = np.empty_like(order), (turn + 1) / self.rounds
        while problem.remaining > 1 and (share := self._share(problem)) < until and problem.best_cost > problem.bound:
            heat = self.hot * (self.cold / self.hot) ** (share * self.rounds - turn)
            moves = min(CHUNK, problem.remaining - 1)
            problem.spend(moves)
            descend(ops, walk, moves, scale, self.sharpness, heat, self.widest, problem.rng, found)
            cost = float(peaks(table, found[None])[0])
            if cost < lowest:
                best, lowest = found.copy(), cost
                problem.cost_keys(keys_of(problem, best)[None])
        return best

    def _share(self, problem: AssignProblem) -> float:
        """Of the budget that is spent."""
        return max(problem.evals / problem.evals_cap, problem.seconds / problem.seconds_cap)
