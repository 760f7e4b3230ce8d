"""`task=tiling`: subgraphs, their order, their tiles, recomputation and the tensors that stay in fast memory. A
decision is a schedule.

The file of an answer holds the arrays `schedule` and `default`, int32 [L] each, as
`graphopt.contests.tiling.tile_workload.encode` writes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.tiling.pricing_tiles import Verdict, judge
from graphopt.contests.tiling.referee import objections
from graphopt.contests.tiling.tile_latency import TileCosts
from graphopt.contests.tiling.tile_workload import CHOICE_NAME, SharedSlices, TileSchedule, TileWorkload, decode, encode
from graphopt.contests.tiling.workload_files import CARRIES, FILE_BYTES, schedule_of_json, workload_of
from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans, Role
from graphopt.core.utils.limits import parse_json
from graphopt.problems import answer_format
from graphopt.problems.answer_format import Arrays
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import Solver
from graphopt.problems.problem import Clock, Decided, OutOfBudget, Problem, Solution, Task

LOWER = 1 - 1e-9  # by less than that share, a price that a method has computed itself is no new best


@dataclass(frozen=True, eq=False)
class Tiled(Decided):
    """The best schedule and the default's."""

    schedule: TileSchedule
    default: TileSchedule

    format = "graphopt tiling 1"

    @classmethod
    def read(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        schedule, default = (decode(_numbers(arrays, name)) for name in ("schedule", "default"))
        return cls(header, answer_format.trace(arrays), schedule, default)

    @classmethod
    def from_text(cls, content: bytes, source: str) -> tuple[Self, Sequence[float]]:
        """Of the contest's JSON; it claims the sum of its latencies."""
        schedule, claims = schedule_of_json(parse_json(content, source, FILE_BYTES), source)
        return cls({}, np.zeros((0, 3)), schedule, schedule), (sum(claims),)

    def arrays(self) -> Arrays:
        return {"schedule": encode(self.schedule), "default": encode(self.default)}

    def plans(self, graph: Graph, task: "Tiling") -> Plans:
        return task.realise(graph, self.schedule)

    def default_plans(self, graph: Graph, task: "Tiling") -> Plans:
        return task.realise(graph, self.default)

    def facts(self) -> list[tuple[str, str]]:
        steps = self.schedule.steps
        runs, kept = sum(len(step.ops) for step in steps), sum(len(step.retain) for step in steps)
        twice = runs - len({op for step in steps for op in step.ops})
        text = f"{len(self.default.steps):,} -> {len(steps):,}; {twice:,} ops computed again, {kept:,} tensors retained"
        return [("subgraphs", text)]


def _numbers(arrays: Arrays, name: str) -> NDArray[Any]:
    found = answer_format.part(arrays, name)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not np.can_cast(found.dtype, np.int64):
        raise Unreadable(f"its {name} is no list of whole numbers: write it again")
    return found


class TilingProblem(Problem):
    """One workload to be scheduled, all that a tiler sees. An evaluation is the price of a schedule, or of a change
    whose price is that of its parts."""

    task: "Tiling"

    def _prepared(self) -> float:
        self.workload = self.task.workload(self.graph)
        self.initial: TileSchedule = self.task.initial(self.graph)
        self.best: TileSchedule = self.initial
        return self._price(self.initial)

    def cost(self, schedule: TileSchedule) -> float:
        """The price of a schedule, inf where it breaks a rule; one evaluation.

        Raises OutOfBudget when there is none left.
        """
        if not self.remaining:
            raise OutOfBudget
        price = self._price(schedule)
        self.bill(np.array([price]), [hash(schedule)], lambda _: schedule)
        return price

    def propose(self, price: float, make: Callable[[], TileSchedule]) -> None:
        """One evaluation: a price that a method has put together from those of subgraphs. The schedule is made, and
        priced by the cost model, only where that is lower than the best. Raises OutOfBudget when there is none left."""
        if price < self.best_cost * LOWER:
            self.cost(make())
        elif self.remaining:
            self.evals += 1
        else:
            raise OutOfBudget

    def _price(self, schedule: TileSchedule) -> float:
        return self._cost.price(self.task.realise(self.graph, schedule)).of(0).cost

    def take_best(self, state: TileSchedule) -> None:
        self.best = state

    def default_state(self) -> TileSchedule:
        return self.initial

    def _best(self) -> tuple[Any, ...]:
        return (self.best,)

    def _solution(self) -> Solution:
        return Solution(self.graph, self.task, Tiled({}, self.trace_array(), self.best, self.initial))


class Tiling(Task):
    """Without a search every op is a subgraph with its best tile. The core's sizes come with the graph; of the machine
    nothing counts. Plans have one choice, `schedule`, as numbers.

    shared_slices: how much room a slice takes that several operands of a subgraph read: its own `once`, or
    `per_operand`. clock: of seconds: the `wall`, or the `processor`.
    """

    noun = "a task that schedules subgraphs with tiles"
    needs = frozenset({CARRIES})
    roles: ClassVar[Mapping[str, Role]] = {CHOICE_NAME: Role.CHOICE}
    decided = Tiled

    def __init__(self, *, name: str, machine: Machine, shared_slices: SharedSlices, clock: Clock) -> None:
        self.name, self.machine, self.shared_slices, self.clock = name, machine, shared_slices, clock

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> TilingProblem:  # fmt: skip
        problem = TilingProblem(graph, self, cost, evals=evals, seconds=seconds, seed=seed)
        problem.tell_time_by(self.clock)
        return problem

    def workload(self, graph: Graph) -> TileWorkload:
        """A graph's workload, as this task reads the rules."""
        return workload_of(graph, self.shared_slices)

    def initial(self, graph: Graph) -> TileSchedule:
        """The schedule without any search."""
        workload = self.workload(graph)
        costs = TileCosts(workload)
        order = sorted(range(workload.num_ops), key=workload.rank.__getitem__)
        for op in order:
            if not costs.best(1 << op).width:
                raise GraphError(f"op {op} of {workload.name} fits into fast memory with no tile; give more capacity")
        return TileSchedule(tuple(costs.step(1 << op) for op in order))

    def realise(self, graph: Graph, schedule: TileSchedule) -> Plans:
        """The plan of a schedule: a batch of one."""
        shape = (1, graph.num_ops)
        numbers: Any = encode(schedule)[None]  # wider than choices of ops are
        return Plans(graph, np.zeros(shape, np.int16), np.zeros(shape), np.zeros(shape, np.bool_),
                     choices={CHOICE_NAME: numbers})  # fmt: skip

    def objections(self, plans: Plans) -> list[str]:
        """Errors that the second evaluator finds in a schedule, or in its price."""
        workload = self.workload(plans.graph)
        try:
            schedule = decode(plans.choices[CHOICE_NAME][0])
        except Unreadable as error:
            return [str(error)]
        verdict = judge(workload, schedule)
        return [verdict.wrong] if verdict.wrong else objections(workload, schedule, verdict.cost)


class Tiler(Solver[TilingProblem]):
    """Finds a schedule of subgraphs."""

    accepts = (Tiling,)


class TileTime(CostModel):
    """In the unit of time of the workload. A schedule that breaks a rule costs inf; `excess` is its bytes over the
    capacity, as a share of it, or 1. task: says how the rules are read."""

    objective = "runtime"
    needs: ClassVar[frozenset[str]] = frozenset({CARRIES})
    reads: ClassVar[frozenset[Role | str]] = frozenset({CHOICE_NAME})

    def __init__(self, *, name: str, task: Tiling) -> None:
        self.name, self._task = name, task

    def price(self, plans: Plans) -> Prices:
        workload = self._task.workload(plans.graph)
        verdicts = list[Verdict]()
        for numbers in plans.choices[CHOICE_NAME]:
            try:
                verdicts.append(judge(workload, decode(numbers)))
            except Unreadable as error:
                verdicts.append(Verdict((), float("inf"), str(error), 1.0))
        return Prices(np.array([v.cost for v in verdicts]), np.array([v.excess for v in verdicts]))
