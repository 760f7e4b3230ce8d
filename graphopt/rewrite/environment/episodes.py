"""Rewriting as a Markov decision process (X-RLflow, He et al., MLSys 2023, section 3).

- **State**: a program, and the candidates one rewrite away from it.
- **Actions**: `STOP`, or the place of a candidate from 1 on: a rewrite, or, ours, a rule at all its places
  (rules/steps.py), which come last. Duplicates are no candidates, nor programs with a cycle or too many ops. More
  candidates than slots: so many are drawn, in their order, and the others are counted in `left_out`.
- **Reward**: (RT_{t-1} - RT_t) / RT_0 * 100, per cent of the original's price. Prices are asked for every so many steps
  and at the end; RT_{t-1} is the last one that was asked for.
- **End**: `terminated` by STOP or where no rewrite is left, `truncated` by the horizon.

Between prices the paper's code pays a constant (`between: constant`). `between: proxy`, ours, pays the change of an
additive price, and takes it back at the next price, so that rewards sum up to the fall of the program's true price.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.utils.marks import Count, Few, NotNegative, Whole
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.environment.meta_graph import MetaGraph, MetaGraphs
from graphopt.rewrite.ir.terms import Outputs, reachable
from graphopt.rewrite.program_cost import TermPrice
from graphopt.rewrite.rewrite_problem import Point, RewriteProblem, Rules
from graphopt.rewrite.rules.matching import Match
from graphopt.rewrite.rules.steps import Neighbourhood, RewriteStep, sweeps

STOP = 0
BROKEN = -100.0  # the reward of a program that cannot be run


@dataclass(frozen=True, kw_only=True)
class EpisodeSettings:
    """cap: slots for actions, STOP included. horizon: steps. measure_every: steps from price to price, the end aside.
    reward: `additive` pays the change of the additive price alone, not of prices. bonus: the payment of `constant`
    between prices. waves: of the sweeps among the candidates; 0: none."""

    cap: Few
    horizon: Count
    measure_every: Count
    reward: Literal["measured", "additive"]
    between: Literal["constant", "proxy"]
    bonus: NotNegative
    waves: Whole


@dataclass(frozen=True, eq=False)
class Place:
    """A program that an episode has come to. steps: its candidates; left_out: those without a slot."""

    game: "Game"
    point: Point  # its cost is the last price that was asked for
    around: Neighbourhood
    steps: list[RewriteStep]
    left_out: int

    @property
    def actions(self) -> int:
        """STOP and the candidates."""
        return 1 + len(self.steps)

    @cached_property
    def totals(self) -> NDArray[np.float32]:
        """[actions, T] `meta_graph.TOTALS`."""
        game = self.game
        proxy = np.array([self.around.cost, *(step.cost for step in self.steps)]) / game.first_proxy
        ops = np.array([self.around.ops, *(step.ops for step in self.steps)]) / max(1, game.first_ops)
        priced = np.full(len(ops), self.point.cost / game.problem.initial_cost)
        stop = np.arange(len(ops)) == STOP
        return np.stack([1 - proxy, 1 - priced, 1 - ops, stop], 1).astype(np.float32)

    def saved(self) -> NDArray[np.float32] | None:
        """[actions] the largest known saving of each, per cent of the original's price and over the original: STOP the
        program itself; a candidate by the cheapest program that walks have come to from it (`Game.reached`), or by
        itself where the cost model adds up ops. NaN where nothing is known, None where that is all candidates. Nothing
        is billed."""
        game, problem = self.game, self.game.problem
        cost = np.array([game.known(self.around.digest), *(game.reached(step.digest) for step in self.steps)])
        if problem.term_price is not None:
            around = problem.neighbours.around(self.point.outputs, problem.term_price)
            cost = np.fmin(cost, [around.cost, *(around.cost_of(step.match) for step in self.steps)])
        saved = (100 * (problem.initial_cost - cost) / problem.initial_cost).astype(np.float32)
        return saved if np.isfinite(saved[1:]).any() else None

    @cached_property
    def graphs(self) -> MetaGraph:
        """The observation of a policy."""
        return self.game.drawing.of(self.around, self.steps, self.totals)


class Game:
    """The shared state of a problem's episodes. proxy: an additive price, for features and for rewards between prices.
    hops: of `MetaGraphs`.

    A program is billed once: its price is remembered.
    """

    def __init__(self, problem: RewriteProblem, proxy: TermPrice, settings: EpisodeSettings,
                 hops: int | None = None) -> None:  # fmt: skip
        self.problem, self.proxy, self.settings = problem, proxy, settings
        self.drawing = MetaGraphs(problem.terms, hops)
        start = problem.start()
        first = problem.neighbours.around(start.outputs, proxy)
        self.first_proxy, self.first_ops = first.cost or 1.0, first.ops
        self._prices = {first.digest: problem.initial_cost}
        self._priced = [start]
        self._reached = dict[int, float]()
        self._sweeps: dict[Outputs, list[Match]] = {}

    def place(self, point: Point, rng: np.random.Generator) -> Place:
        """Its candidates. rng: draws those that get a slot."""
        around = self.problem.neighbours.around(point.outputs, self.proxy)
        many = self.sweeps(point)
        steps = [step for step in around.steps(many) if step.ops < self.problem.most_ops]
        slots = self.settings.cap - 1
        drawn = steps
        if len(steps) > slots:
            drawn = [steps[i] for i in sorted(rng.choice(len(steps), slots, replace=False))]
        return Place(self, point, around, drawn, len(steps) - len(drawn))

    def sweeps(self, point: Point) -> list[Match]:
        """Of a program, as the settings say; remembered, since episodes begin at few."""
        problem = self.problem
        if point.outputs not in self._sweeps:
            found = sweeps(problem.neighbours, point.outputs, self.settings.waves, problem.most_ops)
            self._sweeps[point.outputs] = found
        return self._sweeps[point.outputs]

    def swept(self, point: Point) -> list[Point]:
        """Where the sweeps of a program lead; not priced."""
        steps = self.problem.neighbours.around(point.outputs, self.proxy).steps(self.sweeps(point), alone=False)
        return [self.problem.take(point, step) for step in steps if step.ops < self.problem.most_ops]

    def start(self, rng: np.random.Generator) -> Place:
        """The program as it was given."""
        return self.place(self.problem.start(), rng)

    def prices(self, points: Sequence[Point]) -> list[float]:
        """Of several programs; those that are not known yet are billed, as many as the budget allows.

        Raises OutOfBudget when that is not enough.
        """
        digests = [self.problem.digest(point) for point in points]
        unknown = {digest: point for digest, point in zip(digests, points) if digest not in self._prices}
        asked = list(unknown.items())[: self.problem.remaining]
        if asked:
            found = self.problem.costs([(point.outputs, point.rules) for _, point in asked])
            self._prices.update(zip((digest for digest, _ in asked), found))
            self._priced += [point._replace(cost=cost) for (_, point), cost in zip(asked, found)]
        if len(asked) < len(unknown):
            raise OutOfBudget
        return [self._prices[digest] for digest in digests]

    def known(self, digest: int) -> float:
        """The price of a program that was priced; NaN of others."""
        return self._prices.get(digest, math.nan)

    def reached(self, digest: int) -> float:
        """The cheapest price of a program and of all that walks have come to from it; NaN where none is known."""
        return self._reached.get(digest, self.known(digest))

    def reach(self, path: Iterable[int], price: float) -> None:
        """Notes that a walk over these programs has come to one of that price."""
        for digest in path:
            self._reached[digest] = float(np.fmin(self.reached(digest), price))

    def admit(self, states: Sequence[tuple[Outputs, Rules]]) -> list[Point]:
        """Programs that were found elsewhere, with their prices."""
        terms = self.problem.terms
        points = [Point(outputs, rules, 0.0, sum(terms.runs[t] for t in reachable(terms, outputs)))
                  for outputs, rules in states]  # fmt: skip
        return [point._replace(cost=cost) for point, cost in zip(points, self.prices(points))]

    def descend(self, point: Point, most: int) -> Point:
        """Steepest descent by sweeps from a program that was priced: all that were not priced yet, the cheapest, and
        again from there. most: programs that it prices. Returns where it ends."""
        path = list[int]()
        while most > 0:
            path.append(self.problem.digest(point))
            new = {self.problem.digest(one): one for one in self.swept(point)}
            points = [one for digest, one in new.items() if digest not in self._prices][:most]
            priced = [one._replace(cost=cost) for one, cost in zip(points, self.prices(points))]
            best = min(priced, key=lambda one: one.cost, default=point)
            self.reach(path, best.cost)
            if best.cost >= point.cost:
                break
            point, most = best, most - len(points)
        return point

    def cheapest(self, count: int) -> list[Point]:
        """Of the programs that were priced, the original among them; of those of one price, one."""
        distinct = {point.cost: point for point in reversed(self._priced) if math.isfinite(point.cost)}
        return [distinct[cost] for cost in sorted(distinct)[:count]]


class Outcome(NamedTuple):
    """The result of a step. price: NaN where none was asked for."""

    reward: float
    terminated: bool
    truncated: bool
    price: float


class Episode:
    """One walk through a game. A step is `act`, then `settle` with the price if `wants_price` says so; `step` is
    both. start: a program that was priced; None: the original."""

    def __init__(self, game: Game, rng: np.random.Generator, start: Point | None = None) -> None:
        self.game, self._rng = game, rng
        self.place = game.start(rng) if start is None else game.place(start, rng)
        self.length, self.paid, self.over = 0, 0.0, False
        self._path = [self.place.around.digest]
        self._terminated = self.wants_price = False

    def act(self, action: int) -> None:
        """Goes where an action leads. Raises ValueError for one that does not exist, or when the episode is over."""
        if self.over or not 0 <= action < self.place.actions:
            why = "the episode is over" if self.over else f"there are {self.place.actions} actions"
            raise ValueError(f"action {action} is not possible: {why}")
        before, problem = self.place, self.game.problem
        if action != STOP:
            point = problem.take(before.point, before.steps[action - 1])
            self.place = self.game.place(point._replace(cost=before.point.cost), self._rng)
            self._path.append(self.place.around.digest)
        self.length += 1
        self._terminated = action == STOP or not self.place.steps
        self.over = self._terminated or self.length >= self.game.settings.horizon
        self.wants_price = self.over or self.length % self.game.settings.measure_every == 0
        self._between = 100 * (before.around.cost - self.place.around.cost) / self.game.first_proxy

    def settle(self, price: float) -> Outcome:
        """The outcome of the last action. price: of the program, if it was wanted."""
        settings, last = self.game.settings, self.place.point.cost
        if not self.wants_price:
            reward = settings.bonus if settings.between == "constant" else self._between
            self.paid += reward if settings.between == "proxy" else 0.0
            return Outcome(reward, False, False, math.nan)
        if not math.isfinite(price):
            self.over = self._terminated = True
            return Outcome(BROKEN - self.paid, True, False, price)
        self.game.reach(self._path, price)
        reward = 100 * (last - price) / self.game.problem.initial_cost - self.paid
        if settings.reward == "additive":
            reward = self._between
        self.paid = 0.0
        self.place = replace(self.place, point=self.place.point._replace(cost=price))
        return Outcome(reward, self._terminated, self.over and not self._terminated, price)

    def step(self, action: int) -> Outcome:
        """Raises OutOfBudget when a price is needed and the budget is spent."""
        self.act(action)
        return self.settle(self.game.prices([self.place.point])[0] if self.wants_price else math.nan)


def step_together(episodes: Sequence[Episode], actions: Sequence[int]) -> list[Outcome]:
    """A step of each; prices are asked for at once, game by game, so that measured programs run by turns."""
    for episode, action in zip(episodes, actions, strict=True):
        episode.act(action)
    wanting = [episode for episode in episodes if episode.wants_price]
    prices: dict[int, float] = {}
    for game in {id(episode.game): episode.game for episode in wanting}.values():
        own = [episode for episode in wanting if episode.game is game]
        prices.update(zip(map(id, own), game.prices([episode.place.point for episode in own])))
    return [episode.settle(prices.get(id(episode), math.nan)) for episode in episodes]
