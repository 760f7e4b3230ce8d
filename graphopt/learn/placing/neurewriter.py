"""NeuRewriter: Learning to Perform Local Rewriting for Combinatorial Optimization (Chen, Tian, NeurIPS 2019), for
placement.

From a whole solution on, again and again: a *region picker* predicts the value of rewriting every region, Q(s, w), and
draws one by softmax of it; a *rule picker* draws one of the rules that apply there, and the solution is rewritten, for
better or worse. Both read the whole solution. Advantage actor-critic (section 3.2): Q is regressed to the discounted
rewards that followed. The rule picker follows the policy gradient with that return minus Q as advantage. Both losses
are added, Q's with weight 10. Here a region is a group of ops and a rule moves it to another device; a rewriting earns
the fall of the price, in units of the default's, and is an evaluation. It learns while the graph is being solved.

Ours: the groups (`op_groups`), messages in both directions as encoder (the paper: LSTMs over trees and graphs of its
own domains), episodes that start at the best so far after the first round from the default, several of them in an
update.

Shape legend: B episodes, M groups, D devices, W width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graphopt.core.plan import Role
from graphopt.core.utils.marks import Few, NotNegative, Positive, Share, Whole, Width
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

CRITIC, GRADIENT = 10.0, 1.0  # weight of the region picker's loss (section 3.2); largest norm


@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """Updates."""

    together: Few  # episodes that make one
    steps: Few  # rewritings in an episode
    rate: NotNegative
    discount: Share


class NeuRewriter(Optimizer):
    """yaml: conf/algo/neurewriter.yaml. groups: at most so many regions. width, rounds: of the messages. temperature:
    of the softmax over Q."""

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, groups: Few, width: Width, rounds: Whole, temperature: Positive,
                 learning: ActorCritic) -> None:  # fmt: skip
        self.name, self.groups, self.width, self.rounds = name, groups, width, rounds
        self.temperature, self.learning = temperature, learning

    def solve(self, problem: AssignProblem) -> None:
        if problem.task.machine.num_devices > 1:
            learn_on_groups(problem, self.groups, self._learn)

    def _learn(self, problem: AssignProblem, groups: OpGroups) -> None:
        learning = self.learning
        pickers = _Pickers(groups, problem.task.machine.num_devices, self.width, self.rounds)
        optimizer = torch.optim.Adam(pickers.parameters(), lr=learning.rate)
        while problem.open:
            earned_BT, worth_BT, log_p_BT = self._episodes(problem, groups, pickers)
            back_BT = discounted(earned_BT, learning.discount)
            critic = (back_BT - worth_BT).square().mean()
            actor = -((back_BT - worth_BT).detach() * log_p_BT).mean()
            optimizer.zero_grad()
            (actor + CRITIC * critic).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(pickers.parameters(), GRADIENT)
            optimizer.step()

    def _episodes(self, problem: AssignProblem, groups: OpGroups, pickers: "_Pickers") -> tuple[Tensor, Tensor, Tensor]:
        """(earned, Q of the chosen region, log-probability of the rule), [B, T] each."""
        count = min(self.learning.together, problem.remaining)
        steps = max(1, min(self.learning.steps, problem.remaining // count))
        start = problem.best[:, problem.task.column(Role.DEVICE)]
        device_BM = torch.from_numpy(of_groups(groups, start)).repeat(count, 1)
        before_B = (
            torch.full((count,), -problem.best_cost / problem.initial_cost) if problem.evals else -torch.ones(count)
        )
        rows, earned, worth, log_ps = torch.arange(count), [], [], []
        for _ in range(steps):
            q_BM, log_p_BMD = pickers(device_BM)
            region_B = torch.multinomial(torch.softmax(q_BM.detach() / self.temperature, 1), 1)[:, 0]
            rule_B = torch.multinomial(log_p_BMD[rows, region_B].exp(), 1)[:, 0]
            device_BM = device_BM.clone()
            device_BM[rows, region_B] = rule_B
            now_B = -(rewards(problem, placed_as(problem, groups.of, device_BM.numpy())) ** 2).clamp(max=10.0)
            earned.append(now_B - before_B)
            worth.append(q_BM[rows, region_B])
            log_ps.append(of_chosen(log_p_BMD[rows, region_B], rule_B))
            before_B = now_B
        return torch.stack(earned, 1), torch.stack(worth, 1), torch.stack(log_ps, 1)


class _Pickers(nn.Module):
    """(Q of every region [B, M], log-probabilities of the rules of every region [B, M, D], never the present
    device)."""

    def __init__(self, groups: OpGroups, devices: int, width: int, rounds: int) -> None:
        super().__init__()
        self.x, self.reads, self.devices = groups.x, groups.reads, devices
        self.messages = GroupMessages(FEATURES + devices, width, rounds)
        self.region = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.rule = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, devices))

    def forward(self, device_BM: Tensor) -> tuple[Tensor, Tensor]:
        where = nn.functional.one_hot(device_BM, self.devices).float()
        h_BMW = self.messages(torch.cat([self.x.expand(len(device_BM), -1, -1), where], 2), self.reads)
        both = torch.cat([h_BMW, h_BMW.mean(1, keepdim=True).expand_as(h_BMW)], 2)
        rules = self.rule(both).masked_fill(where > 0, -1e9)
        return self.region(both)[..., 0], torch.log_softmax(rules, -1)
