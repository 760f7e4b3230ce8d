"""Spotlight: Optimizing Device Placement for Training Deep Neural Networks (Gao, Chen, Li, ICML 2018).

Placement as a Markov decision process of as many stages as there are groups of ops: in each one group goes to a device,
given where those before it went. Its policy, a sequence-to-sequence network with attention (`DeviceSequence`), is
trained by proximal policy optimisation while the graph is being solved: of a batch of sampled placements several epochs
of

    mean over stages of  ratio x advantage - beta x KL(old policy, policy)

with beta doubled or halved where the divergence leaves its target (Schulman et al. 2017, section 4). Every sampled
placement is an evaluation; the reward, of all of its stages, is -sqrt(time), and its baseline a moving average.

The text was not at hand: the groups (`op_groups`), sizes, rates and the baseline are our choices.
Shape legend: B samples, M groups, D devices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graphopt.core.plan import Role
from graphopt.core.utils.marks import Few, NotNegative, Width
from graphopt.learn.placing.op_groups import (
    FEATURES,
    DeviceSequence,
    OpGroups,
    learn_on_groups,
    of_chosen,
    placed_as,
    rewards,
)
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer

BOUND = 3.0  # of the logits, by tanh
DIVERGENCE, PENALTY = 0.01, 1.0  # target of the Kullback-Leibler divergence of a stage; beta at first
BASELINE, GRADIENT = 0.9, 1.0  # share of the old baseline; largest norm


@dataclass(frozen=True, kw_only=True)
class Proximal:
    """Updates."""

    samples: Few
    epochs: Few
    rate: NotNegative


class Spotlight(Optimizer):
    """yaml: conf/algo/spotlight.yaml. groups: at most so many stages. width: of the network."""

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, groups: Few, width: Width, learning: Proximal) -> None:
        self.name, self.groups, self.width, self.learning = name, groups, width, learning

    def solve(self, problem: AssignProblem) -> None:
        learn_on_groups(problem, self.groups, self._learn)

    def _learn(self, problem: AssignProblem, groups: OpGroups) -> None:
        learning = self.learning
        policy = DeviceSequence(FEATURES, problem.task.machine.num_devices, self.width, BOUND)
        optimizer = torch.optim.Adam(policy.parameters(), lr=learning.rate)
        beta, baseline = PENALTY, None
        while problem.open:
            x_BMF = groups.x.expand(min(learning.samples, problem.remaining), -1, -1)
            with torch.no_grad():
                device_BM, old_BMD = policy(x_BMF)
            reward_B = rewards(problem, placed_as(problem, groups.of, device_BM.numpy()))
            mean = float(reward_B.mean())
            baseline = mean if baseline is None else BASELINE * baseline + (1 - BASELINE) * mean
            for _ in range(learning.epochs):
                gain, divergence = _gain(policy, x_BMF, device_BM, old_BMD, reward_B - baseline)
                optimizer.zero_grad()
                (beta * divergence - gain).backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(policy.parameters(), GRADIENT)
                optimizer.step()
            if float(divergence.detach()) > 1.5 * DIVERGENCE:
                beta *= 2.0
            elif float(divergence.detach()) < DIVERGENCE / 1.5:
                beta /= 2.0


def _gain(policy: DeviceSequence, x_BMF: Tensor, device_BM: Tensor, old_BMD: Tensor,
          advantage_B: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(mean over stages of ratio x advantage, mean divergence of a stage)."""
    _, now_BMD = policy(x_BMF, device_BM)
    ratio_BM = (of_chosen(now_BMD, device_BM) - of_chosen(old_BMD, device_BM)).exp()
    divergence = (old_BMD.exp() * (old_BMD - now_BMD)).sum(-1).mean()
    return (ratio_BM * advantage_B[:, None]).mean(), divergence
