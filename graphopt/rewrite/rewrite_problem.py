"""Problems of programs: their answers' codec (`Rewritten`), tasks, problems and solvers.

The file of an answer holds the names of the rules that were applied (`rules` of the header, in order) and the programs
`original` and `best` (JSON as bytes, `graphopt.rewrite.ir.program_files`), without the values of weights. Where single
rewrites led there, `steps` of the header says at which places (`graphopt.rewrite.rules.retracing`).
"""

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.problems import answer_format
from graphopt.problems.answer_format import Arrays, json_bytes
from graphopt.problems.cost_model import CostModel, Price
from graphopt.problems.optimizer import Solver
from graphopt.problems.problem import Candidate, Decided, Equality, Finalists, OutOfBudget, Problem, Solution, Task
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_files import from_json, to_json
from graphopt.rewrite.ir.terms import Outputs, Program, reachable, runs
from graphopt.rewrite.program_cost import costs_of, price_of, prices_programs
from graphopt.rewrite.rules.matching import Match
from graphopt.rewrite.rules.retracing import Step, check_made_of, check_steps, step_of
from graphopt.rewrite.rules.rule import RuleSet
from graphopt.rewrite.rules.steps import Neighbours, RewriteStep, free, replayed
from graphopt.rewrite.rules.sweeps import sweeps

TOGETHER = 8  # programs that are priced at once where each is priced as a whole
Rules = tuple[str, ...]  # names of the rules that were applied, in order
State = tuple[Outputs, Rules]


@dataclass(frozen=True, eq=False)
class Rewritten(Decided):
    """The program as it was given and the best one; they share their terms."""

    original: Program
    best: Program
    can_run: bool  # False of programs from files, which hold no weights

    format = "graphopt rewriting 1"

    @classmethod
    def read(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        answer_format.rule_names(header)
        original = from_json(answer_format.read_text(arrays, "original"))
        best = from_json(answer_format.read_text(arrays, "best"), original.terms)
        if not best.opaque.keys() <= original.opaque.keys():
            raise Unreadable("its program has operations that the original lacks")
        best = replace(best, given=original.outputs, opaque=original.opaque)  # which say what they cost
        return cls(header, answer_format.trace(arrays), original, best, can_run=False)

    def departs(self, original: Decided, task: "RewriteTask", equality: Equality) -> str:
        """It starts from the same program, is made of nothing else, and both agree on what nobody could know; where the
        file brings its steps, they lead there by the task's rules."""
        from graphopt.rewrite.equivalence import disagreement

        if not isinstance(original, Rewritten) or to_json(self.original) != to_json(original.original):
            return "it starts from another program than the instance's"
        try:
            check_made_of(self.original, self.best, task.growth)
            if "steps" in self.header:
                check_steps(self.original, self.best, task.rules, self.header["steps"])
        except UserError as error:
            return str(error)
        return disagreement(self.original, self.best, equality)

    def arrays(self) -> Arrays:
        return {"original": json_bytes(to_json(self.original)), "best": json_bytes(to_json(self.best))}

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self.header["rules"])

    def plans(self, graph: Graph, task: "RewriteTask") -> Plans:
        return task.realise(graph, self.best)

    def default_plans(self, graph: Graph, task: "RewriteTask") -> Plans:
        return task.realise(graph, self.original)

    def facts(self) -> list[tuple[str, str]]:
        before, after = (sum(counts.values()) for counts in self.operators())
        return [("ops", f"{before:,} -> {after:,}; {len(self.rules):,} rules applied")]

    def operators(self) -> tuple[Counter[str], Counter[str]]:
        return _operators(self.original), _operators(self.best)

    def price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        return price_of(self.best, cost, plans)

    def default_price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        return price_of(self.original, cost, plans)

    def violations(self) -> list[str]:
        """Results of the rewritten program that differ from the original's, by running both."""
        if not self.can_run or self.best.outputs == self.original.outputs:
            return []
        from graphopt.rewrite.equivalence import differences

        return differences(self.original, self.best)

    def deliver(self, task: "RewriteTask", path: Path) -> list[str] | None:
        """As ONNX, if the graph came so and the task is to."""
        from graphopt.rewrite.io.onnx_call import OnnxOrigin

        if not task.export or not isinstance(self.original.origin, OnnxOrigin):
            return None
        from graphopt.rewrite.io.onnx_export import deliver

        return deliver(self.original, self.best, self.rules, path)


def _operators(program: Program) -> Counter[str]:
    terms = program.terms
    return Counter(terms.operation[t].name for t in program.live() if runs(terms, t))


class RewriteTask(Task):
    """Programs that rules lead to."""

    noun = "a task that rewrites the graph"
    needs = frozenset({"terms"})
    decided = Rewritten
    makes_programs = True
    rules: RuleSet
    growth: float  # programs of more than this many times the original's ops are not looked at
    export: bool  # write the best program of an ONNX model as one

    @abstractmethod
    def initial(self, graph: Graph) -> Program:
        """The program as it was given."""

    @abstractmethod
    def realise(self, graph: Graph, program: Program) -> Plans:
        """The plan of a program equivalent to the graph's: a batch of one, of its own rewritten graph."""

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> "RewriteProblem":  # fmt: skip
        return RewriteProblem(graph, self, cost, evals=evals, seconds=seconds, seed=seed)


class Point(NamedTuple):
    """A program that a search has come to: its price, its ops that run, and the rules that led there."""

    outputs: Outputs
    rules: Rules
    cost: float
    ops: int


class RewriteProblem(Problem):
    """A decision is a program; an evaluation is the price of a whole one.

    Where the cost model sums over ops, what an op costs alone (`term_price`) is a table that all methods share, and
    free; programs are billed. `neighbours` says where one rewrite leads.
    """

    task: "RewriteTask"

    def _prepared(self) -> float:
        self.initial: Program = self.task.initial(self.graph)
        self.terms = self.initial.terms
        self.term_price = self._cost.term_price(self.terms) if prices_programs(self._cost) else None
        self.neighbours = Neighbours(self.task.rules, self.terms)
        self.best: Outputs = self.initial.outputs
        self.best_rules: Rules = ()
        self._from: dict[Outputs, tuple[Outputs, Match]] = {}  # a program -> the one that a rewrite made it of
        self.most_ops = int(self.task.growth * self.initial.num_ops())
        return self._price(self.initial.outputs)

    def cost(self, outputs: Outputs, rules: Rules) -> float:
        """The price of a program; one evaluation. rules: what led there.

        Raises OutOfBudget when there is none left.
        """
        if not self.remaining:
            raise OutOfBudget
        price = self._price(outputs)
        self.bill(np.array([price]), [self.neighbours.digest(outputs)], lambda _: (outputs, rules))
        return price

    def costs(self, states: Sequence[State]) -> list[float]:
        """The prices of programs and of the rules that led to each; one evaluation each. Measured ones run by turns.

        Raises OutOfBudget, before any is priced, when there are fewer left.
        """
        if not states:
            return []
        if self.remaining < len(states):
            raise OutOfBudget
        found = [price for start in range(0, len(states), TOGETHER)
                 for price in self._some([outputs for outputs, _ in states[start : start + TOGETHER]])]  # fmt: skip
        self.bill(np.array(found), [self.neighbours.digest(outputs) for outputs, _ in states], states.__getitem__)
        return found

    def _some(self, several: Sequence[Outputs]) -> list[float]:
        return self._prices(several) if self.term_price is None else [self._price(outputs) for outputs in several]

    def _price(self, outputs: Outputs) -> float:
        if self.term_price is not None:
            return float(sum(map(self.term_price, reachable(self.terms, outputs))))
        return self._prices([outputs])[0]

    def _prices(self, several: Sequence[Outputs]) -> list[float]:
        programs = [replayed(self.initial, outputs) for outputs in several]
        return costs_of(programs, self._cost, lambda program: self.task.realise(self.graph, program))

    def start(self) -> Point:
        """The program as it was given."""
        return Point(self.initial.outputs, (), self.initial_cost, self.initial.num_ops())

    def digest(self, point: Point) -> int:
        """Equal for equal programs, as that of a step."""
        return self.neighbours.digest(point.outputs)

    def steps(self, point: Point) -> list[RewriteStep]:
        """All rewrites of a program, not priced (`cost` is 0) and not billed."""
        return list(self.neighbours.around(point.outputs, free).steps())

    def sweeps(self, point: Point, waves: int) -> list[Point]:
        """Programs with a rule applied at all its places, up to so many times over (rules/sweeps.py); not priced (their
        cost is 0) and not billed."""
        found = sweeps(self.neighbours, point.outputs, waves, self.most_ops)
        around = self.neighbours.around(point.outputs, free)
        return [self.take(point, step) for step in around.steps(found, alone=False)]

    def expand(self, point: Point, extra: Sequence[Match] = ()) -> list[RewriteStep]:
        """All rewrites of a program with their prices, one evaluation each; as many as the budget allows.

        extra: rewrites of the program that no rule describes (`neighbours.found`).

        Raises OutOfBudget when there is none left. The best program is kept even if the search does not take it.
        """
        around = self.neighbours.around(point.outputs, self.term_price or free)
        left = self.remaining
        if not left:
            raise OutOfBudget
        steps = [step for step, _ in zip(around.steps(extra), range(left))]
        if self.term_price is None:
            return self._priced(point, steps, [around.apply(step.match) for step in steps])
        if steps:
            costs, digests = np.array([step.cost for step in steps]), [step.digest for step in steps]
            self.bill(costs, digests, lambda i: self._state(point, around.apply(steps[i].match), steps[i].match))
        return steps

    def _priced(self, point: Point, steps: list[RewriteStep], outputs: list[Outputs]) -> list[RewriteStep]:
        """Steps with the prices of whole programs, several at a time: measured ones run by turns."""
        found = list[RewriteStep]()
        for start in range(0, len(steps), TOGETHER):
            if not self.remaining:
                raise OutOfBudget
            some, made = steps[start : start + TOGETHER], outputs[start : start + TOGETHER]
            costs = self._prices(made)
            self.bill(np.array(costs), [self.neighbours.digest(o) for o in made],
                      partial(self._state_of, point, made, some))  # fmt: skip
            found += [step._replace(cost=cost) for step, cost in zip(some, costs)]
        return found

    def take(self, point: Point, step: RewriteStep) -> Point:
        """Where a step of that program leads."""
        outputs, rules = self._state(point, self.neighbours.apply(point.outputs, step.match), step.match)
        return Point(outputs, rules, step.cost, step.ops)

    def _state_of(self, point: Point, made: Sequence[Outputs], steps: Sequence[RewriteStep], i: int) -> State:
        return self._state(point, made[i], steps[i].match)

    def _state(self, point: Point, outputs: Outputs, match: Match) -> State:
        """What a rewrite of a program leads to, which is remembered."""
        if outputs != self.initial.outputs:
            self._from.setdefault(outputs, (point.outputs, match))
        return outputs, (*point.rules, match.rule.name)

    def steps_to(self, outputs: Outputs) -> list[Step] | None:
        """The single rewrites by rules of the task that led from the program as it was given to this one; None where
        something else did, such as an e-graph or a sweep."""
        known, found, seen = {*self.task.rules}, list[Step](), set[Outputs]()
        while outputs != self.initial.outputs:
            before, match = self._from.get(outputs, (outputs, None))
            if match is None or match.rule not in known or outputs in seen:
                return None
            seen.add(outputs)
            found.append(step_of(self.terms, before, match))
            outputs = before
        return found[::-1]

    def settle(self, judge: CostModel) -> None:
        """As of every problem; a judge that measures races all finalists in the same processes."""
        if self.finalists is not None and self.finalists.states and prices_programs(judge):
            judge.price_programs([replayed(self.initial, outputs) for outputs, _ in self.finalists.states])
        super().settle(judge)

    def take_best(self, state: State) -> None:
        self.best, self.best_rules = state

    def default_state(self) -> State:
        return self.initial.outputs, ()

    def _best(self) -> tuple[Any, ...]:
        return (self.best,)

    def _solution(self) -> Solution:
        """The rules that led to the best program go into the header."""
        best = replayed(self.initial, self.best)
        steps = self.steps_to(self.best)
        header = {"rules": list(self.best_rules), **({} if steps is None else {"steps": steps})}
        return Solution(self.graph, self.task, Rewritten(header, self.trace_array(), self.initial, best, can_run=True))


class Rewriter(Solver[RewriteProblem]):
    """Finds an equivalent program."""

    accepts = (RewriteTask,)


def cheapest_by(search: Rewriter, additive: CostModel, problem: RewriteProblem, evals: int, kept: int,
                ) -> list[Candidate]:  # fmt: skip
    """What a search by an additive model leaves of a problem: its cheapest programs with the model's prices, the
    cheapest first; of those of one price, one. evals: of its own, not billed."""
    graph = graph_of(problem.initial, name=problem.graph.name, family=problem.graph.family)
    inner = problem.task.open(graph, additive, evals=evals, seconds=problem.seconds_cap - problem.seconds,
                              seed=int(problem.rng.integers(2**31)))  # fmt: skip
    inner.finalists = finalists = Finalists(inner.solution, kept)
    with contextlib.suppress(OutOfBudget):
        search.solve(inner)
    return finalists.candidates
