"""What GO's samples earned, and whose merit it is: the graph's standardised reward, shared by all its ops, and each
op's own counterfactual advantage (graphopt.algos.go says how they are weighed).

Shape legend: N ops of all graphs of a batch, S samples, H heads.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphopt.algos.ppo import PPOSettings
from graphopt.core.graph import Graph
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import Prices
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.pricing import Pricing
from graphopt.problems.task import AssignTask

ILLEGAL_REWARD = -10.0


@dataclass(frozen=True)
class Judged:
    """Of S samples of every graph of a batch."""

    picked: Tensor  # [N, H] one canonical decision per graph
    shared: Tensor  # [S, N, H] the credit that all ops of a graph share
    own: Tensor  # [S, N, H] each op's own
    reward: float  # the mean


class Billed:
    """Prices that a problem bills. Single changes are sampled: exact ones of all ops would take the whole budget."""

    def __init__(self, problem: AssignProblem) -> None:
        self.problem = problem

    def decisions(self, decisions: Decisions) -> Prices:
        cost = self.problem.cost(decisions)
        return Prices(cost, self.problem.last_excess)

    def flips(self, decision: Decision) -> None:
        return None


class Credit:
    """prices: where samples of a graph are priced; default: the price of its default; past: per graph, mean, mean
    square and number of the rewards so far."""

    def __init__(self, task: AssignTask, settings: PPOSettings, prices: Callable[[Graph], Pricing | Billed],
                 default: Callable[[Graph], float], random: np.random.Generator) -> None:  # fmt: skip
        self.task, self.settings, self.random = task, settings, random
        self.past: dict[str, tuple[float, float, int]] = {}
        self._prices, self._default = prices, default

    def judge(self, graphs: list[Graph], chosen: Tensor) -> Judged:
        """Prices S samples of every graph. chosen: [S, N, H]."""
        picked, shared, own, rewards, start = [], [], [], [], 0
        for graph in graphs:
            decisions = chosen[:, start : start + graph.num_ops].cpu().numpy().astype(np.int16)
            start += graph.num_ops
            prices = self._prices(graph).decisions(decisions).cost
            reward = self.reward(graph, prices)
            rewards.append(float(np.mean(reward)))
            common, single = np.zeros(decisions.shape), np.zeros(decisions.shape)
            if self.settings.reward_weight:
                common += self.settings.reward_weight * self.standardised(graph, reward)[:, None, None]
            if self.settings.flip_weight:
                credits = [self.flip_credit(graph, d, p) for d, p in zip(decisions, prices, strict=True)]
                single += self.settings.flip_weight * np.stack(credits)
            shared.append(torch.from_numpy(common.astype(np.float32)))
            own.append(torch.from_numpy(single.astype(np.float32)))
            picked.append(torch.from_numpy(self.task.canonical(graph, decisions[0]).astype(np.int64)))
        return Judged(torch.cat(picked), torch.cat(shared, 1), torch.cat(own, 1), float(np.mean(rewards)))

    def reward(self, graph: Graph, prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """[S] -sqrt(price / the default's price); ILLEGAL_REWARD for infeasible plans."""
        legal = np.isfinite(prices)
        ratio = np.where(legal, prices, 1.0) / self._default(graph)
        return np.where(legal, -np.sqrt(ratio), ILLEGAL_REWARD)

    def standardised(self, graph: Graph, reward: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reward minus the mean of the graph's past trials, over their standard deviation."""
        mean, square, trials = self.past.get(graph.hash, (0.0, 0.0, 0))
        weight = max(len(reward) / (trials + len(reward)), 0.05)
        mean += weight * (float(reward.mean()) - mean)
        square += weight * (float((reward**2).mean()) - square)
        self.past[graph.hash] = (mean, square, trials + len(reward))
        return np.asarray((reward - mean) / max(np.sqrt(max(square - mean**2, 0.0)), 1e-4))

    def flip_credit(self, graph: Graph, decision: Decision, price: float) -> NDArray[np.float64]:
        """[N, H] how much better each choice is than another at the same op, log-compressed on the graph's scale."""
        op, head, worse = self.flip_prices(graph, decision, price)
        size = np.abs(worse)
        scale = np.median(size[size > 0]) if np.any(size > 0) else 1.0
        out = np.zeros(decision.shape)
        out[op, head] = np.sign(worse) * np.log1p(size / scale)
        return out

    def flip_prices(self, graph: Graph, decision: Decision, price: float) -> tuple[NDArray[np.int64], ...]:
        """(op, head, price after changing that slot minus price now) for all slots, or a sample of them."""
        canonical = self.task.canonical(graph, decision)
        counts = self.task.counts(graph)
        op, head = np.nonzero(counts > 1)
        flips = self._prices(graph).flips(canonical)
        if flips is not None:
            worse = np.where(canonical[op, 0] == decision[op, 0], flips.price(op) - flips.cost, 0.0)
            return op, head, worse
        rows = self.random.permutation(len(op))[: self.settings.flips]
        op, head = op[rows], head[rows]
        changed = np.repeat(decision[None], len(op), 0)
        counts = counts[op, head]
        changed[np.arange(len(op)), op, head] = (decision[op, head] + self.random.integers(1, counts)) % counts
        prices = self._prices(graph).decisions(changed).cost
        worse = np.where(np.isfinite(prices) & np.isfinite(price), prices - price, 0.0)
        return op, head, worse
