"""`motif_scan`: prices the answers of the compilers' rules, then tries each choice for whole classes of alike ops, then
scans. The search without learning that a learned policy has to beat: it finds out by itself that blocks repeat.

`modelled_scan`: motif scan and compound moves by a model of kernels that is no evaluation, then evaluations in the
order of the model's expected improvement. Compilers that have a cost model and then measure work so; the unlearned peer
of `kernel_model`.

Compound moves: one op is decided otherwise by force, and the model repairs its surroundings. Where no single change
helps any more, several near each other may; a model that costs no evaluation finds which. After ejection chains
(Glover, "Ejection chains, reference structures and alternating path methods", 1996), with a model as the judge of the
changes that a forced one ejects.

With a budget, from the best so far it evaluates whole classes of alike ops and compound moves. Moves with the largest
expected improvement come first. Then come moves that begin with ops drawn at random. A model that learns from prices
(`Fitted`) is asked anew before each round of these moves, and its answer is evaluated first.

Shape legend: N ops, F forced ops, C ops that change.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice, product
from math import erf, exp, pi, sqrt
from typing import Annotated, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from graphopt.core.errors import ConfigError
from graphopt.core.graph import I64, Bool
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Decision, Role
from graphopt.core.utils.marks import Between, Count, Whole
from graphopt.costs.simulator import Simulator
from graphopt.problems.assignment import AssignProblem, PricedFlips, Pricing
from graphopt.problems.cost_model import CostModel, FlipState
from graphopt.problems.optimizer import Optimizer, solve
from graphopt.search.fusion.xla_priority import InlineAll, XlaPriority, xla_models
from graphopt.search.walks.local import scan
from graphopt.search.walks.moves import Walk, alike, neighbourhood, slots_of, try_decision

Depth = Annotated[int, Between(0, 16)]


class MotifScan(Optimizer):
    """The default, `inline_all` and, where the machine describes a GPU, `xla_priority` (an evaluation each), then
    `scan_classes`."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str, depth: Depth | None) -> None:
        self.name, self.depth = name, depth

    def solve(self, problem: AssignProblem) -> None:
        if problem.open:
            InlineAll(name="inline_all").solve(problem)
        if problem.open and xla_models(problem.task.machine.devices[0]):
            XlaPriority(name="xla_priority").solve(problem)
        scan_classes(problem, self.depth)


def scan_classes(problem: AssignProblem, depth: int | None) -> None:
    """From the best decision so far, for 0 .. depth hops, the classes of alike ops, the largest first: all are inlined,
    then all stored, and changes that help are kept; then a random-permutation scan. depth None: the scan alone."""
    slots = slots_of(problem)
    if not len(slots) or not problem.open:
        return
    walk = Walk(problem, problem.best, problem.best_cost)
    head = problem.task.column(Role.FUSION)
    free, most = problem.task.mask(problem.graph)[:, head], problem.task.heads[head].count - 1
    for classes in alike(problem.graph, free, depth) if depth is not None else ():
        for ops, choice in product(classes, (most, 0)):
            candidate = walk.decision.copy()
            candidate[ops, head] = choice
            try_decision(problem, walk, candidate)
    scan(problem, slots, walk)


HOPS = 3  # around a forced op in which is repaired; views count
MOST_NEAR = 64  # ops there; fewer hops where there are more
REPAIRS = 4  # changes at most, each the best by the model
SURELY = 1.0 - 1e-9  # a price below so much of another one is lower
ERROR = 0.01  # of a kernel's modelled time: the assumed error of the model


class Compound(NamedTuple):
    """ops: [C] that change. seconds: modelled seconds that it adds. touched: modelled seconds of kernels that
    change."""

    ops: I64
    seconds: float
    touched: float

    @property
    def expected(self) -> float:
        """The expected improvement in seconds, if the model's errors are normal, of `ERROR` of the touched seconds."""
        spread, gain = max(ERROR * self.touched, 1e-30), -self.seconds
        z = gain / spread
        return spread * exp(-z * z / 2) / sqrt(2 * pi) + gain * 0.5 * (1 + erf(z / sqrt(2)))


class CompoundMoves:
    """Around one decision of a binary fusion task at a time. ops: [M] with a choice."""

    def __init__(self, problem: AssignProblem, model: Pricing, flips: PricedFlips) -> None:
        self._graph, self._model = problem.graph, model
        self._free: Bool = problem.task.mask(problem.graph)[:, 0]
        self.ops: I64 = np.flatnonzero(self._free)
        self._near: dict[int, I64] = {}
        self._start_from(flips)

    @classmethod
    def around(cls, problem: AssignProblem, model: CostModel, decision: Decision) -> "CompoundMoves | None":
        """None where the model has no exact prices of single flips."""
        pricing = Pricing(problem.graph, problem.task, model)
        flips = pricing.flips(decision)
        return None if flips is None else cls(problem, pricing, flips)

    def move_to(self, decision: Decision) -> None:
        """A decision becomes the one that moves start from."""
        flips = self._model.flips(decision)
        assert flips is not None
        self._start_from(flips)

    def _start_from(self, flips: PricedFlips) -> None:
        self._flips, self._state, self.decision = flips, flips.saved(), flips.decision

    def promising(self, most: int) -> list[int]:
        """The ops whose flips alone cost least by the model, at most so many, the best first."""
        order = np.argsort(self._flips.price(self.ops), kind="stable")
        return [int(op) for op in self.ops[order[:most]]]

    def near(self, ops: Iterable[int]) -> I64:
        """Ops with a choice around some ops, ascending."""
        around = [self._around(int(op)) for op in ops]
        return around[0] if len(around) == 1 else np.unique(np.concatenate([np.zeros(0, np.int64), *around]))

    def _around(self, op: int) -> I64:
        if op not in self._near:
            for hops in range(HOPS, 0, -1):
                found = neighbourhood(self._graph, op, hops)
                if len(found) <= MOST_NEAR:
                    break
            self._near[op] = found[self._free[found]]
        return self._near[op]

    def forced(self, ops: I64) -> Compound | None:
        """The move that begins with flips of [F] ops; None where it changes nothing."""
        self._repaired(ops)
        made = self._made(self._flips.saved())
        self._flips.restore(self._state)
        return made

    def whole(self, decision: Decision) -> Compound | None:
        """The move to another decision."""
        self._flips.follow(self._model.task.realise(self._graph, decision[None]).inline[0])
        made = self._made(self._flips.saved())
        self._flips.restore(self._state)
        return made

    def descend(self, most: int) -> Decision:
        """The decision after moves that begin with one op each, as long as the model finds any better, of at most so
        many; it becomes the one that moves start from."""
        waiting = deque(self.ops.tolist())
        for _ in range(most):
            if not waiting:
                break
            op = waiting.popleft()
            self._repaired(np.array([op]))
            if self._flips.cost < self._state.cost * SURELY:
                before, self._state = self._state, self._flips.saved()
                changed = np.flatnonzero(self._state.inline != before.inline)
                known = set(waiting)
                waiting.extend(near for near in self.near(changed).tolist() if near not in known)
            else:
                self._flips.restore(self._state)
        self.decision = self._flips.decision
        return self.decision

    def _repaired(self, ops: I64) -> None:
        for op in ops.tolist():
            self._flips.apply(op)
        near = self.near(ops.tolist())
        for repair in range(REPAIRS):
            can = near if repair else near[(near[:, None] != ops).all(1)]  # not at once back
            prices = self._flips.price(can)
            if not len(can) or prices.min() >= self._flips.cost * SURELY:
                return
            self._flips.apply(int(can[np.argmin(prices)]))

    def _made(self, state: FlipState) -> Compound | None:
        ops = np.flatnonzero(state.inline != self._state.inline)
        differ = state.seconds != self._state.seconds
        touched = np.maximum(state.seconds, self._state.seconds)[differ].sum()
        return Compound(ops, state.cost - self._state.cost, float(touched)) if len(ops) else None


class Fitted(Protocol):
    """A model of kernels that learns from the prices of one graph's decisions."""

    def saw(self, decision: Decision, cost: float) -> None:
        """A decision, legal, has this price."""

    def machine(self) -> Machine:
        """With the model, as it is now, as first device."""


LOOKED_AT = 20  # moves for each evaluation of a round, of which the model is asked at first
ROUND = 8  # evaluations at least between two fits of a model
SHARE = 4  # a round has this part of all evaluations so far, if that is more
SPREAD = 60  # ops that changed, from which all moves are looked at again
DRAWN = (2, 3)  # ops that a random move begins with
ANEW = 1000  # moves by a model that has been fitted, at most
GIVE_UP = 1000  # random moves after one another that give nothing new


def walk_by_model(problem: AssignProblem, moves: CompoundMoves, depth: int, fitted: Fitted | None = None) -> None:
    """Rounds of evaluations, until the budget ends or nothing new is found. depth: hops over which ops of a class have
    to look alike. Without a model that is fitted there is one round."""
    walk = ModelledWalk(problem, moves, fitted)
    going_on = True
    while problem.open and going_on:
        while fitted and problem.open and walk.improves(walk.asked_anew()):
            pass  # the model learns from each of its answers
        going_on = walk.run(max(ROUND, problem.evals // SHARE) if fitted else problem.remaining, depth)


class ModelledWalk:
    """The best decision so far, and the moves from it that wait for an evaluation."""

    def __init__(self, problem: AssignProblem, moves: CompoundMoves, fitted: Fitted | None = None) -> None:
        self._problem, self._fitted = problem, fitted
        self._cost, self._seen = problem.best_cost, set[bytes]()
        moves.move_to(self._legal(problem.best))
        self._seen.add(moves.decision.tobytes())
        self._number = 0
        self._start(moves)

    def _start(self, moves: CompoundMoves) -> None:
        """From the best decision by a model, of which nothing was asked yet."""
        self._moves = moves
        self._waiting: list[tuple[float, int, int, I64, int | None]] = []  # minus the expected improvement, number, ...
        self._newest = dict[int, int]()
        self._begun = set[bytes]()  # ops that drawn moves from here began with

    def asked_anew(self) -> Decision:
        """The fitted model's answer: its moves from the best decision, as long as it finds any better."""
        assert self._fitted is not None
        model = Simulator(name="model", machine=self._fitted.machine(), objective="runtime", threads=1)
        best = self._legal(self._problem.best)
        moves = CompoundMoves.around(self._problem, model, best)
        assert moves is not None
        answer = moves.descend(ANEW)
        moves.move_to(best)
        self._start(moves)
        return answer

    def run(self, evals: int, depth: int) -> bool:
        """So many evaluations, or fewer where the budget ends; False where nothing new is found."""
        self.expect_classes(depth, LOOKED_AT * evals)
        self.expect(self._moves.promising(LOOKED_AT * evals))
        done = failed = 0
        while self._problem.open and done < evals and failed < GIVE_UP:
            candidate = self.expected()
            candidate = self.drawn() if candidate is None else candidate
            before = self._moves.decision
            tried = candidate is not None and self.try_decision(candidate)
            done, failed = (done + 1, 0) if tried else (done, failed + 1)
            if self._moves.decision is not before:
                changed = np.flatnonzero((self._moves.decision != before)[:, 0])
                self.expect((self._moves.ops if len(changed) > SPREAD else self._moves.near(changed)).tolist())
        return failed < GIVE_UP

    def expect_classes(self, depth: int, most: int) -> None:
        """Each class with each choice; of many the largest."""
        for ops, choice in islice(self._classes(depth), most):
            made = self._moves.whole(self._legal(self._with(ops, choice)))
            if made is not None:
                self._push(-1, made, ops, choice)

    def expect(self, ops: Iterable[int]) -> None:
        """The compound moves that begin with ops, as they are from here."""
        for op in ops:
            made = self._moves.forced(np.array([op]))
            self._newest[op] = self._number + 1  # earlier expectations no longer count
            if made is not None:
                self._push(op, made, made.ops, None)

    def expected(self) -> Decision | None:
        """The decision that the best of the waiting moves makes."""
        while self._waiting:
            _, number, op, ops, choice = heappop(self._waiting)
            if choice is not None or self._newest[op] == number:
                return self._with(ops, choice)
        return None

    def drawn(self) -> Decision | None:
        """The result of a compound move that begins with some ops near each other; None if it was drawn before."""
        rng, ops = self._problem.rng, self._moves.ops
        near = self._moves.near([int(rng.choice(ops))]) if len(ops) else ops
        count = min(len(near), int(rng.integers(DRAWN[0], DRAWN[1] + 1)))
        first = rng.choice(near, count, replace=False) if count else ops[:0]
        if first.tobytes() in self._begun or not count:
            return None
        self._begun.add(first.tobytes())
        made = self._moves.forced(first)
        return None if made is None else self._with(made.ops, None)

    def try_decision(self, candidate: Decision) -> bool:
        """Evaluates it, unless it was before, and moves there if it is better; whether it was evaluated."""
        candidate = self._legal(candidate)
        if candidate.tobytes() in self._seen:
            return False
        self._seen.add(candidate.tobytes())
        cost = float(self._problem.cost(candidate[None])[0])
        if self._fitted is not None:
            self._fitted.saw(candidate, cost)
        if cost < self._cost:
            self._cost = cost
            self._moves.move_to(candidate)
            self._begun.clear()
        return True

    def improves(self, candidate: Decision) -> bool:
        """Tries it; whether it is the best now."""
        before = self._cost
        return self.try_decision(candidate) and self._cost < before

    def _push(self, op: int, made: Compound, ops: I64, choice: int | None) -> None:
        self._number += 1
        heappush(self._waiting, (-made.expected, self._number, op, ops, choice))

    def _classes(self, depth: int) -> Iterator[tuple[I64, int]]:
        free = self._problem.task.mask(self._problem.graph)[:, 0]
        return ((ops, choice) for classes in alike(self._problem.graph, free, depth)
                for ops, choice in product(classes, (1, 0)))  # fmt: skip

    def _with(self, ops: I64, choice: int | None) -> Decision:
        """choice None: each its other one."""
        out = self._moves.decision.copy()
        out[ops, 0] = 1 - out[ops, 0] if choice is None else choice
        return out

    def _legal(self, decision: Decision) -> Decision:
        return self._problem.task.canonical(self._problem.graph, decision)


LAUNCH = 1e-6  # s, a kernel's start on machines without this fact


class ModelledScan(Optimizer):
    """model: `xla_gpu`, XLA's GPU cost model of the machine's first device, or `roofline`, launch + max(arithmetic,
    memory) by its peaks and bandwidth. depth: of motif scan; modelled: plans that the model prices. On a machine that
    is priced by XLA's model (`a6000_xla`) that one is no model but the price itself."""

    needs_roles: ClassVar[frozenset[Role]] = frozenset({Role.FUSION})
    knows_roles: ClassVar[frozenset[Role]] = frozenset({Role.FUSION})  # other devices have no model

    def __init__(self, *, name: str, model: Literal["xla_gpu", "roofline"], depth: Whole, modelled: Count) -> None:
        self.name, self.model, self.depth, self.modelled = name, model, depth, modelled

    def solve(self, problem: AssignProblem) -> None:
        machine = problem.task.machine
        device = plain_roofline(machine.devices[0])
        if self.model == "xla_gpu":
            if not xla_models(device):
                raise ConfigError(f"algo={self.name} needs clock, cores and fpus_per_core of device {device.name!r}; "
                                  "choose algo.model=roofline, or a machine that has them, e.g. gpu2")  # fmt: skip
            device = replace(device, fusion_model="xla_gpu")
        search_by_model(problem, modelled_by(machine, device), depth=self.depth, modelled=self.modelled)


def plain_roofline(device: Device) -> Device:
    """A device by its data sheet: launch + max(arithmetic, memory), without the corrections of its own model."""
    return Device(
        name=device.name, vector_flops=device.vector_flops, contraction_flops=device.contraction_flops,
        bandwidth=device.bandwidth, launch=device.launch or LAUNCH, spill_inputs=device.spill_inputs,
        clock=device.clock, cores=device.cores, fpus_per_core=device.fpus_per_core, l2_bytes=device.l2_bytes,
    )  # fmt: skip


def modelled_by(machine: Machine, device: Device) -> Machine:
    """A machine with another first device."""
    return replace(machine, devices=(device, *machine.devices[1:]))


def search_by_model(problem: AssignProblem, machine: Machine, *, depth: int, modelled: int, fitted: Fitted | None = None
                    ) -> None:  # fmt: skip
    """Motif scan with so many prices of kernels as a simulator of `machine` has them, then as many compound moves, none
    of them billed; their last decision is the answer, or with a budget the start of a walk with evaluations."""
    model = Simulator(name="model", machine=machine, objective="runtime", threads=1)
    found, _ = solve(MotifScan(name="motif_scan", depth=depth), problem.graph, problem.task, model, evals=modelled)
    moves = CompoundMoves.around(problem, model, problem.task.canonical(problem.graph, found.best))
    answer = found.best if moves is None else moves.descend(modelled)
    if not problem.open:
        problem.commit(answer)
        return
    cost = float(problem.cost(answer[None])[0])
    if moves is None:
        scan_classes(problem, depth)
    else:
        if fitted is not None:
            fitted.saw(problem.task.canonical(problem.graph, answer), cost)
        walk_by_model(problem, moves, depth, fitted)
