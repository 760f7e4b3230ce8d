"""Assignments: tasks that give every op a choice under each of their heads.

`Choices` is the codec of their answers, `AssignTask` the contract of such tasks, and `Pricing` the one way to price
decisions about a graph. `AssignProblem` is the interface of an optimiser: it prices whole decisions or random keys.

Arrays of an answer's file:

- `op_names`: JSON list as bytes, [N]; a decision refers to ops by name.
- `choices`, `default`: int16 [N, H], the decision and the default heuristic's, heads in the header's order.
- `plan_device`, `plan_priority`, `plan_inline`, `plan_transfer`, `plan_choice_HEAD`: only when the best came from
  random keys and no decision describes it. Then the plan is the answer (`graphopt.core.plan` says how its orders are
  stored), and `choices` describes it under the header's `described` heads; under others it is the default's.

Shape legend: B decisions, N ops, H heads (kinds of choice per op), K choices of a head or random keys, F flips.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import DecisionError, Incompatible, Unreadable, Unsolved
from graphopt.core.graph import F64, I64, Graph
from graphopt.core.kernels import KernelLimits
from graphopt.core.live_storage import LiveStorage
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role, compact, expand, named_counts, same
from graphopt.core.utils.compiled import shared
from graphopt.problems import answer_format
from graphopt.problems.answer_format import Arrays, json_bytes
from graphopt.problems.cost_model import CostModel, Flips, FlipState, Prices, price_of, rows_per_thread
from graphopt.problems.keys import KeyLayout, KeyRole, Keys, choices, digests, layout
from graphopt.problems.problem import Decided, OutOfBudget, Problem, Solution, Task


@dataclass(frozen=True, eq=False)
class Choices(Decided):
    """A choice per op and head."""

    op_names: tuple[str, ...]  # [N]
    choices: Decision  # [N, H]
    default: Decision  # [N, H]
    plan: Arrays  # arrays of `graphopt.core.plan`; empty when `choices` is the answer

    format = "graphopt decision 1"

    @classmethod
    def read(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        answer_format.check_heads(header)
        names, counts = answer_format.op_names(arrays), [count for _, count in header["heads"]]
        if len(names) != header["graph"]["ops"]:
            raise Unreadable(f"it has {len(names):,} op names, its graph {header['graph']['ops']:,} ops")
        decided, default = (answer_format.choices(arrays, name, len(names), counts) for name in ("choices", "default"))
        plan = answer_format.plan(arrays, len(names), dict(header["heads"]))
        return cls(header, answer_format.trace(arrays), names, decided, default, plan)

    def arrays(self) -> Arrays:
        return {
            "op_names": json_bytes(list(self.op_names)),
            "choices": np.asarray(self.choices, np.int16),
            "default": np.asarray(self.default, np.int16),
            **{f"plan_{name}": array for name, array in self.plan.items()},
        }

    @property
    def heads(self) -> dict[str, int]:
        """In the order of the last axis of `choices`."""
        return {str(name): int(count) for name, count in self.header["heads"]}

    @property
    def described(self) -> tuple[str, ...]:
        return tuple(self.header.get("described", ())) if self.plan else tuple(self.heads)

    def facts(self) -> list[tuple[str, str]]:
        known = ", ".join(self.described) or "nothing else"
        text = f"a plan from random keys: its orders are its own; choices describe {known}"
        fused = self.header["config"]["task"].get("fuse")  # of tasks that decide where kernels run, or when
        alike = "kernels that the compiler's default fuses" if fused else "ops one by one"
        decided = [("priced", alike)] if fused is not None and "inline" not in self.heads else []
        return [*decided, *([("answer", text)] if self.plan else [])]

    def changed(self) -> NDArray[np.int64]:
        """Ops that differ from the default's choice."""
        return np.flatnonzero((self.choices != self.default).any(1))

    def op(self, name: str) -> int:
        """Index of the op of that name."""
        if name not in self.op_names:
            near = [n for n in self.op_names if name in n][:5]
            hint = f"; near: {', '.join(near)}" if near else "; `show` lists the names"
            raise DecisionError(f"graph {self.header['graph']['name']!r} has no op {name!r}{hint}")
        return self.op_names.index(name)

    def plans(self, graph: Graph, task: "AssignTask") -> Plans:
        return expand(graph, self.plan) if self.plan else task.realise(graph, self.choices[None])

    def default_plans(self, graph: Graph, task: "AssignTask") -> Plans:
        return task.realise(graph, self.default[None])

    def realise(self, graph: Graph, task: "AssignTask", choices: Decisions) -> Plans:
        """Plans of other choices [B, N, H]. Parts of a plan from random keys that choices do not describe stay."""
        plans = task.realise(graph, choices)
        if not self.plan:
            return plans
        kept = expand(graph, self.plan)[np.zeros(len(plans), np.int64)]
        stays = {name: array for name, array in kept.choices.items() if name not in self.described}
        return replace(plans, priority=kept.priority, transfer=kept.transfer, choices={**plans.choices, **stays})

    def must_fit(self, graph: Graph, task: "AssignTask", source: str) -> None:
        now = named_counts(task.heads)
        if list(now.items()) != list(self.heads.items()):
            raise DecisionError(f"{source} decides {self.heads}, but its task now decides {now}: solve the graph again")
        if len(self.op_names) != graph.num_ops:
            raise DecisionError(f"{source} names {len(self.op_names):,} ops, its graph has {graph.num_ops:,}: solve it "
                                "again")  # fmt: skip
        if not self.plan:
            return
        plan, machine, devices = self.plan, task.machine, task.machine.num_devices
        if int(plan["device"].max()) >= devices:
            raise DecisionError(f"{source} uses device {plan['device'].max()} of {devices} of machine={machine.name}")
        if "transfer" in plan and plan["transfer"].shape != (graph.num_tensors, devices):
            raise DecisionError(f"{source} is damaged: its transfer priorities are not those of {graph.num_tensors:,} "
                                f"tensors and {devices} devices")  # fmt: skip
        wanted, held = self.default_plans(graph, task).choices, expand(graph, plan).choices
        shapes, own = ({name: array.shape for name, array in named.items()} for named in (wanted, held))
        if own != shapes:
            decided = ", ".join(wanted) or "none"
            raise DecisionError(f"{source} is damaged: the further choices of its plan are not the task's ({decided})")


class AssignTask(Task):
    """One choice per op and head; `heads` are in the order of the last axis of decisions."""

    noun = "a task that assigns a choice to every op"
    decided = Choices
    heads: tuple[Head, ...]
    limits: KernelLimits | None = None  # caps on kernels, where the task decides fusion

    @abstractmethod
    def initial(self, graph: Graph) -> Decision:
        """The default heuristic's decision: the result without any search.

        Returns: [N, H] a choice for each of N ops under each of H heads, 0 where the op has none.
        """

    @abstractmethod
    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        """[N, H] True where the op has a choice under that head (the configurable nodes)."""

    def counts(self, graph: Graph) -> I64:
        """[N, H] how many choices an op has under a head, 1 where it has none. A task in which ops differ overrides it:
        the choices of an op are the first of its head's."""
        return np.where(self.mask(graph), [head.count for head in self.heads], 1)

    def requests_inlining(self, graph: Graph) -> bool:
        """Whether a decision asks which ops to inline, made legal by `core.kernels.legalise`, and nothing else."""
        return False

    def decides(self, role: Role) -> bool:
        """Whether one of its heads has that role."""
        return any(head.role is role for head in self.heads)

    def column(self, role: Role) -> int:
        """The position of its first head of that role. Raises Incompatible without one."""
        if not self.decides(role):
            names = ", ".join(head.name for head in self.heads)
            raise Incompatible(f"choose a task that decides {role.value}; task={self.name} decides {names}")
        return next(column for column, head in enumerate(self.heads) if head.role is role)

    @abstractmethod
    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        """Plans of decisions. Illegal requests are resolved in one fixed way, never refused.

        Args:
            decisions: [B, N, H].
        Returns: B plans.
        """

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Plans of random keys: `keys` is [B, K] in [0, 1] with K = `key_count(graph)` (for random-key methods). Unless
        overridden, a CHOICE key for every op under the first head, then under the second, ..."""
        parts = np.split(keys, len(self.heads), axis=1)
        chosen = [choices(part, head.count) for part, head in zip(parts, self.heads, strict=True)]
        return self.realise(graph, np.stack(chosen, 2))

    def layout(self, graph: Graph) -> KeyLayout:
        """What each random key decides."""
        return layout(graph, 1, *((KeyRole.CHOICE, column) for column in range(len(self.heads))))

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> "AssignProblem":  # fmt: skip
        return AssignProblem(graph, self, cost, evals=evals, seconds=seconds, seed=seed)

    def key_count(self, graph: Graph) -> int:
        """Number of random keys that describe one plan."""
        return len(self.layout(graph))

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        """The decision with refused requests removed: same plan, and every remaining request is in effect. plan: its
        plan (a batch of one), if known."""
        return decision

    @property
    def num_choices(self) -> int:
        """Largest number of choices over the heads."""
        return max(head.count for head in self.heads)


def chosen(task: AssignTask, graph: Graph, trace: NDArray[np.float64], best: Decision, default: Decision) -> Choices:
    """A decision and the default's, both canonical, so that only real differences show."""
    return Choices(_header(task), trace, graph.op_names, best, default, {})


def described(task: AssignTask, trace: NDArray[np.float64], plan: Plans, default: Decision) -> Choices:
    """The answer for a plan (a batch of one) without a known decision. Choices alone, if they describe it fully."""
    graph, devices = plan.graph, task.machine.num_devices
    choices, known = describe(task, default, plan)
    arrays = compact(plan, devices)
    if len(known) == len(task.heads) and same(arrays, compact(task.realise(graph, choices[None]), devices)):
        return chosen(task, graph, trace, choices, default)
    return Choices({**_header(task), "described": known}, trace, graph.op_names, choices, default, arrays)


def _header(task: AssignTask) -> dict[str, Any]:
    return {"heads": [[head.name, head.count] for head in task.heads]}


def describe(task: AssignTask, default: Decision, plan: Plans) -> tuple[Decision, list[str]]:
    """([N, H] the choices that describe a plan (a batch of one), their heads). Choices are the device of every op that
    has a kernel, which ops with a choice are inline, and further ones of the task's heads."""
    graph, choices, free, described = plan.graph, default.copy(), task.mask(plan.graph), []
    for column, head in enumerate(task.heads):
        if head.role is Role.DEVICE:
            runs = ~plan.inline[0]
            if len(graph.together):
                runs[graph.together[runs]] = True  # an op decides for others even where it has no kernel of its own
            choices[runs, column] = plan.device[0][runs]
        elif head.role is Role.FUSION and head.count == 2:
            choices[free[:, column], column] = plan.inline[0][free[:, column]]
        elif head.name in plan.choices and plan.choices[head.name].shape[1:] == (graph.num_ops,):
            choices[:, column] = plan.choices[head.name][0]
        else:
            continue
        described.append(head.name)
    return task.canonical(graph, choices), described


Count = Callable[[int], None]
"""Is told how many prices were asked for."""


def uncounted(prices: int) -> None:
    """For those who bill by themselves."""


class Pricing:
    """A graph under a task, priced by a cost model; `count` hears of every price."""

    def __init__(self, graph: Graph, task: AssignTask, cost: CostModel, count: Count = uncounted) -> None:
        self.graph, self.task, self.cost, self._count = graph, task, cost, count

    def decisions(self, decisions: Decisions) -> Prices:
        """[B] prices of decisions [B, N, H]."""
        if len(decisions) > 1 or self._followed is None:
            return self.plans(self.task.realise(self.graph, decisions))
        self._count(1)
        return Prices(np.array([self._followed.follow(decisions[0, :, 0].astype(np.uint8))]), np.zeros(1))

    @cached_property
    def _followed(self) -> Flips | None:
        """The decision priced last, from which the next one follows, where that is known to be exact."""
        if self.task.limits is None or not self.task.requests_inlining(self.graph):
            return None
        return self.cost.flips(self.graph, self.initial_plans.inline[0], self.task.limits)

    def keys(self, keys: Keys) -> Prices:
        """[B] prices of random keys [B, K]."""
        return self.plans(self.task.realise_keys(self.graph, keys))

    def plans(self, plans: Plans) -> Prices:
        """[B] prices of plans."""
        self._count(len(plans))
        return self.cost.price(plans)

    @cached_property
    def initial_cost(self) -> float:
        """The default heuristic's price: known to everybody, so it does not count."""
        return price_of(self.initial_plans, self.cost).cost

    @cached_property
    def initial_plans(self) -> Plans:
        """The default heuristic's plan, a batch of one."""
        return self.task.realise(self.graph, self.task.initial(self.graph)[None])

    def ends(self, plan: Plans) -> tuple[Prices, F64] | None:
        """The price of one plan, and when the kernel of each op ends [N]; None where the cost model does not say it."""
        self._count(len(plan))
        return self.cost.price_and_ends(plan)

    def flips(self, decision: Decision) -> "PricedFlips | None":
        """Exact delta pricing of store/inline flips from a decision, where the task decides nothing else and the cost
        model has it. Opening counts nothing: the decision's own price is known."""
        if [(head.role, head.count) for head in self.task.heads] != [(Role.FUSION, 2)] or self.task.limits is None:
            return None
        plan = self.task.realise(self.graph, decision[None])
        inner = self.cost.flips(self.graph, plan.inline[0], self.task.limits)
        return None if inner is None else PricedFlips(inner, self.task.mask(self.graph)[:, 0], self._count)


class PricedFlips:
    """`Flips` whose prices are counted, and their current state as a decision. free: [N] ops with a choice."""

    def __init__(self, inner: Flips, free: NDArray[np.bool_], count: Callable[[int], object]) -> None:
        self._inner, self._free, self._count = inner, free, count
        self._now: Decision | None = None

    @property
    def cost(self) -> float:
        """The price of the current state."""
        return self._inner.cost

    @property
    def decision(self) -> Decision:
        """[N, 1] the current state, read-only; views are always inline: they are no decision."""
        if self._now is None:
            self._now = (self._inner.inline & self._free)[:, None].astype(np.int16)
            self._now.flags.writeable = False
        return self._now

    def price(self, ops: NDArray[np.int64]) -> F64:
        """[F] prices after flipping each op alone."""
        self._count(len(ops))
        return self._inner.price(ops)

    def apply(self, op: int) -> None:
        """Makes the flip of `op` the current state; free, since its price is known."""
        self._inner.apply(op)
        self._now = None

    def follow(self, inline: NDArray[np.bool_]) -> None:
        """Makes the flags [N] of a legal plan the current state."""
        self._count(1)
        self._inner.follow(inline.astype(np.uint8))
        self._now = None

    def saved(self) -> FlipState:
        """The current state, to come back to."""
        return self._inner.saved()

    def restore(self, state: FlipState) -> None:
        """Makes a saved state the current one."""
        self._inner.restore(state)
        self._now = None


class AssignProblem(Problem):
    """A decision is a choice per op and head. `commit` lets a method answer without any evaluation (budget 0)."""

    task: AssignTask

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
        return self._pricing.initial_cost

    @property
    def by_events(self) -> bool:
        """Whether prices are those of the event simulator."""
        return self._cost.by_events and self._cost.objective != "max_load"

    @cached_property
    def storage(self) -> LiveStorage | None:
        """Allocations of every op, where prices are peaks of orders; None where they are not."""
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
        """Prices decisions and bills one evaluation for each.

        Args:
            decisions: [B, N, H].
        Returns: [B] prices; the lowest becomes `best` where it is lower.
        Raises: OutOfBudget where not all could be priced; those that could are counted.
        """
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
            rows = rows_per_thread(self.graph, allowed, self._cost.at_once)
            parts = [keys[first : min(first + rows, allowed)] for first in range(0, allowed, rows)]
            found = shared(self._cost.at_once, self._keys_priced, parts)
            cost, self.last_excess = (np.concatenate([each[i] for each in found]) for i in (0, 1))
            self._bill_keys(keys, cost, [digest for each in found for digest in each[2]])
        if allowed < len(keys):
            raise OutOfBudget
        return cost

    def cost_and_ends(self, keys: Keys) -> tuple[float, F64]:
        """The price of random keys [K], one evaluation, and when the kernel of each op ends [N], which the same
        simulation says. Raises Unsolved where the cost model does not say it."""
        if not self.remaining:
            raise OutOfBudget
        priced = self._pricing.ends(self.task.realise_keys(self.graph, keys[None]))
        if priced is None:
            raise Unsolved("when ops end is known to the simulator only; take cost=simulator, or algo=regal_local")
        cost, self.last_excess = priced[0].cost, priced[0].excess
        self._bill_keys(keys[None], cost, self._key_digests(keys[None]))
        return float(cost[0]), priced[1]

    def _keys_priced(self, keys: Keys) -> tuple[F64, F64, list[int]]:
        """([B] prices, [B] excess, digests) of keys [B, K]."""
        prices = self._pricing.keys(keys)
        return prices.cost, prices.excess, self._key_digests(keys)

    def _bill_keys(self, keys: Keys, cost: F64, digests: Sequence[int]) -> None:
        best = self.best
        # keys belong to the caller, who may reuse them
        self.bill(cost, digests, lambda i: (best, self.task.realise_keys(self.graph, keys[i : i + 1].copy())))

    def _key_digests(self, keys: Keys) -> list[int]:
        found: list[int] = digests(keys).tolist()
        return found

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


def _mix(values: NDArray[np.integer[Any]], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + np.uint64(1)) * keys
        mixed ^= mixed >> np.uint64(31)
        return mixed * keys
