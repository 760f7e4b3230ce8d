"""Shared parts of learners of placement that learn while they solve. Groups of ops are placed together, messages pass
between them, and a network places them in turn. The reward and seeded randomness are here, too.

Shape legend: N ops, M groups, B decisions, D devices, F features, W width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.core.graph import F64, I64
from graphopt.core.operators import Category
from graphopt.core.plan import Decisions, Role
from graphopt.problems.assignment import AssignProblem
from graphopt.search.heuristics.rules import SchedulingInstance, depth_first

FAILED = -10.0  # reward of a plan that does not fit into memory (GO, section 3; HDP's code: -sqrt(100))
FEATURES = 5 + len(Category)


@dataclass(frozen=True)
class OpGroups:
    """of: [N] the group of each op, -1 without a choice. x: [M, FEATURES]. reads: [M, M] 1 where the group of the row
    reads from that of the column."""

    of: I64
    x: Tensor
    reads: Tensor

    def __len__(self) -> int:
        return len(self.x)


def op_groups(problem: AssignProblem, most: int) -> OpGroups:
    """At most so many groups: runs of the depth-first order, in which an op stands behind its inputs, that are alike in
    time and in number of ops. Where there are fewer ops, each is a group. (The papers group by rules of their own
    frameworks: co-location, heuristics of TensorFlow; this is our choice.)"""
    instance = SchedulingInstance(problem.graph, problem.task)
    column = problem.task.column(Role.DEVICE)
    free = np.flatnonzero(problem.task.mask(problem.graph)[:, column])
    order = free[np.argsort(-depth_first(instance.needs)[free], kind="stable")]
    seconds = instance.weight("time")
    share = seconds[order] / max(float(seconds.sum()), 1e-30) + 1.0 / max(1, len(order))
    middle = (np.cumsum(share) - share / 2) / max(float(share.sum()), 1e-30)
    place = np.arange(len(order)) if len(order) <= most else np.minimum((middle * most).astype(np.int64), most - 1)
    of = np.full(problem.graph.num_ops, -1)
    of[order] = np.unique(place, return_inverse=True)[1]
    count = int(of.max(initial=-1)) + 1
    return OpGroups(of, _features(instance, of, count), _reads(instance, of, count))


def _features(instance: SchedulingInstance, of: I64, count: int) -> Tensor:
    """Share of the time, logarithms of time, bytes made, weights and ops over the mean, shares of the categories."""
    graph, mine = instance.graph, np.flatnonzero(of >= 0)

    def summed(values: NDArray[np.generic]) -> F64:
        return np.bincount(of[mine], values[mine].astype(np.float64), count).astype(np.float64)

    ops = summed(np.ones(graph.num_ops))
    columns = [summed(instance.weight("time")), summed(graph.result_bytes), summed(graph.weight_bytes), ops]
    parts = [
        columns[0] / max(float(columns[0].sum()), 1e-30),
        *(np.log1p(c / max(float(c.mean()), 1e-30)) for c in columns),
    ]
    parts += [summed(graph.category == kind) / np.maximum(ops, 1.0) for kind in Category]
    return torch.from_numpy(np.stack(parts, 1).astype(np.float32))


def _reads(instance: SchedulingInstance, of: I64, count: int) -> Tensor:
    needs = instance.needs
    reader = np.repeat(np.arange(instance.graph.num_ops), np.diff(needs.ptr))
    here, there = of[reader], of[needs.source]
    kept = (here >= 0) & (there >= 0) & (here != there)
    reads = torch.zeros(count, count)
    reads[torch.from_numpy(here[kept]), torch.from_numpy(there[kept].astype(np.int64))] = 1.0
    return reads


def placed_as(problem: AssignProblem, of: I64, device_BM: NDArray[np.integer]) -> Decisions:
    """[B, N, H] the initial decision with every group [N] on its device [B, M]."""
    decisions = np.repeat(problem.initial[None], len(device_BM), 0)
    mine = np.flatnonzero(of >= 0)
    decisions[:, mine, problem.task.column(Role.DEVICE)] = device_BM[:, of[mine]]
    return decisions


def rewards(problem: AssignProblem, decisions: Decisions) -> Tensor:
    """[B] -sqrt(price / the default's price), billed; FAILED where a plan is infeasible."""
    scale = problem.initial_cost
    cost = problem.cost(decisions)
    if not (np.isfinite(scale) and scale > 0):  # the default is infeasible: any scale of the right size will do
        scale = max(float(cost[np.isfinite(cost)].min(initial=np.inf)), 1e-30)
    root = -np.sqrt(np.where(np.isfinite(cost), cost, 0.0) / scale)
    return torch.from_numpy(np.maximum(np.where(np.isfinite(cost), root, FAILED), FAILED).astype(np.float32))


def of_groups(groups: OpGroups, device_N: NDArray[np.integer]) -> I64:
    """[M] the device of the first op of each group."""
    found = np.zeros(len(groups), np.int64)
    mine = np.flatnonzero(groups.of >= 0)[::-1]
    found[groups.of[mine]] = device_N[mine]
    return found


def discounted(earned_BM: Tensor, discount: float) -> Tensor:
    """[B, M] discounted sums of rewards from each step on."""
    out, last = [], torch.zeros(len(earned_BM))
    for step in reversed(range(earned_BM.shape[1])):
        last = earned_BM[:, step] + discount * last
        out.append(last)
    return torch.stack(out[::-1], 1)


@contextmanager
def learning_inside(problem: AssignProblem) -> Iterator[None]:
    """torch's random numbers follow from the problem's, on one thread; all is as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(problem.rng.integers(2**31)))
            yield
    finally:
        torch.set_num_threads(threads)


def learn_on_groups(problem: AssignProblem, most: int, learn: Callable[[AssignProblem, OpGroups], None]) -> None:
    """Lets a learner spend the budget on at most so many groups of ops, where there is any to place."""
    groups = op_groups(problem, most) if problem.open else None
    if groups is not None and len(groups):
        with learning_inside(problem):
            learn(problem, groups)


class GroupMessages(nn.Module):
    """[..., M, W] states of groups from features [..., M, F]. In every round each takes up the messages of its
    producers and, apart, those of its readers. The weights are the same in all rounds."""

    def __init__(self, features: int, width: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.read = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))
        self.say = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2))
        self.take = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2))
        self.join = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, reads_MM: Tensor) -> Tensor:
        own = self.read(x)
        directions = [one / one.sum(1, keepdim=True).clamp(min=1.0) for one in (reads_MM, reads_MM.T)]
        states = [own, own]
        for _ in range(self.rounds):
            states = [own + take(mean @ say(state)) for state, mean, say, take in
                      zip(states, directions, self.say, self.take, strict=True)]  # fmt: skip
        joined: Tensor = self.join(torch.cat(states, -1))
        return joined


class DeviceSequence(nn.Module):
    """The placer of HDP, which Spotlight trains otherwise: a sequence-to-sequence network with attention.

    A bidirectional LSTM reads the groups; an LSTM decoder, fed with the device of the group before, attends to all of
    them (additive attention) and gives a distribution over devices, one group at a time. As in the authors' code
    (TensorFlow 1.x, python/grappler/hierarchical_controller.py): the logits are `bound` x tanh of the last layer.
    """

    def __init__(self, features: int, devices: int, width: int, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.reads = nn.LSTM(features, width // 2, bidirectional=True, batch_first=True)
        self.decides = nn.LSTMCell(width, width)
        self.device = nn.Embedding(devices + 1, width)  # the last one starts
        self.memory, self.query = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.score, self.out = nn.Linear(width, 1, bias=False), nn.Linear(2 * width, devices, bias=False)

    def forward(self, x_BMF: Tensor, given_BM: Tensor | None = None, noise: float = 0.0) -> tuple[Tensor, Tensor]:
        """(devices [B, M], log-probabilities [B, M, D]). given_BM: devices to follow; otherwise they are drawn.

        noise: standard deviation of the noise on the logits, over their root mean square.
        """
        read_BMW, (h, c) = self.reads(x_BMF)
        memory_BMW = self.memory(read_BMW)
        state = tuple(last.transpose(0, 1).reshape(len(x_BMF), -1) for last in (h, c))
        device_B = torch.full((len(x_BMF),), self.device.num_embeddings - 1)
        chosen, said = [], []
        for group in range(x_BMF.shape[1]):
            state = self.decides(self.device(device_B), state)
            logits = self._logits(state[0], memory_BMW)
            if noise:
                logits = logits + logits.detach().square().mean().sqrt() * noise * torch.randn_like(logits)
            log_p = torch.log_softmax(logits, -1)
            device_B = torch.multinomial(log_p.exp(), 1)[:, 0] if given_BM is None else given_BM[:, group]
            chosen.append(device_B)
            said.append(log_p)
        return torch.stack(chosen, 1), torch.stack(said, 1)

    def _logits(self, h_BW: Tensor, memory_BMW: Tensor) -> Tensor:
        weight = torch.softmax(self.score(torch.tanh(self.query(h_BW)[:, None] + memory_BMW)), 1)
        logits: Tensor = self.bound * torch.tanh(self.out(torch.cat([h_BW, (weight * memory_BMW).sum(1)], 1)))
        return logits


def of_chosen(log_p: Tensor, chosen: Tensor) -> Tensor:
    """[...] log-probability of each choice."""
    return log_p.gather(-1, chosen[..., None]).squeeze(-1)
