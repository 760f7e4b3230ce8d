"""X-RLflow: Graph Reinforcement Learning for Neural Network Subgraphs Transformation (He et al., MLSys 2023).

A policy over rewrites, rewarded by what whole programs cost: `rewrite.environment.episodes` is the decision process,
`xrlflow_policy` the network. Proximal policy optimisation with the constants of the authors' code.

Where the paper or its code leave something open, or another choice was made:
- *Over many programs*: `training_step` takes a batch of graphs, each with episodes of its own; one policy serves them
  all. As in the paper, one policy per model: no training (`trainer.steps=0`) and `search.adapt`, so that the policy
  learns on the problem that it is to solve, within its budget. Both: it goes on learning from what it was taught.
- *Advantages*: the end of an episode counts as one, unlike in the code's last transition; an episode that the horizon
  cuts off is worth what the value says of where it was cut.
- *Answers*: the cheapest program that was priced, not the last one. Of the episodes of a round one takes the likeliest
  actions; it teaches as the others do.
- *Imitation* (`learning.imitation`, none by default): the policy is also likened to taking each action by what it is
  known to save, by sums over ops or by programs that were priced (`learning.descents`). `additive: roofline` keeps
  such sums out of what it sees, where they are not known when it solves.
- *Sweeps*: a rule at all its places is an action as well (`episode.waves: 0`: as in the paper).
- *Openings*: a part of the budget prices what additive searches leave and descents by sweeps, and episodes begin
  from the cheapest programs that were priced so far (`search.opening: 0`, `search.starts: 0`: from the original, as in
  the paper).
- A program that was priced before is not priced again, so that evaluations are different programs.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.algos.learner import Learner, answering
from graphopt.algos.rewriters.playing import Transition, advantages, play
from graphopt.algos.rewriters.xrlflow_policy import NetworkSizes, XRLflowPolicy
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.costs.additive import Flops
from graphopt.problems.cost_model import CostModel
from graphopt.rewrite.environment.episodes import STOP, Episode, EpisodeSettings, Game
from graphopt.rewrite.environment.meta_graph import KINDS, SIZES, TOTALS
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.terms import renewed
from graphopt.rewrite.rewrite_problem import Point, RewriteProblem
from graphopt.rewrite.rewrite_task import RewriteTask
from graphopt.rewrite.rewriter import Rewriter, cheapest_by
from graphopt.utils.ranges import Count, Few, NotNegative, Positive, Share, Whole

MOST_TERMS = 1_000_000  # of a store that training fills; then it begins a new one
UNLIMITED = 10**12


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Of PPO; conf/algo/xrlflow.yaml explains them."""

    episodes: Few
    epochs: Few
    minibatch: Few
    clip: NotNegative
    value: NotNegative
    entropy: NotNegative
    discount: Share
    trace: Share
    rate: NotNegative
    gradient_clip: NotNegative
    divergence: NotNegative
    free_updates: Whole
    imitation: NotNegative
    imitation_temperature: Positive
    descents: Whole


@dataclass(frozen=True, kw_only=True)
class XRLflowSearch:
    """How `solve` spends a budget. adapt: learn from its own episodes. opening: the share of the budget that prices
    what the additive searches leave. evals: of each of them, not billed. starts: of the cheapest programs that were
    priced, so many are where episodes begin (0: the original alone). episodes: per round. horizon,
    measure_every: as those of `episode`, for these. temperature: of samples. patience: rounds without a new program,
    after which it ends."""

    adapt: bool
    opening: Share
    evals: Count
    starts: Whole
    episodes: Few
    horizon: Count
    measure_every: Count
    temperature: Positive
    patience: Count


class XRLflow(Learner):
    """yaml: conf/algo/xrlflow.yaml."""

    accepts = (RewriteTask,)
    network_settings = frozenset({"network", "additive"})  # what a candidate saves is among what it reads

    def __init__(self, *, name: str, machine: Machine, task: RewriteTask, cost: CostModel, seed: int,
                 openings: Mapping[str, Rewriter], additive: Literal["cost", "roofline"], episode: EpisodeSettings,
                 network: NetworkSizes, learning: Constants, search: XRLflowSearch) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.policy = XRLflowPolicy(network, episode.cap)
        self.openings, self.episode, self.network = list(openings.values()), episode, network
        self.learning, self.search, self.additive = learning, search, additive
        self.proxy = Flops(name="flops", machine=machine)
        self.automatic_optimization = False
        self._games: dict[str, Game] = {}

    def made_for(self) -> dict[str, Any]:
        return {"inputs": [list(KINDS), list(SIZES), list(TOTALS)]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.policy.parameters(), lr=self.learning.rate, eps=1e-5)

    def game(self, problem: RewriteProblem, episode: EpisodeSettings) -> Game:
        """The decision process of a problem. Candidates are drawn as far as the network sees."""
        own = problem.term_price if self.additive == "cost" else None
        proxy = own or self.proxy.term_price(problem.terms)
        return Game(problem, proxy, episode, self.network.layers)

    # ---- learning

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        """One update: episodes on every graph, then some epochs of PPO."""
        games = [self._training_game(graph) for graph in graphs]
        before = sum(game.problem.evals for game in games)
        for game in games:
            if not game.problem.evals:
                self._open(game, self.search.starts)
                game.descend(game.problem.start(), self.learning.descents)
        each = max(1, self.learning.episodes // len(games))
        with answering(graphs[0]):
            episodes = [Episode(game, self._random, start) for game in games for start in self._starts(game, each)]
            played = play(self.policy, episodes, self._random, taught=self.learning.imitation > 0)
        self._count(sum(game.problem.evals for game in games) - before)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        said = self.improve(self.policy, optimizer, played, self.train_steps, self._random)
        earned = [sum(step.reward for step in steps) for steps in played]
        self.log_dict(
            {"reward": float(np.mean(earned)), "length": float(np.mean([len(steps) for steps in played])), **said}
        )

    def _training_game(self, graph: Graph) -> Game:
        game = self._games.get(graph.hash)
        if game is None or len(game.problem.terms) > MOST_TERMS:
            own = graph_of(renewed(self.task.initial(graph)), name=graph.name, family=graph.family)
            self._games[graph.hash] = game = self.game(self.task.open(own, self.cost, evals=UNLIMITED), self.episode)
        return game

    def _open(self, game: Game, count: int) -> None:
        """Prices so many programs: each additive search's cheapest; descents by sweeps, of which those searches know
        nothing, from these and the original, the cheapest first; what else the searches leave. Where each search and
        each descent ends stays to the end, whatever is found later."""
        if not count:
            return
        problem, before = game.problem, game.problem.evals
        several = [cheapest_by(one, self.proxy, problem, self.search.evals, count) for one in self.openings]
        others = sorted((one for found in several for one in found[1:]), key=lambda one: one.cost)
        ends = game.admit([found[0].state for found in several if found][:count])
        for start in sorted([problem.start(), *ends], key=lambda point: point.cost):
            ends.append(game.descend(start, count - (problem.evals - before)))
        game.admit([one.state for one in others][: count - (problem.evals - before)])
        if problem.finalists is not None:
            for end in ends:
                if end.rules:
                    problem.finalists.pin(end.cost, problem.digest(end), (end.outputs, end.rules))

    def _starts(self, game: Game, episodes: int) -> list[Point]:
        """Where so many episodes begin: the original and the cheapest programs in turn."""
        points = [game.problem.start(), *game.cheapest(self.search.starts)]
        return [points[i % len(points)] for i in range(episodes)]

    def improve(self, policy: XRLflowPolicy, optimizer: Any, played: Sequence[Sequence[Transition]], updates: int,
                rng: np.random.Generator) -> dict[str, float]:  # fmt: skip
        """Some epochs of PPO on what was played; means of what to log. updates: how many there were before."""
        learning = self.learning
        steps = [step for steps in played for step in steps]
        advantage = np.concatenate([advantages(one, learning.discount, learning.trace) for one in played])
        goal = torch.tensor(advantage + [step.value for step in steps], dtype=torch.float32)
        several = list[dict[str, float]]()
        for _ in range(learning.epochs):
            order = rng.permutation(len(steps))
            for start in range(0, len(steps), learning.minibatch):
                some = order[start : start + learning.minibatch]
                loss, said = self._loss(policy, [steps[i] for i in some], advantage[some], goal[torch.from_numpy(some)])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(policy.parameters(), learning.gradient_clip)
                optimizer.step()
                several.append(said)
            if updates >= learning.free_updates and several[-1]["losses/divergence"] > learning.divergence:
                break
        return {name: float(np.mean([said[name] for said in several])) for name in several[0]} if several else {}

    def _loss(self, policy: XRLflowPolicy, steps: Sequence[Transition], advantage: np.ndarray,  # type: ignore[type-arg]
              goal: Tensor) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
        learning = self.learning
        log_BA, value_B = policy([step.graphs for step in steps])
        device = log_BA.device
        action = torch.tensor([step.action for step in steps], device=device)
        before = torch.tensor([step.log_prob for step in steps], device=device)
        spread = advantage.std() if len(advantage) > 1 else 1.0
        scaled = torch.tensor((advantage - advantage.mean()) / (spread + 1e-8), dtype=torch.float32, device=device)
        log_B = log_BA.gather(1, action[:, None])[:, 0]
        ratio = (log_B - before).exp()
        clipped = ratio.clamp(1 - learning.clip, 1 + learning.clip)
        policy_loss = -torch.minimum(ratio * scaled, clipped * scaled).mean()
        value_loss = 0.5 * (value_B - goal.to(device)).square().mean()
        entropy = -(log_BA.exp() * log_BA.clamp(min=-50)).sum(1).mean()
        imitation = self._imitation(steps, log_BA)
        said = {"policy": policy_loss, "value": value_loss, "entropy": entropy, "divergence": (before - log_B).mean(),
                "imitation": imitation}  # fmt: skip
        loss = policy_loss + learning.value * value_loss - learning.entropy * entropy
        loss = loss + learning.imitation * imitation
        return loss, {f"losses/{name}": part.item() for name, part in said.items()}

    def _imitation(self, steps: Sequence[Transition], log_BA: Tensor) -> Tensor:
        """How far the policy is from taking each action by what it saves, in nats (Kullback-Leibler)."""
        taught = [(step.saved, log_A) for step, log_A in zip(steps, log_BA) if step.saved is not None]
        far = [_divergence(saved, log_A, self.learning.imitation_temperature) for saved, log_A in taught]
        return torch.stack(far).mean() if far else log_BA.new_zeros(())

    # ---- solving

    def solve(self, problem: RewriteProblem) -> None:
        """Episodes until the budget is spent, or nothing new is found. With a budget of 0 the policy's own choices."""
        search, rng = self.search, problem.rng
        game = self.game(problem, replace(self.episode, horizon=search.horizon, measure_every=search.measure_every))
        if not problem.evals_cap:
            return self._commit(game)
        self._open(game, round(search.opening * problem.evals_cap))
        policy = copy.deepcopy(self.policy)
        optimizer = torch.optim.Adam(policy.parameters(), lr=self.learning.rate, eps=1e-5)
        idle = updates = 0
        while problem.open and idle < search.patience:
            before = problem.distinct
            with answering(problem.graph):
                starts = game.cheapest(search.starts) or [problem.start()]
                episodes = [Episode(game, rng, starts[i % len(starts)]) for i in range(search.episodes)]
                played = play(policy, episodes, rng, temperature=search.temperature, likeliest=True)
            idle = idle + 1 if problem.distinct == before else 0
            if search.adapt:
                self.improve(policy, optimizer, played, updates, rng)
                updates += 1

    def _commit(self, game: Game) -> None:
        """The likeliest steps; nothing is priced."""
        rng = game.problem.rng
        place = game.start(rng)
        with answering(game.problem.graph):
            for _ in range(self.episode.horizon):
                action = int(self.policy([place.graphs])[0][0].argmax()) if place.steps else STOP
                if action == STOP:
                    break
                point = game.problem.take(place.point, place.steps[action - 1])
                place = game.place(point._replace(cost=place.point.cost), rng)
        game.problem.take_best((place.point.outputs, place.point.rules))


def _divergence(saved: np.ndarray, log_A: Tensor, temperature: float) -> Tensor:  # type: ignore[type-arg]
    """Of a policy from what actions save, in nats. What is not known is one action together, which saves as much as
    STOP, so that what a policy makes of it stays; where that is not known either, it is left out."""
    known = torch.from_numpy(np.isfinite(saved)).to(log_A.device)
    scores, own_A = torch.from_numpy(saved).to(log_A)[known], log_A[: len(saved)]
    own = own_A[known]
    if np.isfinite(saved[STOP]) and not bool(known.all()):
        scores = torch.cat([scores, scores[:1]])
        own = torch.cat([own, own_A[~known].logsumexp(0, keepdim=True)])
    wanted = torch.log_softmax(scores / temperature, 0)
    return (wanted.exp() * (wanted - torch.log_softmax(own, 0))).sum()
