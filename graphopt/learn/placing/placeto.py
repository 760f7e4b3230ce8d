"""Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning (Addanki,
Venkatakrishnan, Gupta, Mao, Alizadeh, NeurIPS 2019).

An episode starts from a placement and visits every group of ops once, in topological order; at each visit the policy
says where this group goes, given where all others are, and earns the fall of the run time. So every visit is an
evaluation. The policy: messages along and against the edges; the visited group's own state beside sums over its
ancestors, its descendants and the groups parallel to it; a classifier. REINFORCE, with a baseline for every time step:
the mean of the last episodes' returns from there. It learns while the graph is being solved.

As in the authors' code: features are cost, output size, current and done bits and the placement. There are eight rounds
of messages. The baseline has a window of ten, and the learning rate falls linearly. Not known or ours are the groups
(`op_groups`), and no start times among the features (an evaluation here is a price). So are the default placement as
the start of every episode, and the entropy bonus. Several episodes make an update together (theirs: 4 to 8 workers).
The reward is in units of the default's price, and a plan that does not fit counts as ten times the default.

Shape legend: B episodes, M groups, D devices, F features, W width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.core.plan import Role
from graphopt.core.utils.marks import Few, NotNegative, Share, Whole, Width
from graphopt.learn.placing.op_groups import (
    FEATURES,
    GroupMessages,
    OpGroups,
    discounted,
    learn_on_groups,
    of_chosen,
    of_groups,
    placed_as,
    rewards,
)
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.search.walks.moves import progress

WINDOW = 10  # episodes that the baseline is a mean of
ENTROPY, GRADIENT = 0.01, 1.0  # weight of the bonus, largest norm


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Updates."""

    together: Few  # episodes that make one
    rate: NotNegative  # at first ...
    last_rate: NotNegative  # ... and at the end of the budget
    discount: Share


class Placeto(Optimizer):
    """yaml: conf/algo/placeto.yaml. groups: at most so many. width, rounds: of the messages."""

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, groups: Few, width: Width, rounds: Whole, learning: Episodes) -> None:
        self.name, self.groups, self.width, self.rounds, self.learning = name, groups, width, rounds, learning

    def solve(self, problem: AssignProblem) -> None:
        learn_on_groups(problem, self.groups, self._learn)

    def _learn(self, problem: AssignProblem, groups: OpGroups) -> None:
        learning = self.learning
        policy = _Visits(groups, problem.task.machine.num_devices, self.width, self.rounds)
        optimizer = torch.optim.Adam(policy.parameters(), lr=learning.rate)
        past: list[Tensor] = []
        while problem.open:
            earned_BM, log_p_BM, entropy = _episodes(problem, groups, policy, learning.together)
            returns_BM = discounted(earned_BM, learning.discount)
            past = [*past, *returns_BM][-WINDOW:]
            loss = -((returns_BM - torch.stack(past).mean(0)) * log_p_BM).mean() - ENTROPY * entropy
            for group in optimizer.param_groups:
                group["lr"] = learning.rate + (learning.last_rate - learning.rate) * progress(problem)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(policy.parameters(), GRADIENT)
            optimizer.step()


def _episodes(problem: AssignProblem, groups: OpGroups, policy: "_Visits",
              count: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(rewards [B, M], log-probabilities [B, M], mean entropy) of as many episodes as are asked for and can be paid."""
    count = min(count, problem.remaining // len(groups))
    if not count:  # the rest pays for no episode: the policy's present answers are priced
        count = 1
    start = problem.initial[:, problem.task.column(Role.DEVICE)]
    device_BM = torch.from_numpy(of_groups(groups, start)).repeat(count, 1)
    before_B, earned, log_ps, spread = -torch.ones(count), [], [], []
    for visit in range(len(groups)):
        log_p_BD = torch.log_softmax(policy(device_BM, visit), -1)
        device_B = torch.multinomial(log_p_BD.exp(), 1)[:, 0]
        device_BM = device_BM.clone()
        device_BM[:, visit] = device_B
        if problem.remaining < count:
            raise OutOfBudget
        now_B = -(rewards(problem, placed_as(problem, groups.of, device_BM.numpy())) ** 2).clamp(max=10.0)
        earned.append(now_B - before_B)
        log_ps.append(of_chosen(log_p_BD, device_B))
        spread.append(-(log_p_BD.exp() * log_p_BD).sum(-1).mean())
        before_B = now_B
    return torch.stack(earned, 1), torch.stack(log_ps, 1), torch.stack(spread).mean()


class _Visits(nn.Module):
    """[B, D] logits of the visited group's device."""

    def __init__(self, groups: OpGroups, devices: int, width: int, rounds: int) -> None:
        super().__init__()
        self.x, self.reads, self.devices = groups.x, groups.reads, devices
        above = _reached(groups.reads)  # [M, M] whether the column is an ancestor of the row
        beside = (1.0 - above - above.T).clamp(min=0.0) * (1.0 - torch.eye(len(groups)))
        self.around = torch.stack([above, above.T, beside])  # [3, M, M]
        self.messages = GroupMessages(FEATURES + 2 + devices, width, rounds)
        self.gather = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3))
        self.out = nn.Sequential(nn.Linear(4 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, devices))

    def forward(self, device_BM: Tensor, visit: int) -> Tensor:
        bits = torch.zeros(len(self.x), 2)
        bits[visit, 0], bits[:visit, 1] = 1.0, 1.0
        known = torch.cat([self.x, bits], 1).expand(len(device_BM), -1, -1)
        where = nn.functional.one_hot(device_BM, self.devices).float()
        h_BMW = self.messages(torch.cat([known, where], 2), self.reads)
        near = [(weight[visit] / weight[visit].sum().clamp(min=1.0)) @ gather(h_BMW)
                for weight, gather in zip(self.around, self.gather, strict=True)]  # fmt: skip
        logits: Tensor = self.out(torch.cat([h_BMW[:, visit], *near], 1))
        return logits


def _reached(reads_MM: Tensor) -> Tensor:
    """[M, M] whether each group reads from another, directly or through others."""
    known = reads_MM > 0
    for _ in range(max(1, int(np.ceil(np.log2(max(2, len(reads_MM))))))):
        known = known | ((known.float() @ known.float()) > 0)
    return known.float()
