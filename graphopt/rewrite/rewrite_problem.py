"""Problems of programs: their answers' codec (`Rewritten`), task, problem and solvers.

The file of an answer holds the names of the rules that were applied (`rules` of the header, in order) and the programs
`original` and `best` (JSON as bytes, `graphopt.rewrite.ir.program_files`), without the values of weights. Where single
rewrites led there, `steps` of the header says at which places: `[rule, [places of its roots]]` each. Places count the
terms of the program that the step changes, in the order in which they are met from its outputs, operands before the
term. So steps mean the same in every store of terms. `replaced` of the header names the ops of the user's model that
the best program no longer has.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.core.utils.marks import AtLeastOne, Cap
from graphopt.problems import answer_format
from graphopt.problems.answer_format import Arrays, json_bytes
from graphopt.problems.cost_model import CostModel, Price
from graphopt.problems.optimizer import Solver
from graphopt.problems.problem import Candidate, Decided, Equality, Finalists, OutOfBudget, Problem, Solution, Task
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.ir.alignment import differing_terms
from graphopt.rewrite.ir.program_files import from_json, to_json
from graphopt.rewrite.ir.terms import Outputs, Program, depth_first, reachable, substitute
from graphopt.rewrite.program_cost import TermPrice, prices_programs
from graphopt.rewrite.rules.matching import Match, Matcher
from graphopt.rewrite.rules.parsing import load_rules
from graphopt.rewrite.rules.rule import RuleSet
from graphopt.rewrite.rules.steps import Neighbours, RewriteStep, free, replayed, sweeps

TOGETHER = 8  # programs that are priced at once where each is priced as a whole
MOST_STEPS = 10_000
MOST_NUMBERS = 16  # times as many as in all tensors of the original; merged kernels have about six times as many
Rules = tuple[str, ...]  # names of the rules that were applied, in order
Step = tuple[str, list[int]]
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
        answer_format.check_rewriting(header)
        original = from_json(answer_format.read_text(arrays, "original"))
        best = from_json(answer_format.read_text(arrays, "best"), original.terms)
        if not best.opaque.keys() <= original.opaque.keys():
            raise Unreadable("its program has operations that the original lacks")
        best = replace(best, given=original.outputs, opaque=original.opaque)  # which have their costs
        return cls(header, answer_format.trace(arrays), original, best, can_run=False)

    def departs(self, original: Decided, task: "Rewriting", equality: Equality) -> str:
        """It starts from the same program, has no other inputs and weights, and both agree on random inputs; where the
        file brings its steps, they lead there by the task's rules."""
        from graphopt.rewrite.equivalence import disagreement

        if not isinstance(original, Rewritten) or to_json(self.original) != to_json(original.original):
            return "it starts from another program than the instance's"
        try:
            check_made_of(self.original, self.best, task.growth)
            steps = self.header.get("steps")
            if steps is not None and retraced(self.original, task.rules, steps)[-1] != self.best.outputs:
                return "its steps lead to another program"
        except UserError as error:
            return str(error)
        return disagreement(self.original, self.best, equality)

    def arrays(self) -> Arrays:
        return {"original": json_bytes(to_json(self.original)), "best": json_bytes(to_json(self.best))}

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self.header["rules"])

    @property
    def replaced(self) -> tuple[str, ...]:
        return tuple(self.header.get("replaced", ()))

    def plans(self, graph: Graph, task: "Rewriting") -> Plans:
        return task.realise(graph, self.best)

    def default_plans(self, graph: Graph, task: "Rewriting") -> Plans:
        return task.realise(graph, self.original)

    def facts(self) -> list[tuple[str, str]]:
        before, after = self.original.num_ops(), self.best.num_ops()
        return [("ops", f"{before:,} -> {after:,}; {len(self.rules):,} rules applied")]

    def operators(self) -> tuple[Counter[str], Counter[str]]:
        original, best = (
            Counter(p.terms.operation[t].name for t in p.live() if p.terms.runs[t]) for p in (self.original, self.best)
        )
        return original, best

    def price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        return _price_of(self.best, cost, plans)

    def default_price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        return _price_of(self.original, cost, plans)

    def violations(self) -> list[str]:
        """Results of the rewritten program that differ from the original's, by running both."""
        if not self.can_run or self.best.outputs == self.original.outputs:
            return []
        from graphopt.rewrite.equivalence import check_equivalence

        try:
            check_equivalence(self.original, self.best)
        except UserError as error:  # a mismatch, or why nothing can be run
            return [str(error)]
        return []

    def deliver(self, task: "Rewriting", path: Path) -> list[str] | None:
        """As ONNX, if the graph came so and the task is to."""
        from graphopt.rewrite.io.onnx_call import OnnxOrigin

        if not task.export or not isinstance(self.original.origin, OnnxOrigin):
            return None
        from graphopt.rewrite.io.onnx_export import deliver

        return deliver(self.original, self.best, self.rules, path)


def _price_of(program: Program, cost: CostModel, plans: Callable[[], Plans]) -> Price:
    """Of the program itself where the cost model takes programs, else of the plan of its graph."""
    if prices_programs(cost):
        return Price(cost.price_program(program), *cost.noise_of(program))
    return cost.price(plans()).of(0)


def check_made_of(original: Program, rewritten: Program, growth: float) -> None:
    """Raises UserError when a program reads inputs, weights or opaque operations that the original does not have, is of
    another form, or is far larger."""
    own = {original.terms.operation[term] for term in (*original.live(), *original.inputs)}
    for term in rewritten.live():
        operation = rewritten.terms.operation[term]
        if operation.name in ("input", "weight", "opaque") and operation not in own:
            raise UserError(f"it has the {operation.name} {str(operation.params[0])[:60]!r} as the original has not")
    if (rewritten.inputs, rewritten.output_names) != (original.inputs, original.output_names):
        raise UserError("its inputs and outputs are not the original's, in their order")
    if [rewritten.terms.types[o] for o in rewritten.outputs] != [original.terms.types[o] for o in original.outputs]:
        raise UserError("its outputs differ in number, shape or type from the original's")
    if rewritten.num_ops() > growth * original.num_ops():
        raise UserError(f"it has {rewritten.num_ops():,} ops, more than {growth:g} times the original's")
    numbers, most = (
        sum(prod(made.shape) for term in p.live() for made in p.terms.types[term]) for p in (rewritten, original)
    )
    if numbers > MOST_NUMBERS * most:
        raise UserError(f"its tensors have more than {MOST_NUMBERS} times as many numbers as the original's")


def retraced(original: Program, rules: RuleSet, steps: Any) -> list[Outputs]:
    """The outputs of the program, and those that each step of a file leads to. Raises UserError where a step is none by
    these rules."""
    if not isinstance(steps, list) or len(steps) > MOST_STEPS:
        raise UserError(f"its steps are no list of at most {MOST_STEPS:,}")
    terms, stages = original.terms, [original.outputs]
    named = {step[0] for step in steps if isinstance(step, list) and step and isinstance(step[0], str)}
    matchers = {rule.name: Matcher([rule], terms) for rule in rules if rule.name in named}
    for number, step in enumerate(steps):
        name, at = step if isinstance(step, list) and len(step) == 2 else ("", ())
        outputs = stages[-1]
        order = depth_first(terms, outputs)
        fine = isinstance(name, str) and isinstance(at, list)
        if not fine or not all(type(place) is int and 0 <= place < len(order) for place in at):
            raise UserError(f"its step {number} is no rule with the places of terms")
        roots = tuple(order[place] for place in at)
        if name not in matchers:
            raise UserError(f"its step {number} is by the rule {name[:60]!r}, which the task does not have")
        live = reachable(terms, outputs)
        found = next((match for match in matchers[name].matches(live) if match.roots == roots), None)
        made = None if found is None else matchers[name].apply(found)
        if made is None:
            raise UserError(f"its step {number}: the rule {name} changes nothing there")
        stages.append(substitute(terms, outputs, live, dict(zip(roots, made, strict=True))))
    return stages


class Rewriting(Task):
    """Which of the equivalent programs runs: those that verified rules lead to. They run on the machine's first device,
    fused as the compiler does by default.

    rules: packaged rule files. growth: programs of more than this many times the original's ops are not looked at (TASO
    and X-RLflow: 2). max_*: caps on the default fusion's kernels, for cost models that fuse. export: write the best
    program of a graph that came from an ONNX file as an ONNX model.
    """

    noun = "a task that rewrites the graph"
    needs = frozenset({"terms"})
    decided = Rewritten
    makes_programs = True

    def __init__(self, *, name: str, machine: Machine, rules: list[str], growth: AtLeastOne, max_ops: Cap,
                 max_inputs: Cap, max_duplicates: Cap, export: bool) -> None:  # fmt: skip
        self.name, self.machine, self.growth, self.export = name, machine, growth, export
        self.rules: RuleSet = load_rules(*rules)
        self._limits = KernelLimits(max_ops, max_inputs, max_duplicates)

    def initial(self, graph: Graph) -> Program:
        """The program as it was given."""
        return program_of(graph)

    def realise(self, graph: Graph, program: Program) -> Plans:
        """The plan of a program equivalent to the graph's: a batch of one, of its own rewritten graph."""
        rewritten = graph_of(program, name=graph.name, family=graph.family)
        inline = default_inline(rewritten, self._limits)[None]
        return Plans(rewritten, np.zeros(inline.shape, np.int16), np.zeros(inline.shape), inline)

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

    Where the cost model sums over ops, the costs of single ops (`term_price`) are a table that all methods share, and
    free; programs are billed. `alone_price` is the same of a cost model that measures whole programs, whose ops it
    measures one by one; sums of it are no prices. `neighbours` says where one rewrite leads.
    """

    task: "Rewriting"

    def _prepared(self) -> float:
        self.initial: Program = self.task.initial(self.graph)
        self.terms = self.initial.terms
        self.term_price = self._cost.term_price(self.terms) if prices_programs(self._cost) else None
        self.neighbours = Neighbours(self.task.rules, self.terms)
        self.best: Outputs = self.initial.outputs
        self.best_rules: Rules = ()
        self._from: dict[Outputs, tuple[Outputs, Match]] = {}  # a program -> the one that a rewrite made it of
        self.most_ops = int(self.task.growth * self.initial.num_ops())
        return self._prices([self.initial.outputs])[0]

    @cached_property
    def alone_price(self) -> TermPrice | None:
        return self._cost.alone(self.terms) if prices_programs(self._cost) else None

    def cost(self, outputs: Outputs, rules: Rules) -> float:
        """The price of a program; one evaluation. rules: those that led there.

        Raises OutOfBudget when there is none left.
        """
        return self.costs([(outputs, rules)])[0]

    def costs(self, states: Sequence[State]) -> list[float]:
        """The prices of programs and of the rules that led to each; one evaluation each. Measured ones run by turns.

        Raises OutOfBudget, before any is priced, when there are fewer left.
        """
        if not states:
            return []
        if self.remaining < len(states):
            raise OutOfBudget
        found = self._prices([outputs for outputs, _ in states])
        self.bill(np.array(found), [self.neighbours.digest(outputs) for outputs, _ in states], states.__getitem__)
        return found

    def _prices(self, several: Sequence[Outputs]) -> list[float]:
        if self.term_price is not None:
            return [float(sum(map(self.term_price, reachable(self.terms, outputs)))) for outputs in several]
        programs, cost = [replayed(self.initial, outputs) for outputs in several], self._cost
        if not prices_programs(cost):
            return [cost.price(self.task.realise(self.graph, program)).of(0).cost for program in programs]
        some = (programs[start : start + TOGETHER] for start in range(0, len(programs), TOGETHER))
        return [price for together in some for price in cost.price_programs(together)]

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
        """Programs with a rule applied at all its places, up to so many times over (rules/steps.py); not priced (their
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
        if self.term_price is not None:
            if steps:
                costs, digests = np.array([step.cost for step in steps]), [step.digest for step in steps]
                self.bill(costs, digests, lambda i: self._state(point, around.apply(steps[i].match), steps[i].match))
            return steps
        priced = list[RewriteStep]()
        for start in range(0, len(steps), TOGETHER):  # whole programs: measured ones run by turns, until time is over
            some = steps[start : start + TOGETHER]
            states = [self._state(point, around.apply(step.match), step.match) for step in some]
            priced += [step._replace(cost=cost) for step, cost in zip(some, self.costs(states))]
        return priced

    def take(self, point: Point, step: RewriteStep) -> Point:
        """Where a step of that program leads."""
        outputs, rules = self._state(point, self.neighbours.apply(point.outputs, step.match), step.match)
        return Point(outputs, rules, step.cost, step.ops)

    def _state(self, point: Point, outputs: Outputs, match: Match) -> State:
        """The state after a rewrite of a program, which is remembered."""
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
            place = {term: i for i, term in enumerate(depth_first(self.terms, before))}
            found.append((match.rule.name, [place[root] for root in match.roots]))
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
        """The rules that led to the best program go into the header, and the model's ops that it no longer has."""
        best = replayed(self.initial, self.best)
        steps = self.steps_to(self.best)
        names = self.initial.names
        gone = [names[term] for term in differing_terms(self.initial, best)[0] if term in names]
        header = {"rules": list(self.best_rules), **({} if steps is None else {"steps": steps}),
                  **({"replaced": list(dict.fromkeys(gone))} if gone else {})}  # fmt: skip
        return Solution(self.graph, self.task, Rewritten(header, self.trace_array(), self.initial, best, can_run=True))


class Rewriter(Solver[RewriteProblem]):
    """Finds an equivalent program."""

    accepts = (Rewriting,)


def cheapest_by(search: Rewriter, additive: CostModel, problem: RewriteProblem, evals: int, kept: int,
                ) -> list[Candidate]:  # fmt: skip
    """The result of a search by an additive model: its cheapest programs with the model's prices, the cheapest first;
    of those of one price, one. evals: of its own, not billed."""
    graph = graph_of(problem.initial, name=problem.graph.name, family=problem.graph.family)
    inner = problem.task.open(graph, additive, evals=evals, seconds=problem.seconds_cap - problem.seconds,
                              seed=int(problem.rng.integers(2**31)))  # fmt: skip
    inner.finalists = finalists = Finalists(inner.solution, kept)
    with contextlib.suppress(OutOfBudget):
        search.solve(inner)
    return finalists.candidates
