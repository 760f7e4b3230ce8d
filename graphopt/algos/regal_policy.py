"""REGAL's policy: from a graph to the parameters of BRKGA.

Every gene of an op has a Beta distribution given by two categorical actions with k = 16 values each, a mean index m and
a variance index v: mu = (m + 1) / (k + 1), sigma^2 = mu (1 - mu) (v + 1) / (k + 1), alpha + beta = (k - v) / (v + 1).
The elite bias of an op is one more categorical, rho = 0.5 + 0.5 (i + 0.5) / k.

Our choices, where the paper is silent or what it says did not learn in our time (docs/results.md):
- An op's action has a discretised normal distribution: its centre comes from the network, its width is learned per kind
  of action. Neighbouring indices are neighbouring Betas, so what is learned of one is learned of the next.
- One head serves all devices; it reads the op's state and how far the op belongs to the device (`regal_inputs`). So a
  policy runs on any number of devices.
- A centre is linear in the op's inputs plus a network of its state that starts at zero. The weights of the linear maps
  are an action of the *graph*: normal, with a mean that depends on the graph's state and on a few `DESCRIPTORS` of it.
  One graph action moves thousands of genes together, so its effect stands out of the noise of a BRKGA run, which that
  of an op's own action does not. Two more actions of a graph are strengths, of placement and of scheduling: how far the
  proposal is from uniform keys, which are best on some graphs, and which no small change of weights leads to.
- The untrained policy is the `prior`: a moderate proposal of a spectral partition or, the fewer results live at once,
  of a cautious list schedule, which seldom leaves the first device there; or (all 0) nearly uniform keys.

Shape legend: N ops of all graphs of a batch, G graphs, D devices, A actions of an op (2 D + 2 + 1), P actions of a
graph, S samples, X inputs of a head.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.algos.regal_inputs import DESCRIPTORS, MEMBERSHIPS, ORDERS
from graphopt.encoders.encoder import Encoder

LEVELS = 16  # k
MIDDLE = (LEVELS - 1) / 2
UNIFORM_VARIANCE = 14 / 3  # the index at which alpha + beta = 2: with the middle mean, the uniform distribution
STRONGEST = 1.5  # strength
KINDS = 5  # of op actions: mean and variance of affinities, mean and variance of priorities, elite bias
F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Heads:
    """How actions are made."""

    kind: Literal["independent", "autoregressive"]
    width: int  # of the networks behind the heads
    op_spread: float  # standard deviation of an op's actions before training, in indices
    graph_spread: float  # standard deviation of a graph's actions before training, in indices; 0: not sampled
    strength_spread: float  # the same of its two strengths, of which 1 is the proposal and 0 uniform keys
    placement_prior: float  # shift of the mean of a device's keys by full membership in its spectral part, where ...
    caution_prior: float  # ... most results live at once; by membership in a cautious list schedule's where few do
    placement_variance: float  # variance index of affinities before training


@dataclass(frozen=True)
class Question:
    """A batch of graphs as the policy sees it."""

    data: Any  # features of all graphs
    order: Tensor  # [N, X]
    member: Tensor  # [N, D, X]
    whole: Tensor  # [G, len(DESCRIPTORS)]


class Action(NamedTuple):
    """What was decided, S times."""

    graph: Tensor  # [S, G, P]
    op: Tensor  # [S, N, A] indices


class States(NamedTuple):
    """What the encoder made of a batch."""

    op: Tensor  # [N, width]
    graph_of: Tensor  # [N]
    mean: Tensor  # [G, P] of the graphs' actions


class Head(nn.Module):
    """Centres of op actions of one kind: linear in the inputs with weights that the graph chose, plus a network."""

    def __init__(self, state: int, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.shape = (inputs + 1, outputs)
        self.hidden = nn.Linear(state + inputs, width)
        self.out = nn.Linear(width, outputs, bias=False)
        nn.init.zeros_(self.out.weight)

    @property
    def size(self) -> int:
        """Number of linear weights."""
        return self.shape[0] * self.shape[1]

    def forward(self, state: Tensor, inputs: Tensor, weights: Tensor) -> Tensor:
        """[N, outputs] from states [N, W], inputs [N, X], weights [N, size]; from inputs [N, D, X] [N, D, outputs]."""
        linear = weights.view(-1, *self.shape) if inputs.dim() == 2 else weights.view(-1, 1, *self.shape)
        of_state, of_inputs = self.hidden.weight.split_with_sizes([state.shape[-1], inputs.shape[-1]], 1)
        read = nn.functional.linear(state, of_state, self.hidden.bias)  # once per op, whatever the number of devices
        read = read if inputs.dim() == state.dim() else read[:, None]
        hidden = nn.functional.gelu(read + nn.functional.linear(inputs, of_inputs))
        given = (inputs[..., None] * linear[..., :-1, :]).sum(-2)  # a product of small matrices per op would be slow
        out: Tensor = given + linear[..., -1, :] + self.out(hidden) * LEVELS
        return out


class Policy(nn.Module):
    """p(y | G): samples of actions and their log-probabilities."""

    def __init__(self, encoder: Encoder, heads: Heads) -> None:
        super().__init__()
        self.encoder, self.heads = encoder, heads
        recurrent = heads.width if heads.kind == "autoregressive" else 0
        state = encoder.width + recurrent
        self.placement = Head(state, len(MEMBERSHIPS), heads.width, 2)
        self.scheduling = Head(state, len(ORDERS), heads.width, 2)
        self.elite_bias = Head(state, len(ORDERS), heads.width, 1)
        prior, by_live = _prior(heads)
        self.graph_mean = nn.Linear(encoder.width, len(prior))
        self.describe = nn.Linear(len(DESCRIPTORS), len(prior), bias=False)
        nn.init.zeros_(self.graph_mean.weight)
        nn.init.zeros_(self.describe.weight)
        with torch.no_grad():
            self.graph_mean.bias.copy_(prior)
            self.describe.weight[:, DESCRIPTORS.index("live")] = by_live
        spreads = torch.tensor([heads.graph_spread] * (len(prior) - 2) + [heads.strength_spread] * 2)
        self.log_graph_spread = nn.Parameter(spreads.clamp(min=1e-6).log())
        self.log_op_spread = nn.Parameter(torch.full((KINDS,), float(np.log(heads.op_spread))))
        if recurrent:
            self.memory = nn.GRU(encoder.width + KINDS, recurrent)

    def read(self, question: Question) -> States:
        h_ND, g_GD = self.encoder(question.data, question.order)
        count = question.data.num_ops
        return States(h_ND, torch.repeat_interleave(torch.arange(len(count), device=h_ND.device), count),
                      self.graph_mean(g_GD) + self.describe(question.whole))  # fmt: skip

    def propose(self, question: Question, samples: int) -> Action:
        """Sampled actions, those of graphs in opposite pairs; with 0 samples the most probable ones, S = 1."""
        states = self.read(question)
        graph = states.mean.expand(max(1, samples), -1, -1)
        if samples and self.heads.graph_spread:
            graph = graph + opposite_pairs(graph) * self.log_graph_spread.exp()
        if self.heads.kind == "autoregressive":
            return Action(graph, self._in_turn(question, states, graph, samples > 0))
        rows = [self._draw(self.centres(question, states, row), samples > 0) for row in graph]
        return Action(graph, torch.stack(rows))

    def log_prob(self, question: Question, action: Action) -> tuple[Tensor, Tensor, Tensor]:
        """([S, G, P] of the graphs' actions, [S, N, A] of the ops' actions, [] mean entropy of an op's action)."""
        states, spread = self.read(question), self.log_graph_spread.exp()
        of_graph = -0.5 * ((action.graph - states.mean) / spread) ** 2 - self.log_graph_spread
        if not self.heads.graph_spread:
            of_graph = torch.zeros_like(of_graph)
        if self.heads.kind == "autoregressive":
            log_p = self._teacher_forced(question, states, action)
        else:
            log_p = torch.stack([self.log_probs(self.centres(question, states, row)) for row in action.graph])
        of_op = log_p.gather(-1, action.op[..., None]).squeeze(-1)
        return of_graph, of_op, -(log_p.exp() * log_p).sum(-1).mean()

    def centres(self, question: Question, states: States, graph: Tensor, memory: Tensor | None = None) -> Tensor:
        """[N, A] centres of the ops' actions, given those of the graphs [G, P]: (mean, variance) per device, of the
        priority, then the elite bias."""
        own = states.op if memory is None else torch.cat([states.op, memory], 1)
        place, order, bias, strength = graph[states.graph_of].split_with_sizes([*self._sizes, 2], 1)
        affinity = self.placement(own, question.member, place)
        priority = self.scheduling(own, question.order, order)
        centres = [weakened(affinity, strength[:, :1, None]).flatten(1), weakened(priority, strength[:, 1:]),
                   self.elite_bias(own, question.order, bias)]  # fmt: skip
        return torch.cat(centres, 1)

    @property
    def _sizes(self) -> list[int]:
        return [self.placement.size, self.scheduling.size, self.elite_bias.size]

    def used_by_graph(self, placement: bool, scheduling: bool, bias: bool) -> Tensor:
        """[P] 1 for the actions of a graph that reach a head in use."""
        sizes = zip((placement, scheduling, bias), self._sizes, strict=True)
        used = [on for on, size in sizes for _ in range(size)] + [placement, scheduling]
        return torch.tensor(used, device=self.log_op_spread.device).float()

    def log_probs(self, centres: Tensor) -> Tensor:
        """[N, A, k] log-probabilities of every index."""
        devices = (centres.shape[1] - 3) // 2
        kind = torch.tensor([0, 1] * devices + [2, 3, 4], device=centres.device)
        spread = self.log_op_spread[kind].exp().clamp(0.25, LEVELS)
        index = torch.arange(LEVELS, device=centres.device)
        centres = centres.clamp(-1.0, float(LEVELS))
        return torch.log_softmax(-0.5 * ((index - centres[:, :, None]) / spread[:, None]) ** 2, -1)

    def _draw(self, centres: Tensor, sample: bool) -> Tensor:
        """[N, A] indices, sampled or the most probable ones: the nearest, of two the lower."""
        if not sample:
            return torch.ceil(centres - 0.5).clamp(0, LEVELS - 1).long()
        log_p = self.log_probs(centres)
        return torch.multinomial(log_p.exp().reshape(-1, LEVELS), 1).reshape(log_p.shape[:2])

    # ---- autoregressive heads: ops in topological order, each sees what was decided before

    def _in_turn(self, question: Question, states: States, graph: Tensor, sample: bool) -> Tensor:
        """[S, N, A] op by op, all samples at once."""
        count, rows = len(graph), []
        memory = states.op.new_zeros((1, count, self.heads.width))
        for n, g in enumerate(states.graph_of.tolist()):
            if n == 0 or g != states.graph_of[n - 1]:
                memory = torch.zeros_like(memory)
            here = Question(
                None, question.order[n].expand(count, -1), question.member[n].expand(count, -1, -1), question.whole
            )
            one = States(states.op[n].expand(count, -1), torch.arange(count, device=graph.device), states.mean)
            rows.append(self._draw(self.centres(here, one, graph[:, g], memory[0]), sample))
            _, memory = self.memory(torch.cat([one.op, summary(rows[-1])], 1)[None], memory)
        return torch.stack(rows, 1)

    def _teacher_forced(self, question: Question, states: States, action: Action) -> Tensor:
        """[S, N, A, k] log-probabilities given the decisions that were made."""
        said = torch.cat([states.op.expand(len(action.op), -1, -1), summary(action.op)], 2)
        before = []
        for part in said.split_with_sizes(question.data.num_ops.tolist(), 1):
            heard, _ = self.memory(part.transpose(0, 1))
            before.append(torch.cat([torch.zeros_like(heard[:1]), heard[:-1]]).transpose(0, 1))
        memory = torch.cat(before, 1)
        rows = [self.log_probs(self.centres(question, states, g, m)) for g, m in zip(action.graph, memory)]
        return torch.stack(rows)


def _prior(heads: Heads) -> tuple[Tensor, Tensor]:
    """([P] the linear weights before training, [P] how they change from graphs whose results live one after another to
    those where all live at once); of each head [inputs + 1, outputs], last constants, then two strengths."""
    place, order, bias = (torch.zeros(len(names) + 1, out) for names, out in
                          ((MEMBERSHIPS, 2), (ORDERS, 2), (ORDERS, 1)))  # fmt: skip
    place[-1] = torch.tensor([MIDDLE, heads.placement_variance])
    place[MEMBERSHIPS.index("heft_cautious"), 0] = heads.caution_prior * (LEVELS + 1)
    order[-1] = torch.tensor([MIDDLE, UNIFORM_VARIANCE])
    bias[-1] = 0.4 * LEVELS - 0.5  # rho = 0.7
    change = torch.zeros_like(place)
    change[MEMBERSHIPS.index("spectral_by_bytes"), 0] = heads.placement_prior * (LEVELS + 1)
    change[MEMBERSHIPS.index("heft_cautious"), 0] = -heads.caution_prior * (LEVELS + 1)
    same = torch.zeros(order.numel() + bias.numel() + 2)
    return (torch.cat([place.flatten(), order.flatten(), bias.flatten(), torch.ones(2)]),
            torch.cat([change.flatten(), same]))  # fmt: skip


def weakened(centres: Tensor, strength: Tensor) -> Tensor:
    """Centres of means and variances [..., 2], drawn to those of uniform keys by a strength below 1."""
    uniform = torch.tensor([MIDDLE, UNIFORM_VARIANCE], device=centres.device)
    return uniform + strength.clamp(0.0, STRONGEST) * (centres - uniform)


def opposite_pairs(like: Tensor) -> Tensor:
    """Standard normal noise [S, ...], the second half the negative of the first: less noise in what is learned."""
    noise = torch.randn_like(like[: (len(like) + 1) // 2])
    return torch.cat([noise, -noise])[: len(like)]


def summary(actions: Tensor) -> Tensor:
    """[..., KINDS] what the memory hears of decided actions [..., A]: of the first device, the priority, the bias."""
    return torch.cat([actions[..., :2], actions[..., -3:]], -1).float() / LEVELS - 0.5


def betas(mean_index: NDArray[np.integer], variance_index: NDArray[np.integer]) -> tuple[F32, F32]:
    """(alpha, beta) of Beta distributions by their two indices, elementwise."""
    mean = (mean_index + 1.0) / (LEVELS + 1)
    concentration = (LEVELS - variance_index) / (variance_index + 1.0)
    return (mean * concentration).astype(np.float32), ((1 - mean) * concentration).astype(np.float32)


def elite_bias(index: NDArray[np.integer]) -> F32:
    """rho in (0.5, 1)."""
    return (0.5 + 0.5 * (index + 0.5) / LEVELS).astype(np.float32)
