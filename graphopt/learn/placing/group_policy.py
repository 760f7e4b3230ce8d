"""Placement by groups of ops: `algo=go` where a task decides devices alone.

GO (Zhou et al., NeurIPS 2020, section 3) decides the device of every op, from nothing, by the graph's reward; that is
`algo=go_paper`. Ours:

- Groups of ops decide (`op_groups`), not single ops; a group never spans two devices of the plan at hand.
- y(0) is the best plan of METIS and of heuristics, each an evaluation; y(t) is the best plan so far. Every `again`
  updates the groups are made anew from it, and the network is asked again.
- The features of a device are the group's relations to it in the plan at hand: bytes from and to it, its load. So
  devices have no names, and one network serves any number of them.
- Inside the budget PPO moves a table of logits, which begins at the network's and at `prior` for the device at hand.
  The reward is the graph's, standardised over the samples of an update.
- Training: from plans of heuristics and from better ones nearby all moves of one group are priced. The policy learns
  prior x exp(advantage / `temperature`), the best policy of that distance from the prior; advantages are relative,
  log-compressed on the scale of the plan's median. Rewards of whole graphs taught less (docs/papers.md).

Shape legend: N ops, M groups, D devices, S samples, E dependencies between kernels, W width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, product

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.core.graph import F64, I64
from graphopt.core.plan import Decision, Decisions, Role
from graphopt.core.utils.marks import Count, Few, Positive, Whole
from graphopt.learn.placing.op_groups import of_chosen, op_groups, rewards
from graphopt.problems.assignment import AssignProblem
from graphopt.search.heuristics.rules import SchedulingInstance, Weight, metis_depth_first
from graphopt.search.heuristics.starts import placements

BALANCED: tuple[Weight, ...] = ("time", "bytes")  # by METIS, with such an excess at most
IMBALANCES = (0.02, 0.1, 0.3)
RELATION = 6  # numbers of a group and a device
MOST_MOVED = 3  # groups at once, where training looks for better plans
TRIALS = 8  # at each step of that


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """conf/algo/go.yaml explains them."""

    groups: Few
    partitions: bool
    samples: Few
    rate: Positive
    again: Count
    states: Whole
    temperature: Positive


@dataclass(frozen=True)
class GroupState:
    """Groups of a plan. of: [N], -1 without a choice. device: [M]. sends: [M, M] share of all bytes, from row to
    column. seconds: [M, D] of a group's kernels, over the mean of all groups. ops: [M]"""

    of: I64
    device: Tensor
    sends: Tensor
    seconds: Tensor
    ops: Tensor

    def to(self, device: torch.device) -> "GroupState":
        """Its tensors there."""
        parts = (self.device, self.sends, self.seconds, self.ops)
        return GroupState(self.of, *(part.to(device) for part in parts))


@dataclass(frozen=True)
class TaughtState:
    """advantage: [M, D] of moving one group alone; 0 where it is."""

    state: GroupState
    advantage: Tensor


class PlanGroups:
    """The ops of a problem in groups, each cut by the devices of a plan."""

    def __init__(self, problem: AssignProblem, settings: GroupSettings) -> None:
        self.problem, self.base = problem, op_groups(problem, settings.groups).of
        self._partitions = settings.partitions
        self.devices = problem.task.machine.num_devices
        self.column = problem.task.column(Role.DEVICE)
        self.free = self.base >= 0
        self.instance = instance = SchedulingInstance(problem.graph, problem.task)
        self._reader = np.repeat(np.arange(problem.graph.num_ops), np.diff(instance.needs.ptr))
        time = instance.kernels.time
        self._seconds = np.where(np.isfinite(time), time, np.where(np.isfinite(time), time, 0.0).max() * 10.0)

    def state(self, device_N: np.ndarray) -> GroupState:
        """The groups of a plan [N]."""
        of = np.full(len(self.base), -1)
        cut = self.base * self.devices + device_N
        _, first, of[self.free] = np.unique(cut[self.free], return_index=True, return_inverse=True)
        count, needs = len(first), self.instance.needs
        here, there = of[needs.source.astype(np.int64)], of[self._reader]
        kept = (here >= 0) & (there >= 0) & (here != there)
        sends = np.zeros((count, count))
        np.add.at(sends, (here[kept], there[kept]), needs.size[kept])
        seconds = np.zeros((count, self.devices))
        np.add.at(seconds, of[self.free], self._seconds[self.free])
        return GroupState(
            of,
            torch.from_numpy(device_N[self.free][first].astype(np.int64)),
            torch.from_numpy((sends / max(float(needs.size.sum()), 1.0)).astype(np.float32)),
            torch.from_numpy((seconds / max(float(seconds.mean()), 1e-30)).astype(np.float32)),
            torch.from_numpy(np.bincount(of[self.free], minlength=count).astype(np.float32)),
        )

    def decisions(self, state: GroupState, device_SM: np.ndarray) -> Decisions:
        """[S, N, H]"""
        found = np.repeat(self.problem.initial[None], len(device_SM), 0)
        found[:, self.free, self.column] = device_SM[:, state.of[self.free]]
        return found

    def starts(self) -> Iterator[Decision]:
        """[N, H] distinct plans of METIS, if it is asked for, and of all heuristics, made when they are asked for."""
        settings = product(BALANCED, IMBALANCES) if self._partitions else ()
        partitions = (metis_depth_first(self.instance, *setting) for setting in settings)
        seen = set()
        for plan in chain(partitions, placements(self.instance)):
            decision = self.decision(plan.device)
            if decision.tobytes() not in seen:
                seen.add(decision.tobytes())
                yield decision

    def decision(self, device_N: np.ndarray) -> Decision:
        """[N, H] of a placement [N]."""
        found = self.problem.initial.copy()
        found[self.free, self.column] = device_N[self.free]
        return found


def bonus(probability: float, count: int) -> float:
    """The term added to one of `count` equal logits, so that its choice has this probability; 0: nothing."""
    return float(np.log(probability / (1.0 - probability) * max(1, count - 1))) if probability else 0.0


class GroupPolicy(nn.Module):
    """[M, D] logits of where each group goes, given the plan at hand."""

    def __init__(self, width: int, prior: float) -> None:
        super().__init__()
        self.at_hand = prior
        self.own, self.relation = nn.Linear(width + 2, width), nn.Linear(RELATION, width)
        self.made, self.read, self.beside = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.hidden, self.out = nn.Linear(width, width), nn.Linear(width, 1)
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)

    def prior(self, state: GroupState) -> Tensor:
        """[M, D] logits before training."""
        devices = state.seconds.shape[1]
        return nn.functional.one_hot(state.device, devices) * bonus(self.at_hand, devices)

    def forward(self, h_NW: Tensor, state: GroupState) -> Tensor:
        state, member = state.to(h_NW.device), torch.from_numpy(state.of).to(h_NW.device)
        count, devices = state.seconds.shape
        kept = member >= 0
        mean_MW = h_NW.new_zeros(count, h_NW.shape[1]).index_add(0, member[kept], h_NW[kept]) / state.ops[:, None]
        at_MD = nn.functional.one_hot(state.device, devices).float()
        traffic_M1 = (state.sends + state.sends.T).sum(1, keepdim=True).clamp(min=1e-9)
        from_MM, to_MM = state.sends.T / traffic_M1, state.sends / traffic_M1
        time_M1 = (state.seconds * at_MD).sum(1, keepdim=True) / count  # share of a plan whose groups are alike
        load_D = (at_MD * time_M1).sum(0)
        own_MW = self.own(torch.cat([mean_MW, torch.log1p(time_M1 * count), torch.log1p(traffic_M1 * count)], 1))
        said_MW = nn.functional.gelu(own_MW)
        relation = torch.stack([at_MD, from_MM @ at_MD, to_MM @ at_MD, load_D.expand(count, -1),
                                load_D + (1.0 - at_MD) * state.seconds / count,
                                state.seconds.clamp(max=4.0)], 2)  # fmt: skip
        x_MDW = own_MW[:, None] + self.relation(relation)
        x_MDW = x_MDW + torch.einsum("mn,nd,nw->mdw", from_MM, at_MD, self.made(said_MW))
        x_MDW = x_MDW + torch.einsum("mn,nd,nw->mdw", to_MM, at_MD, self.read(said_MW))
        x_MDW = nn.functional.gelu(x_MDW + (at_MD * time_M1).T @ self.beside(said_MW))
        x_MDW = x_MDW + nn.functional.gelu(self.hidden(x_MDW))
        logits: Tensor = self.out(x_MDW).squeeze(2) + self.prior(state)
        return logits

    def loss(self, h_NW: Tensor, taught: TaughtState, temperature: float) -> Tensor:
        """Kullback-Leibler divergence of the improved policy from this one, the mean over groups."""
        wanted = torch.log_softmax(self.prior(taught.state) + taught.advantage / temperature, 1)
        said = torch.log_softmax(self(h_NW, taught.state), 1)
        wanted = wanted.to(said.device)
        return (wanted.exp() * (wanted - said)).sum(1).mean()


Ask = Callable[[GroupState], Tensor]
"""[M, D] logits."""


def place(problem: AssignProblem, settings: GroupSettings, ask: Ask, clip: float, epochs: int) -> None:
    """Spends the budget; without one the policy's answer to the most promising heuristic is the decision."""
    grouping = PlanGroups(problem, settings)
    for start in grouping.starts():
        if not problem.evals_cap:
            state = grouping.state(start[:, grouping.column])
            problem.commit(grouping.decisions(state, ask(state).argmax(1)[None].numpy(force=True))[0])
            return
        if 2 * problem.evals >= problem.evals_cap:
            break
        problem.cost(start[None])
    lift_ND = torch.zeros(problem.graph.num_ops, grouping.devices)  # the table's terms beside the network's logits
    free = torch.from_numpy(grouping.free)
    now: np.ndarray | None = None
    update = 0
    while problem.open:
        best = problem.best[:, grouping.column]
        if update % settings.again == 0 and (now is None or not np.array_equal(now, best)):
            now, state = best.copy(), grouping.state(best)
            said, member = ask(state).detach().cpu(), torch.from_numpy(state.of)[free]
            table = torch.zeros_like(said).index_add(0, member, lift_ND[free]) / state.ops[:, None]
            optimizer = torch.optim.Adam([table.requires_grad_()], lr=settings.rate)
        count = min(settings.samples, problem.remaining)
        log_p = torch.log_softmax(said + table.detach(), 1)
        device_SM = torch.multinomial(log_p.exp(), count, replacement=True).T
        reward_S = rewards(problem, grouping.decisions(state, device_SM.numpy()))
        advantage_S1 = ((reward_S - reward_S.mean()) / (reward_S.std(correction=0) + 1e-6))[:, None]
        before = of_chosen(log_p.expand(count, -1, -1), device_SM)
        for _ in range(epochs):
            log_p = torch.log_softmax(said + table, 1)
            ratio = (of_chosen(log_p.expand(count, -1, -1), device_SM) - before).exp()
            gain = torch.minimum(ratio * advantage_S1, ratio.clamp(1 - clip, 1 + clip) * advantage_S1)
            optimizer.zero_grad()
            (-gain.mean()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        lift_ND[free] = table.detach()[member]
        update += 1


# ---- training data


def taught_states(problem: AssignProblem, settings: GroupSettings) -> list[TaughtState]:
    """Plans of the best heuristics, and better ones nearby, with the advantages of all their moves."""
    grouping, rng = PlanGroups(problem, settings), problem.rng
    column = grouping.column
    plans = np.stack(list(grouping.starts()))
    best = plans[np.argsort(problem.cost(plans), kind="stable")][: max(1, settings.states // 2)]
    found = [plan[:, column] for plan in best]
    while len(found) < settings.states:
        found.append(_nearby(problem, grouping, found[len(found) % len(best)], int(rng.integers(5, 120))))
    taught = [taught_state(problem, grouping, device_N) for device_N in found]
    return [each for each in taught if each is not None]


def _nearby(problem: AssignProblem, grouping: PlanGroups, device_N: np.ndarray, steps: int) -> np.ndarray:
    """After so many steps, each the best of some random moves of few groups, where that is better."""
    cost = float(problem.cost(grouping.decision(device_N)[None])[0])
    for _ in range(steps):
        state = grouping.state(device_N)
        device_SM = state.device.numpy()[None].repeat(TRIALS, 0)
        for row in device_SM:
            moved = problem.rng.choice(len(row), min(len(row), int(problem.rng.integers(1, MOST_MOVED + 1))), False)
            row[moved] = problem.rng.integers(0, grouping.devices, len(moved))
        decisions = grouping.decisions(state, device_SM)
        costs = problem.cost(decisions)
        if costs.min() < cost:
            cost, device_N = float(costs.min()), decisions[int(costs.argmin()), :, grouping.column]
    return device_N


def taught_state(problem: AssignProblem, grouping: PlanGroups, device_N: np.ndarray) -> TaughtState | None:
    """The advantages of all moves of one group; None from a plan that is infeasible."""
    cost = float(problem.cost(grouping.decision(device_N)[None])[0])
    if not np.isfinite(cost):
        return None
    state = grouping.state(device_N)
    at = state.device.numpy()
    group, device = np.nonzero(np.arange(grouping.devices) != at[:, None])
    moved = np.repeat(at[None], len(group), 0)
    moved[np.arange(len(group)), group] = device
    advantage = np.zeros((len(at), grouping.devices))
    advantage[group, device] = (cost - problem.cost(grouping.decisions(state, moved))) / cost
    return TaughtState(state, torch.from_numpy(_compressed(advantage).astype(np.float32)))


def _compressed(advantage: F64) -> F64:
    """Log-compressed on the scale of the median; an infeasible plan is as bad as the worst."""
    known = np.isfinite(advantage)
    size = np.abs(advantage[known & (advantage != 0)])
    scale = float(np.median(size)) if len(size) else 1.0
    filled = np.where(known, advantage, -size.max(initial=scale))
    return np.asarray(np.sign(filled) * np.log1p(np.abs(filled) / scale))
