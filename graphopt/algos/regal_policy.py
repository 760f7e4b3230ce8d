"""REGAL's policy: from a graph to the parameters of BRKGA.

Our choices, where the paper is silent or what it says did not learn in our time (docs/results/regal.md):
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

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphopt.algos.regal_heads import KINDS, LEVELS, ActionHead, Heads, prior_actions, weakened
from graphopt.algos.regal_inputs import DESCRIPTORS, MEMBERSHIPS, ORDERS
from graphopt.encoders.encoder import Encoder


@dataclass(frozen=True)
class REGALObservation:
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


class Policy(nn.Module):
    """p(y | G): samples of actions and their log-probabilities."""

    def __init__(self, encoder: Encoder, heads: Heads) -> None:
        super().__init__()
        self.encoder, self.heads = encoder, heads
        recurrent = heads.width if heads.kind == "autoregressive" else 0
        state = encoder.width + recurrent
        self.placement = ActionHead(state, len(MEMBERSHIPS), heads.width, 2)
        self.scheduling = ActionHead(state, len(ORDERS), heads.width, 2)
        self.elite_bias = ActionHead(state, len(ORDERS), heads.width, 1)
        prior, by_live = prior_actions(heads)
        self.graph_mean = nn.Linear(encoder.width, len(prior))
        self.describe = nn.Linear(len(DESCRIPTORS), len(prior), bias=False)
        nn.init.zeros_(self.graph_mean.weight)
        nn.init.zeros_(self.describe.weight)
        with torch.no_grad():
            self.graph_mean.bias.copy_(prior)
            self.describe.weight[:, DESCRIPTORS.index("live")] = by_live
        spreads = torch.tensor([heads.graph_spread] * (len(prior) - 2) + [heads.strength_spread] * 2)
        self.log_graph_spread = nn.Parameter(spreads.clamp(min=1e-6).log())
        self.log_op_spread = nn.Parameter(torch.full((KINDS,), math.log(heads.op_spread)))
        if recurrent:
            self.memory = nn.GRU(encoder.width + KINDS, recurrent)

    def encode(self, observation: REGALObservation) -> States:
        h_ND, g_GD = self.encoder(observation.data, observation.order)
        count = observation.data.num_ops
        return States(h_ND, torch.repeat_interleave(torch.arange(len(count), device=h_ND.device), count),
                      self.graph_mean(g_GD) + self.describe(observation.whole))  # fmt: skip

    def propose(self, observation: REGALObservation, samples: int) -> Action:
        """Sampled actions, those of graphs in opposite pairs; with 0 samples the most probable ones, S = 1."""
        states = self.encode(observation)
        graph = states.mean.expand(max(1, samples), -1, -1)
        if samples and self.heads.graph_spread:
            graph = graph + opposite_pairs(graph) * self.log_graph_spread.exp()
        if self.heads.kind == "autoregressive":
            return Action(graph, self._in_turn(observation, states, graph, samples > 0))
        rows = [self._draw(self.centres(observation, states, row), samples > 0) for row in graph]
        return Action(graph, torch.stack(rows))

    def log_prob(self, observation: REGALObservation, action: Action) -> tuple[Tensor, Tensor, Tensor]:
        """([S, G, P] of the graphs' actions, [S, N, A] of the ops' actions, [] mean entropy of an op's action)."""
        states, spread = self.encode(observation), self.log_graph_spread.exp()
        of_graph = -0.5 * ((action.graph - states.mean) / spread) ** 2 - self.log_graph_spread
        if not self.heads.graph_spread:
            of_graph = torch.zeros_like(of_graph)
        if self.heads.kind == "autoregressive":
            log_p = self._teacher_forced(observation, states, action)
        else:
            log_p = torch.stack([self.log_probs(self.centres(observation, states, row)) for row in action.graph])
        of_op = log_p.gather(-1, action.op[..., None]).squeeze(-1)
        return of_graph, of_op, -(log_p.exp() * log_p).sum(-1).mean()

    def centres(
        self, observation: REGALObservation, states: States, graph: Tensor, memory: Tensor | None = None
    ) -> Tensor:
        """[N, A] centres of the ops' actions, given those of the graphs [G, P]: (mean, variance) per device, of the
        priority, then the elite bias."""
        own = states.op if memory is None else torch.cat([states.op, memory], 1)
        place, order, bias, strength = graph[states.graph_of].split_with_sizes([*self._sizes, 2], 1)
        affinity = self.placement(own, observation.member, place)
        priority = self.scheduling(own, observation.order, order)
        centres = [weakened(affinity, strength[:, :1, None]).flatten(1), weakened(priority, strength[:, 1:]),
                   self.elite_bias(own, observation.order, bias)]  # fmt: skip
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

    def _in_turn(self, observation: REGALObservation, states: States, graph: Tensor, sample: bool) -> Tensor:
        """[S, N, A] op by op, all samples at once."""
        count, rows = len(graph), []
        memory = states.op.new_zeros((1, count, self.heads.width))
        for n, g in enumerate(states.graph_of.tolist()):
            if n == 0 or g != states.graph_of[n - 1]:
                memory = torch.zeros_like(memory)
            here = REGALObservation(
                None,
                observation.order[n].expand(count, -1),
                observation.member[n].expand(count, -1, -1),
                observation.whole,
            )
            one = States(states.op[n].expand(count, -1), torch.arange(count, device=graph.device), states.mean)
            rows.append(self._draw(self.centres(here, one, graph[:, g], memory[0]), sample))
            _, memory = self.memory(torch.cat([one.op, summary(rows[-1])], 1)[None], memory)
        return torch.stack(rows, 1)

    def _teacher_forced(self, observation: REGALObservation, states: States, action: Action) -> Tensor:
        """[S, N, A, k] log-probabilities given the decisions that were made."""
        said = torch.cat([states.op.expand(len(action.op), -1, -1), summary(action.op)], 2)
        before = []
        for part in said.split_with_sizes(observation.data.num_ops.tolist(), 1):
            heard, _ = self.memory(part.transpose(0, 1))
            before.append(torch.cat([torch.zeros_like(heard[:1]), heard[:-1]]).transpose(0, 1))
        memory = torch.cat(before, 1)
        rows = [self.log_probs(self.centres(observation, states, g, m)) for g, m in zip(action.graph, memory)]
        return torch.stack(rows)


def opposite_pairs(like: Tensor) -> Tensor:
    """Standard normal noise [S, ...], the second half the negative of the first: less noise in what is learned."""
    noise = torch.randn_like(like[: (len(like) + 1) // 2])
    return torch.cat([noise, -noise])[: len(like)]


def summary(actions: Tensor) -> Tensor:
    """[..., KINDS] what the memory hears of decided actions [..., A]: of the first device, the priority, the bias."""
    return torch.cat([actions[..., :2], actions[..., -3:]], -1).float() / LEVELS - 0.5
