"""`compiler_policy`: a compiler's decisions in the order of predicted times, the fastest first.

A round has three steps. Hundreds of changes of the best decision are simulated: all that `compiler_search` would try,
and sets of ops whose flips are simulated to help. The fastest of these are lowered, which predicts the times of their
code. The codes predicted to be fastest are measured, a few at a time. The next round starts from the best decision, and
also measures combinations of changes that helped.

Predictions may be wrong. Measured times show their errors on this program (`beliefs`); from then on, decisions come in
the order of expected improvement. Beliefs may be wrong as well. So a few evaluations of every round, and half of them
after a round without an improvement, take changes in their listed order. Knobs come first there, one by one; those that
set how source is compiled lead, as predictions know least of them.

Simulated times are those of `cost=calibrated` (milliseconds each), predicted ones those of `cost=generated_code` (a
second each). Where the simulator does not know a setting, its predicted gain alone is added to the simulated one. The
order is by the mean of both, as logarithms; ties go to decisions with more knobs that set how source is compiled.

With a budget of 0 nothing is measured, and the answer is the first code in that order. Code that is predicted to be
slower than the default is left out. Unless the predicted gain is large enough to be likely, the default stays. With a
budget that code is measured first. The last evaluations are those of `compiler_search`: they take back parts of the
best decision.

Shape legend: N ops, H heads, P decisions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import numpy as np

from graphopt.core.compiler import KNOBS
from graphopt.core.graph import F64
from graphopt.core.plan import Decision, Decisions, Role
from graphopt.core.utils.marks import Between, Few, OwnFolder, Share, Workers
from graphopt.hardware.costs.calibrated import Calibrated
from graphopt.hardware.costs.inductor import GeneratedCode
from graphopt.hardware.requests import request_of
from graphopt.hardware.search.beliefs import Beliefs, Kinds, Traits, traits
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.compiler_search import (
    Changes,
    Climb,
    OnlySpare,
    changed,
    knob_columns,
    rules,
    single_knobs,
)
from graphopt.search.walks.moves import alike

SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)  # ops that are simulated to help, together
LEAST = 1e-4  # relative, of a simulated time that helps
COMPILES = frozenset(knob.name for knob in KNOBS if knob.compiles)
HOPS = 3  # around ops that look alike
UNMEASURED = 2  # rounds without a price
UNTOLD = 2  # after a round without improvement one in so many is measured in the order of candidates
DIGITS = 6  # of predicted logarithms that count as equal
INSTANT = 1e-12  # seconds, at least: without loops of its own a program is predicted to take none
UNMOVED = 1e-9  # of logarithms of simulated times: the simulator does not know the setting
Many = Annotated[int, Between(1, 5000)]
Blind = Annotated[int, Between(0, 64)]
Predicted = tuple[float, str, Kinds]  # seconds, inf where it cannot be lowered; digest of the code
Predict = Callable[[AssignProblem, Decisions], Sequence[Predicted]]
"""Of decisions [P, N, H] about a problem's graph."""
Simulate = Callable[[AssignProblem, Decisions], F64]
"""Seconds [P] of the same."""


def candidates(problem: AssignProblem, climb: Climb, simulated: Callable[[Decisions], F64],
               come: int = 0) -> list[Decision]:  # fmt: skip
    """Changes of the best decision: single knobs, those of how source is compiled first, after the `come` ones that
    came before; rules, classes of alike ops, and sets of ops whose flips are simulated to help most; rules and sets
    with each knob; settings of all knobs; single flips."""
    knobs = sorted(single_knobs(problem), key=lambda part: problem.task.heads[part[0][1]].name not in COMPILES)
    knobs = [*knobs[come % len(knobs) :], *knobs[: come % len(knobs)]] if knobs else []
    wholes: list[Changes] = [climb.fusion(rule.ops, rule.choice) for rule in rules(problem.graph, climb.free)]
    flips = [climb.flip(np.array([op])) for op in np.flatnonzero(climb.free)]
    wholes += _helpful(climb, flips, simulated)
    classes = [climb.flip(ops) for of in alike(problem.graph, climb.free, HOPS) for ops in of]
    with_knobs = ([*whole, *knob] for whole, knob in product(wholes, knobs))
    parts = [*knobs, *wholes, *classes, *with_knobs, *_settings(problem), *flips]
    return [made for part in parts if (made := changed(climb.decision, part)) is not None]


def _helpful(climb: Climb, flips: Sequence[Changes], simulated: Callable[[Decisions], F64]) -> Iterator[Changes]:
    """The flips that help most alone, together."""
    made = [(part, decision) for part in flips if (decision := changed(climb.decision, part)) is not None]
    if not made:
        return
    times = simulated(np.stack([climb.decision, *(decision for _, decision in made)]))
    order = np.argsort(times[1:], kind="stable")
    helpful = [made[i][0] for i in order.tolist() if times[1 + i] < times[0] * (1 - LEAST)]
    for size in dict.fromkeys(min(size, len(helpful)) for size in SIZES):
        yield [slot for part in helpful[:size] for slot in part]


def _settings(problem: AssignProblem) -> Iterator[Changes]:
    """All settings of all knobs."""
    columns = knob_columns(problem)
    for setting in product(*(range(problem.task.heads[column].count) for column in columns)):
        yield [(0, column, choice) for column, choice in zip(columns, setting, strict=True)]


class CompilerPolicy(Optimizer):
    """considered: decisions that are simulated in a round. pool: of these, those that are lowered. each: evaluations of
    a round; untold: of these, how many take changes in their listed order. sure: with a budget of 0, the relative gain
    that must be predicted for the default to be left. margin: as of `compiler_search`. preset: as of `cost=calibrated`.
    code: false: all code takes the same time, so that the simulator alone decides. table, builders: as of
    `cost=generated_code`."""

    needs_roles = frozenset({Role.FUSION})
    needs = frozenset({"compiled_program"})

    def __init__(self, *, name: str, considered: Many, pool: Many, each: Few, untold: Blind, sure: Share,
                 margin: Share, preset: str | None, code: bool, table: OwnFolder,
                 builders: Workers) -> None:  # fmt: skip
        self.name, self.considered, self.pool, self.margin = name, considered, pool, margin
        self.each, self.untold, self.sure = each, untold, sure
        predicting = GeneratedCode(
            name=name, preset=preset, table=table, environment=None, builders=builders, build_seconds=120
        )
        self.predict: Predict = predictions(predicting, code=code)
        self.simulate: Simulate = simulations(Calibrated(name=name, preset=preset))

    def solve(self, problem: AssignProblem) -> None:
        climb = Climb(problem, self.each, self.margin)
        codes = _Codes(problem, self.predict, self.simulate)
        score, predicted = self._unmeasured(climb, codes)
        if problem.evals_cap == 0:
            return problem.commit(predicted if score < math.log1p(-self.sure) else problem.initial)
        with suppress(OnlySpare):
            self._rounds(climb, codes, predicted)
        climb.take_back()

    def _rounds(self, climb: Climb, codes: "_Codes", predicted: Decision) -> None:
        problem, tried, came = codes.problem, codes.take_first([predicted], 1), 0
        while problem.open:
            base, before = climb.decision, climb.score
            costs = climb.measure(np.stack(tried)) if tried else np.zeros(0)
            codes.learn(tried, costs)
            helped = [one for one, cost in sorted(zip(tried, costs.tolist()), key=itemgetter(1))
                      if cost < before * (1.0 - self.margin)]  # fmt: skip
            found = _distinct(problem, candidates(problem, climb, codes.simulated, came), self.considered)
            codes.lower(codes.most_promising(found, self.pool))
            tried = codes.take_first(_together(base, helped), 1)
            blind = min(self.each, self.untold if helped else max(self.untold, self.each // UNTOLD))
            tried += codes.take_most_promising(max(0, self.each - blind - len(tried)))
            tried += codes.take_first(found, self.each - len(tried))
            came += blind
            if not tried:
                return

    def _unmeasured(self, climb: Climb, codes: "_Codes") -> tuple[float, Decision]:
        """The lowest score around the default, then around a decision that is faster, and its decision."""
        score = 0.0
        for _ in range(UNMEASURED):
            found = _distinct(codes.problem, candidates(codes.problem, climb, codes.simulated), self.considered)
            codes.lower(codes.fastest(found, self.pool))
            lowest, decision = codes.best()
            if lowest >= score:
                break
            score, climb.decision = lowest, decision
        predicted, climb.decision = climb.decision, codes.problem.initial
        return score, predicted


def _together(base: Decision, helped: Sequence[Decision]) -> list[Decision]:
    """The first two that helped put together, the first three, and so on; base: what they changed."""
    made, out = base.copy(), list[Decision]()
    for decision in helped:
        made = np.where((decision != base) & (made == base), decision, made)
        out.append(made)
    return out[1:]


def _distinct(problem: AssignProblem, decisions: Sequence[Decision], most: int) -> Decisions:
    found = {decision.tobytes(): decision for decision in decisions}
    return np.stack([problem.initial, *[*found.values()][:most]])[1:]  # none of a graph without choices


class _Code(NamedTuple):
    """Generated code of a decision, and its rank: score, then unset."""

    score: float  # mean of the simulated and the predicted logarithm of time over the default's
    unset: int  # knobs that would set how source is compiled
    predicted: float  # logarithm of time over the default's
    digest: str
    decision: Decision
    traits: Traits


class _Codes:
    """Generated codes of a problem's graph: simulated and lowered decisions, and the codes that were not measured."""

    def __init__(self, problem: AssignProblem, predict: Predict, simulate: Simulate) -> None:
        self.problem, self._predict, self._simulate = problem, predict, simulate
        self._seconds: dict[bytes, float] = {}  # decision -> seconds
        self._lowered: dict[bytes, str] = {}  # decision -> digest of its code
        self._open: dict[str, _Code] = {}  # digest -> code that may be measured
        self._taken: dict[bytes, _Code] = {}  # decision -> code that was taken to be measured
        self._beliefs = Beliefs()
        initial = problem.initial[None]
        self._start = float(np.log(self.simulated(initial)[0]))
        seconds, digest, self._kinds = self._predict(problem, initial)[0]
        self._default, self._closed = math.log(seconds), {digest}
        self._knob_gains = self._knobs_unknown_to_simulator()

    def simulated(self, decisions: Decisions) -> F64:
        """Seconds [P] of decisions, each simulated once."""
        fresh = {one.tobytes(): one for one in decisions if one.tobytes() not in self._seconds}
        if fresh:
            self._seconds |= zip(fresh, self._simulate(self.problem, np.stack([*fresh.values()])).tolist(), strict=True)
        return np.array([self._seconds[one.tobytes()] for one in decisions])

    def _knobs_unknown_to_simulator(self) -> dict[tuple[int, int], float]:
        """(head, choice) of knobs that leave simulated times unmoved -> predicted logarithm of time over the
        default's."""
        made = [(part[0], changed(self.problem.initial, part)) for part in single_knobs(self.problem)]
        known = [(slot, decision) for slot, decision in made if decision is not None]
        if not known:
            return {}
        decisions = np.stack([decision for _, decision in known])
        still = np.abs(np.log(self.simulated(decisions)) - self._start) < UNMOVED
        if not still.any():
            return {}
        predicted = self._predict(self.problem, decisions[still])
        slots = [slot[1:] for (slot, _), flat in zip(known, still, strict=True) if flat]
        return {slot: math.log(seconds) - self._default for slot, (seconds, *_) in zip(slots, predicted, strict=True)}

    def _estimated(self, decisions: Decisions) -> F64:
        """Logarithms [P] of time over the default's, without lowering."""
        columns = knob_columns(self.problem)
        settings = [sum(self._knob_gains.get((c, int(one[0, c])), 0.0) for c in columns) for one in decisions]
        estimated: F64 = np.log(self.simulated(decisions)) - self._start + np.array(settings)
        return estimated

    def fastest(self, decisions: Decisions, most: int) -> Decisions:
        """The decisions of least estimated time that were not lowered before."""
        fresh = self._fresh(decisions)
        unset = np.array([self._unset(one) for one in fresh], np.int64)
        return fresh[np.lexsort((unset, self._estimated(fresh).round(DIGITS)))[:most]]

    def most_promising(self, decisions: Decisions, most: int) -> Decisions:
        """The decisions of largest expected improvement that were not lowered before."""
        fresh = self._fresh(decisions)
        return fresh[self._beliefs.most_promising([self._traits(one) for one in fresh], self._estimated(fresh), most)]

    def _fresh(self, decisions: Decisions) -> Decisions:
        return decisions[[one.tobytes() not in self._lowered for one in decisions]]

    def _unset(self, decision: Decision) -> int:
        """How many knobs of how source is compiled the decision leaves unset."""
        heads = self.problem.task.heads
        return sum(decision[0, c] == 0 for c in knob_columns(self.problem) if heads[c].name in COMPILES)

    def lower(self, decisions: Decisions) -> None:
        """Predicts their times. New code may be measured from then on."""
        if not len(decisions):
            return
        predicted = self._predict(self.problem, decisions)
        for one, rough, (seconds, digest, kinds) in zip(decisions, self._estimated(decisions), predicted, strict=True):
            self._lowered[one.tobytes()] = digest
            if math.isfinite(seconds) and digest not in self._closed:
                logarithm = math.log(seconds) - self._default
                score = round((logarithm + float(rough)) / 2, DIGITS)
                code = _Code(score, self._unset(one), logarithm, digest, one, self._traits(one, kinds))
                self._open.setdefault(digest, code)

    def take_most_promising(self, most: int) -> list[Decision]:
        """Lowered decisions of largest expected improvement, one of each code."""
        codes = sorted(self._open.values(), key=lambda code: code[:2])
        scores = np.array([code.score for code in codes])
        places = self._beliefs.most_promising([code.traits for code in codes], scores, most)
        return [self._take(codes[place].digest) for place in places]

    def learn(self, decisions: Sequence[Decision], costs: F64) -> None:
        """Measured costs of decisions that were taken; decisions that do not run teach nothing."""
        for one, cost in zip(decisions, costs.tolist()):
            code = self._taken[one.tobytes()]
            if math.isfinite(cost):
                self._beliefs.learn(code.traits, code.score, math.log(cost / self.problem.initial_cost))

    def _traits(self, decision: Decision, kinds: Kinds | None = None) -> Traits:
        """Of a decision, and of its code where it was lowered."""
        columns = set(knob_columns(self.problem))
        slots = [(op, head) for op, head in np.argwhere(decision != self.problem.initial).tolist()]
        asked = [slot for slot in slots if slot[1] not in columns]
        knobs = [(head, int(decision[op, head]), "knob") for op, head in slots if head in columns]
        return traits(asked, knobs, kinds or {}, self._kinds)

    def best(self) -> tuple[float, Decision]:
        """The lowest score among codes that are not predicted to be slower, and its decision; the default has 0."""
        known = (code for code in self._open.values() if code.predicted <= 0)
        found = min(known, key=lambda code: code[:2], default=None)
        if found is None or found.score >= 0:
            return 0.0, self.problem.initial
        return found.score, found.decision

    def take_first(self, decisions: Iterable[Decision], most: int) -> list[Decision]:
        """The first of decisions whose code is new, whatever its predicted time."""
        out: list[Decision] = []
        for one in decisions:
            if len(out) == most:
                break
            if one.tobytes() not in self._lowered:
                self.lower(one[None])
            if (digest := self._lowered[one.tobytes()]) in self._open:
                out.append(self._take(digest))
        return out

    def _take(self, digest: str) -> Decision:
        self._closed.add(digest)
        code = self._open.pop(digest)
        self._taken[code.decision.tobytes()] = code
        return code.decision


def predictions(model: GeneratedCode, *, code: bool = True) -> Predict:
    """Of code that is lowered to; code: false: the same time of all."""

    def predicted(line: Mapping[str, Any]) -> Predicted:
        if "failure" in line:
            return math.inf, "", {}
        kinds = model.time.parts(line["features"]) if code else {}
        return max(sum(kinds.values()) * 1e-9, INSTANT) if code else 1.0, line["digest"], kinds

    def predict(problem: AssignProblem, decisions: Decisions) -> list[Predicted]:
        plans = problem.task.realise(problem.graph, decisions)
        return [
            predicted(line) for line in model.lowered(problem.graph, [request_of(plans, b) for b in range(len(plans))])
        ]

    return predict


def simulations(model: Calibrated) -> Simulate:
    """By the simulator, without lowering."""

    def simulate(problem: AssignProblem, decisions: Decisions) -> F64:
        return np.maximum(model.price(problem.task.realise(problem.graph, decisions)).cost, INSTANT)

    return simulate
