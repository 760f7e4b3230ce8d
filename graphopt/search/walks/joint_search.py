"""`joint_search` and `task_sequence`: searches of placement, order and fusion together, and one after the other.

The state is a vector of random keys, so that every order of kernels and of transfers can be said. A stage moves some of
the three. It begins with known good choices for them, priced around the best keys so far. For fusion these are the
compilers' two rules, then whole classes of alike ops (`alike`), the largest first; for devices and orders the
suggestions of heuristics for the kernels of the best fusion so far. Then a local search goes on until the stage's share
of the budget is spent: the random moves of `regal_local`, and classes of alike ops inlined or stored together. Of a
batch the best move is made unless it is worse; where nothing was found for `patience` evaluations it goes on from the
best keys after `kick` random moves.

`task_sequence` (`together: false`) is the peer of GO's joint task: placement, then the order, then fusion, each with a
share of the budget; `joint_search` fuses first, as the kernels decide which moves are worth making; then it places and
orders the fused kernels; then it moves everything at once. Before that it may place the default's kernels.

Ours, of no paper. Shape legend: K keys, B moves, N ops.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64
from graphopt.core.plan import Role
from graphopt.core.utils.marks import Count, NotNegative, Share, Whole
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole, digests
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.search.fusion.xla_priority import xla_choice, xla_models
from graphopt.search.genetic.evolution import F32, priced_by
from graphopt.search.heuristics.rules import SchedulingInstance, Suggestion
from graphopt.search.heuristics.starts import encode, orders, placements
from graphopt.search.walks.key_moves import Descent, Moves, RandomKeyMoves
from graphopt.search.walks.moves import alike

INLINE, STORE = np.float32(0.75), np.float32(0.25)  # keys of the two choices
MOVED_BY = {  # role of a head -> the random moves that change it
    Role.DEVICE: ("device", "block"), Role.PRIORITY: ("swap", "shift", "transfer"), Role.FUSION: ("choice",),
}  # fmt: skip


@dataclass(frozen=True)
class SearchStage:
    """roles: the parts that move. until: share of the budget that is spent at its end. local: whether a local search
    follows the first plans."""

    roles: tuple[Role, ...]
    until: float
    local: bool


@dataclass(frozen=True, kw_only=True)
class Walking:
    """Of the local search. classes: how often a class of alike ops is moved, as `moves` count the others."""

    batch: Count
    patience: Count
    kick: Count
    classes: NotNegative
    moves: Moves


class JointSearch(Optimizer):
    """yaml: conf/algo/joint_search.yaml, task_sequence.yaml.

    together: whether everything moves at once. begin: shares of the budget that may be spent after the first plans of
    placement under the default's fusion, after those of fusion, and after those of placement again. depth: hops over
    which ops of a class have to look alike.
    """

    needs_one_of = frozenset({Role.DEVICE, Role.PRIORITY, Role.FUSION})
    knows_roles = frozenset({Role.DEVICE, Role.PRIORITY, Role.FUSION})

    def __init__(
        self, *, name: str, together: bool, begin: tuple[Share, Share, Share], depth: Whole, walk: Walking
    ) -> None:
        self.name, self.together, self.begin, self.depth, self.walk = name, together, begin, depth, walk

    def solve(self, problem: AssignProblem) -> None:
        self.searched(problem)

    def searched(self, problem: AssignProblem) -> F32:
        """The best keys [K] when the budget is spent."""
        state = BestKeys(problem, self.depth)
        with contextlib.suppress(OutOfBudget):
            for stage in self.stages(problem):
                limit = stage.until * problem.evals_cap
                state.begin(stage.roles, limit)
                if stage.local:
                    state.go_on(stage.roles, limit, self.walk)
        return state.best

    def go_on_from(self, problem: AssignProblem, *known: F32) -> None:
        """Prices these keys [K] each, and spends the rest of the budget on moves of everything."""
        state = BestKeys(problem, self.depth)
        for keys in known:
            state.offer(keys)
        state.go_on(tuple(role for role in MOVED_BY if problem.task.decides(role)), problem.evals_cap, self.walk)

    def stages(self, problem: AssignProblem) -> list[SearchStage]:
        """Of the roles that the task decides."""
        mine = [role for role in (Role.DEVICE, Role.PRIORITY, Role.FUSION) if problem.task.decides(role)]
        if not self.together:
            return [SearchStage((role,), (i + 1) / len(mine), True) for i, role in enumerate(mine)]
        others = tuple(role for role in mine if role != Role.FUSION)
        fused = others != tuple(mine)
        starts = zip((others, (Role.FUSION,), others), self.begin, (fused, fused, True))
        known = [SearchStage(roles, until, False) for roles, until, wanted in starts if wanted and roles]
        return [*known, SearchStage(tuple(mine), 1.0, True)]


class BestKeys:
    """The best keys [K] of one problem, and the arrays needed to change them."""

    def __init__(self, problem: AssignProblem, depth: int) -> None:
        graph, task = problem.graph, problem.task
        self.problem, self.price = problem, priced_by(problem)
        self._instance = SchedulingInstance(graph, task)
        device = np.asarray(self._instance.initial.device[0])
        self.best = encode(problem, device, -np.arange(graph.num_ops, dtype=np.float64))
        self.cost = problem.initial_cost  # of the default, whose plan these keys are
        self._offered = {int(digests(self.best[None])[0])}
        layout = problem.layout
        self.fused: I64 = np.zeros(0, np.int64)  # [N] keys of fusion, by op
        self.classes: list[I64] = []  # keys of each class of alike ops
        self.placed = layout.role != KeyRole.CHOICE
        if task.decides(Role.FUSION):
            column = task.column(Role.FUSION)
            self.fused = np.flatnonzero((layout.role == KeyRole.CHOICE) & (layout.head == column))
            found = alike(graph, task.mask(graph)[:, column], depth)
            self.classes = [self.fused[ops] for same in found for ops in same]

    # ---- known good choices

    def begin(self, roles: tuple[Role, ...], limit: float) -> None:
        """Prices it as long as fewer evaluations than `limit` are spent."""
        for keys in self._known(roles):
            if self.problem.evals >= limit:
                return
            self.offer(keys())

    def offer(self, keys: F32) -> None:
        """Takes keys that are better than the best; keys that were offered before are not priced again."""
        digest = int(digests(keys[None])[0])
        if digest in self._offered:
            return
        self._offered.add(digest)
        cost = float(self.price(keys[None])[0])
        if cost < self.cost:
            self.best, self.cost = keys, cost

    def _known(self, roles: tuple[Role, ...]) -> Iterator[Callable[[], F32]]:
        if Role.FUSION in roles:
            task = self.problem.task
            yield partial(self._with, self.fused, INLINE)
            if xla_models(task.machine.devices[0]):
                flags = xla_choice(self.problem.graph, task)[0]
                yield partial(self._with, self.fused, np.where(flags, INLINE, STORE))
            for keys in self.classes:
                yield partial(self._with, keys, INLINE)
                yield partial(self._with, keys, STORE)
        if Role.DEVICE in roles or Role.PRIORITY in roles:
            yield from (partial(self._placed, said) for said in self._suggestions(roles))

    def _with(self, places: I64, value: NDArray[np.float32] | np.float32) -> F32:
        keys = self.best.copy()
        keys[places] = value
        return keys

    def _suggestions(self, roles: tuple[Role, ...]) -> Iterator[Suggestion]:
        plan = self.problem.task.realise_keys(self.problem.graph, self.best[None])
        instance = self._instance = self._instance.under(plan)
        if Role.DEVICE in roles:
            topological = -np.arange(self.problem.graph.num_ops, dtype=np.float64)
            for said in placements(instance):
                yield said if Role.PRIORITY in roles else Suggestion(said.device, topological)
        else:
            yield from orders(instance, np.asarray(plan.device[0]))

    def _placed(self, said: Suggestion) -> F32:
        """The best keys with devices and order as suggested."""
        return np.where(self.placed, encode(self.problem, *said), self.best)

    # ---- local search

    def go_on(self, roles: tuple[Role, ...], limit: float, walk: Walking) -> None:
        """Random moves of these roles until so many evaluations are spent."""
        moves = _RandomMoves(self.problem, roles, walk, self.classes if Role.FUSION in roles else [])
        at = Descent(self.best, self.cost)
        while moves.any and self.problem.evals < limit:
            batch = moves.around(at.here, min(walk.batch, int(np.ceil(limit - self.problem.evals))))
            at.step(batch, self.price(batch))
            self.best, self.cost = at.best, at.least
            if at.since >= walk.patience:
                start = moves.kicked(self.best, walk.kick)
                at.restart(start, float(self.price(start[None])[0]))


class _RandomMoves:
    """Random moves on keys [K]: of single keys and blocks, and of classes of alike ops."""

    def __init__(self, problem: AssignProblem, roles: tuple[Role, ...], walk: Walking, classes: list[I64]) -> None:
        names = {name for role in roles for name in MOVED_BY[role]}
        kept = {name: share if name in names else 0.0 for name, share in vars(walk.moves).items()}
        self._single = RandomKeyMoves(problem, replace(walk.moves, **kept))
        self._rng, self._classes = problem.rng, classes
        single = self._single.total
        self._share = walk.classes / (walk.classes + single) if classes and walk.classes else 0.0

    @property
    def any(self) -> bool:
        return self._single.any or self._share > 0

    def around(self, keys: F32, count: int) -> F32:
        """[count, K] copies, each after one random move."""
        rows = self._single.around(keys, count, self._rng) if self._single.any else np.repeat(keys[None], count, 0)
        if self._share:
            whole = self._rng.random(count) < self._share
            for row in np.flatnonzero(whole | (not self._single.any)):
                rows[row] = keys
                places = self._classes[int(self._rng.integers(len(self._classes)))]
                rows[row, places] = INLINE if self._rng.random() < 0.5 else STORE
        return rows

    def kicked(self, keys: F32, moves: int) -> F32:
        """[K] the keys after some random moves."""
        return self._single.kicked(keys, moves, self._rng)[0] if self._single.any else keys
