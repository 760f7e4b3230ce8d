"""`Problem`: one graph to be solved, all that an optimiser sees. It meters the budget, keeps the best and the trace."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, Graph
from graphopt.core.plan import Plans
from graphopt.costs.cost_model import CostModel, Objective, Prices
from graphopt.errors import Unsolved
from graphopt.problems.metering import Metered, OutOfBudget
from graphopt.problems.pricing import CountedFlips, Pricing
from graphopt.tasks.keys import Keys, digests
from graphopt.tasks.task import AssignTask, Decision, Decisions


class Problem(Metered):
    """Graph + task + cost + budget.

    The default heuristic's decision and its price are known to everybody and are not billed; it is the first candidate,
    so no method with a budget of at least one evaluation ends worse than it. Every other price is billed: one per
    decision, repeated ones too. `commit` lets a method answer without any evaluation (budget 0).
    """

    def __init__(self, graph: Graph, task: AssignTask, cost: CostModel, *, evals: int, seconds: float = float("inf"),
                 seed: int = 0) -> None:  # fmt: skip
        self.graph, self.task, self._cost = graph, task, cost
        self._pricing = Pricing(graph, task, cost)
        self.rng = np.random.default_rng(seed)
        self.initial: Decision = task.initial(graph)
        self.best: Decision = self.initial
        self.best_plan: Plans | None = None  # set when the best came from keys: no decision describes it
        self.last_excess: NDArray[np.float64] = np.zeros(0)
        self._zobrist = np.random.default_rng(0x5EED).integers(
            1, 2**63, (graph.num_ops, len(task.heads)), dtype=np.uint64
        )
        super().__init__(evals=evals, seconds=seconds, initial_cost=self._pricing.initial_cost)

    @property
    def by_events(self) -> bool:
        """Whether prices are those of the event simulator."""
        return self._cost.by_events and self._cost.objective != "max_load"

    @property
    def objective(self) -> Objective:
        """What a cost is."""
        return self._cost.objective

    def plans(self) -> Plans:
        """The plan of the best answer, a batch of one."""
        return self.task.realise(self.graph, self.best[None]) if self.best_plan is None else self.best_plan

    def initial_plans(self) -> Plans:
        """The default's plan, a batch of one."""
        return self.task.realise(self.graph, self.initial[None])

    def cost(self, decisions: Decisions) -> NDArray[np.float64]:
        """[B] prices of decisions [B, N, H]. What exceeds the budget is not priced: OutOfBudget, after the rest."""
        allowed = min(len(decisions), self.remaining)
        priced = decisions[:allowed]
        cost = np.zeros(0)
        if allowed:
            prices = self._pricing.decisions(priced)
            cost, self.last_excess = prices.cost, prices.excess
            self._bill(cost, self.digest(priced).tolist(), lambda i: priced[i])
        if allowed < len(decisions):
            raise OutOfBudget
        return cost

    def cost_keys(self, keys: Keys) -> NDArray[np.float64]:
        """[B] prices of random keys [B, K] (random-key methods)."""
        allowed = min(len(keys), self.remaining)
        cost = np.zeros(0)
        if allowed:
            plans = self.task.realise_keys(self.graph, keys[:allowed])
            cost = self._bill_keys(keys[:allowed], plans, self._pricing.plans(plans))
        if allowed < len(keys):
            raise OutOfBudget
        return cost

    def cost_and_ends(self, keys: Keys) -> tuple[float, F64]:
        """The price of random keys [K], one evaluation, and when the kernel of each op ends [N], which the same
        simulation says. Raises Unsolved where the cost model does not say it."""
        if not self.remaining:
            raise OutOfBudget
        plans = self.task.realise_keys(self.graph, keys[None])
        priced = self._cost.price_and_ends(plans)
        if priced is None:
            raise Unsolved("when ops end is known to the simulator only; take cost=simulator, or algo=regal_local")
        return float(self._bill_keys(keys[None], plans, priced[0])[0]), priced[1]

    def _bill_keys(self, keys: Keys, plans: Plans, prices: Prices) -> F64:
        cost, self.last_excess, before = prices.cost, prices.excess, self.best_cost
        self._bill(cost, digests(keys).tolist(), lambda i: self.best)
        if self.best_cost < before:
            self.best_plan = plans[int(np.argmin(cost))].copy()  # keys belong to the caller, who may reuse them
        return cost

    def flips(self, decision: Decision) -> "MeteredFlips | None":
        """Delta pricing from a decision of a one-head binary task, where the cost model has it: one evaluation a flip.

        Opening is free when `decision` has been priced (its price is known); the caller starts from such a decision.
        """
        inner = self._pricing.flips(decision)
        return None if inner is None else MeteredFlips(self, inner)

    def commit(self, decision: Decision) -> None:
        """Answers with a decision that was not priced. Counts only while nothing has been billed (a budget of 0)."""
        if self.evals == 0 and self.evals_cap == 0:
            self.best, self.best_plan = decision, None

    def commit_keys(self, keys: Keys) -> None:
        """The same with random keys [K]."""
        if self.evals == 0 and self.evals_cap == 0:
            self.best_plan = self.task.realise_keys(self.graph, keys[None].copy())

    def _bill(self, cost: NDArray[np.float64], digests: list[int], decision_at: Callable[[int], Decision]) -> None:
        winner = self.bill(cost, digests)
        if winner is not None:
            self.best, self.best_plan = decision_at(winner).copy(), None

    def digest(self, decisions: Decisions) -> NDArray[np.uint64]:
        """[B] 64-bit digests: sums of a random-looking number per (op, head, choice), so a flip's is a difference."""
        sums: NDArray[np.uint64] = _mix(decisions, self._zobrist).sum((1, 2), dtype=np.uint64)
        return sums

    def digest_change(self, op: int, old: int, new: int) -> np.uint64:
        """What a change of head 0 at one op adds to the digest (modulo 2^64)."""
        pair = _mix(np.array([old, new]), self._zobrist[op, 0])
        return np.uint64((int(pair[1]) - int(pair[0])) % 2**64)


class MeteredFlips:
    """`Flips` whose every price is billed to the problem."""

    def __init__(self, problem: Problem, inner: CountedFlips) -> None:
        self._problem, self._inner = problem, inner
        self._free = problem.task.mask(problem.graph)[:, 0]  # views are always inline: they are no decision
        self._digest: int | None = None

    @property
    def cost(self) -> float:
        return self._inner.cost

    @property
    def decision(self) -> Decision:
        """[N, 1] the current decision."""
        return (self._inner.inline & self._free)[:, None].astype(np.int16)

    def price(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] prices after flipping each op alone; billed K evaluations. OutOfBudget as `Problem.cost`."""
        allowed = ops[: self._problem.remaining]
        cost = np.zeros(0)
        if len(allowed):
            cost = self._inner.price(allowed)
            base = self.decision
            self._problem._bill(cost, self._digests(base, allowed), lambda i: _flipped(base, int(allowed[i])))
        if len(allowed) < len(ops):
            raise OutOfBudget
        return cost

    def apply(self, op: int) -> None:
        """Moves to the flip of `op`; free, since its price is known."""
        self._inner.apply(op)
        self._digest = None

    def _digests(self, base: Decision, ops: NDArray[np.int64]) -> list[int]:
        if self._digest is None:
            self._digest = int(self._problem.digest(base[None])[0])
        changes = (self._problem.digest_change(int(op), int(base[op, 0]), 1 - int(base[op, 0])) for op in ops)
        return [(self._digest + int(change)) % 2**64 for change in changes]


def _flipped(decision: Decision, op: int) -> Decision:
    out = decision.copy()
    out[op, 0] = 1 - out[op, 0]
    return out


def _mix(values: NDArray[np.integer[Any]], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + np.uint64(1)) * keys
        mixed ^= mixed >> np.uint64(31)
        return mixed * keys
