"""`AssignProblem`: a graph whose ops are given choices, by whole decisions, by random keys, or flip by flip."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unsolved
from graphopt.core.graph import F64
from graphopt.core.live_storage import LiveStorage
from graphopt.core.plan import Plans
from graphopt.problems.choices import chosen, described
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.keys import KeyLayout, Keys, digests
from graphopt.problems.pricing import PricedFlips, Pricing
from graphopt.problems.problem import OutOfBudget, Problem
from graphopt.problems.solution import Solution

if TYPE_CHECKING:
    from graphopt.problems.task import AssignTask


class AssignProblem(Problem):
    """A decision is a choice per op and head. `commit` lets a method answer without any evaluation (budget 0)."""

    task: "AssignTask"

    def _prepared(self) -> float:
        graph, task = self.graph, self.task
        self._pricing = Pricing(graph, task, self._cost)
        self.initial: Decision = task.initial(graph)
        self.best: Decision = self.initial
        self.best_plan: Plans | None = None  # set when the best came from keys: no decision describes it
        self.last_excess: NDArray[np.float64] = np.zeros(0)
        self._zobrist = np.random.default_rng(0x5EED).integers(
            1, 2**63, (graph.num_ops, len(task.heads)), dtype=np.uint64
        )
        self._around: tuple[Decision, int] | None = None  # the decision that flips were priced around, its digest
        return self._pricing.initial_cost

    @property
    def by_events(self) -> bool:
        """Whether prices are those of the event simulator."""
        return self._cost.by_events and self._cost.objective != "max_load"

    @cached_property
    def storage(self) -> LiveStorage | None:
        """What every op allocates, where prices are peaks of orders; None where they are not."""
        return self._cost.storage(self.graph)

    @cached_property
    def layout(self) -> KeyLayout:
        """What each random key decides."""
        return self.task.layout(self.graph)

    def spend(self, prices: int) -> None:
        """Bills prices that a method has computed by itself, from `storage`. Raises OutOfBudget where none is left."""
        if prices > self.remaining:
            raise OutOfBudget
        self.evals += prices

    def _best(self) -> tuple[Any, ...]:
        return self.best, self.best_plan

    def _solution(self) -> Solution:
        graph, task, default = self.graph, self.task, self._pricing.initial_plans
        given = task.canonical(graph, self.initial, default)
        if self.best_plan is not None:
            decided = described(task, self.trace_array(), self.best_plan, given)
            return Solution(graph, task, decided, self.best_plan, default)
        plan = default if self.best is self.initial else task.realise(graph, self.best[None])
        best = task.canonical(graph, self.best, plan)
        return Solution(graph, task, chosen(task, graph, self.trace_array(), best, given), plan, default)

    def cost(self, decisions: Decisions) -> NDArray[np.float64]:
        """[B] prices of decisions [B, N, H]. What exceeds the budget is not priced: OutOfBudget, after the rest."""
        allowed = min(len(decisions), self.remaining)
        priced = decisions[:allowed]
        cost = np.zeros(0)
        if allowed:
            prices = self._pricing.decisions(priced)
            cost, self.last_excess = prices.cost, prices.excess
            self.bill(cost, self.digest(priced).tolist(), lambda i: (priced[i].copy(), None))
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
        priced = self._pricing.ends(plans)
        if priced is None:
            raise Unsolved("when ops end is known to the simulator only; take cost=simulator, or algo=regal_local")
        return float(self._bill_keys(keys[None], plans, priced[0])[0]), priced[1]

    def _bill_keys(self, keys: Keys, plans: Plans, prices: Prices) -> F64:
        cost, self.last_excess, best = prices.cost, prices.excess, self.best
        # keys belong to the caller, who may reuse them
        self.bill(cost, self._key_digests(keys), lambda i: (best, plans[i].copy()))
        return cost

    def _key_digests(self, keys: Keys) -> list[int]:
        found: list[int] = digests(keys).tolist()
        return found

    def flips(self, decision: Decision) -> PricedFlips | None:
        """Delta pricing from a decision of a one-head binary task, where the cost model has it: one evaluation a flip,
        OutOfBudget as `cost`.

        Opening is free when `decision` has been priced (its price is known); the caller starts from such a decision.
        """
        return self._pricing.flips(decision, self._bill_flips)

    def _bill_flips(self, base: Decision, ops: NDArray[np.int64], price: Callable[[NDArray[np.int64]], F64]) -> F64:
        allowed = ops[: self.remaining]
        cost = np.zeros(0)
        if len(allowed):
            cost = price(allowed)
            self.bill(cost, self._digests(base, allowed), lambda i: (_flipped(base, int(allowed[i])), None))
        if len(allowed) < len(ops):
            raise OutOfBudget
        return cost

    def _digests(self, base: Decision, ops: NDArray[np.int64]) -> list[int]:
        """Of the decisions one flip away from `base`."""
        if self._around is None or self._around[0] is not base:
            self._around = base, int(self.digest(base[None])[0])
        changes = (self.digest_change(int(op), int(base[op, 0]), 1 - int(base[op, 0])) for op in ops)
        return [(self._around[1] + int(change)) % 2**64 for change in changes]

    def commit(self, decision: Decision) -> None:
        """Answers with a decision that was not priced. Counts only while nothing has been billed (a budget of 0)."""
        if self.evals == 0 and self.evals_cap == 0:
            self.best, self.best_plan = decision, None

    def commit_keys(self, keys: Keys) -> None:
        """The same with random keys [K]."""
        if self.evals == 0 and self.evals_cap == 0:
            self.best_plan = self.task.realise_keys(self.graph, keys[None].copy())

    def take_best(self, state: tuple[Decision, Plans | None]) -> None:
        """A decision, or the plan that random keys gave beside the best decision then."""
        self.best, self.best_plan = state

    def settle(self, judge: CostModel) -> None:
        """All in one call first: a judge that measures runs them together, and remembers."""
        states: list[tuple[Decision, Plans | None]] = [] if self.finalists is None else self.finalists.states
        decisions = [decision for decision, plan in states if plan is None]
        if decisions:
            judge.price(self.task.realise(self.graph, np.stack(decisions)))
        super().settle(judge)

    def default_state(self) -> tuple[Decision, Plans | None]:
        return self.initial, None

    def digest(self, decisions: Decisions) -> NDArray[np.uint64]:
        """[B] 64-bit digests: sums of a random-looking number per (op, head, choice), so a flip's is a difference."""
        sums: NDArray[np.uint64] = _mix(decisions, self._zobrist).sum((1, 2), dtype=np.uint64)
        return sums

    def digest_change(self, op: int, old: int, new: int) -> np.uint64:
        """What a change of head 0 at one op adds to the digest (modulo 2^64)."""
        pair = _mix(np.array([old, new]), self._zobrist[op, 0])
        return np.uint64((int(pair[1]) - int(pair[0])) % 2**64)


def _flipped(decision: Decision, op: int) -> Decision:
    out = decision.copy()
    out[op, 0] = 1 - out[op, 0]
    return out


def _mix(values: NDArray[np.integer[Any]], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + np.uint64(1)) * keys
        mixed ^= mixed >> np.uint64(31)
        return mixed * keys
