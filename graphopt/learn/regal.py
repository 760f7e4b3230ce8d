"""REGAL: a graph network steers a genetic algorithm (Paliwal et al., ICLR 2020, and the earlier text of May 2019).

One forward pass reads the graph. For every op it gives the distributions from which BRKGA draws its first population
and its mutants. These are a Beta per device affinity, one for the scheduling priority and, by config, the elite bias.
Then the BRKGA of `algo=brkga` spends the whole budget. Learning is REINFORCE, each graph being a contextual bandit
(section 3). Actions y ~ p(y | G) are drawn and BRKGA runs with them. The reward is r = -o_a / o_s with o_s the
objective of standard BRKGA under the same budget; a learned baseline is subtracted; entropy bonus. The appendix was not
at hand.

Every gene of an op has a Beta given by two categorical actions of k = 16 values, a mean index m and a variance index v.
Then mu = (m + 1) / (k + 1), sigma^2 = mu (1 - mu) (v + 1) / (k + 1), alpha + beta = (k - v) / (v + 1). The elite bias
of an op is one more categorical i, rho = 0.5 + 0.5 (i + 0.5) / k.

The paper                           | algo=regal_paper               | algo=regal
categorical actions                 | softmax over k indices         | discretised normals of learned widths
an output for every device          | the same                       | one head serves all devices
heads independent (best) or in turn | `heads.kind`                   | the same
inputs: sizes and costs             | the encoder's features         | also orders, parts, `DESCRIPTORS`
actions of ops alone                | the same                       | also of the graph: linear weights, two strengths
untrained policy: open              | uniform keys, wide softmax     | a spectral part or a cautious list schedule
budget in training: open            | 1,000 evaluations              | 5,000
samples of a graph: open            | 16, with random numbers shared | 4, the same; graphs' actions in opposite pairs
baseline: a value network           | with several samples of a graph, the mean of the others; unit variance
o_s: open                           | one run of standard BRKGA per graph
at test: open                       | the most probable actions
-                                   | `local_evals`: the first population holds the best of a local search
transfers: no action                | keys from the Beta of their producer's priority
-                                   | actions of masked ops (`Graph.train_mask`) act, but teach nothing

A graph action moves thousands of genes together, so its effect stands out of the noise of a BRKGA run, which that of an
op's own action does not. The strengths, of placement and of scheduling, say how far the proposal is from uniform keys.
Those are best on some graphs, and no small change of weights leads to them (results/regal.md).

Shape legend: N ops of all graphs of a batch, G graphs, S samples, D devices. A actions of an op (2 D + 2 + 1), P
actions of a graph, K keys. X inputs of a head, W width of a state.
"""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from torch import Tensor, nn

from graphopt.core.fusible import view_inline
from graphopt.core.graph import F64, Graph
from graphopt.core.spectral import smallest_eigenvectors
from graphopt.core.utils.marks import Count, Few, NotNegative, Positive, Shift, Whole, Width
from graphopt.learn.encoders.encoder import Encoder
from graphopt.learn.encoders.features import batch, graph_features, levels
from graphopt.learn.learner import Learner, inference, stored_numbers
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel
from graphopt.problems.keys import KeyRole
from graphopt.search.genetic.evolution import Evolution, Sampler, beta_keys, evolve, priced_by, run_alone, uniform_keys
from graphopt.search.heuristics import rules
from graphopt.search.heuristics.rules import Device, SchedulingInstance
from graphopt.search.heuristics.starts import F32, ranks
from graphopt.search.walks.key_moves import RegalLocal

Actions = NDArray[np.int64]  # [N, A]

LEVELS = 16  # k
MIDDLE = (LEVELS - 1) / 2
UNIFORM_VARIANCE = 14 / 3  # the index at which alpha + beta = 2: with the middle mean, the uniform distribution
STRONGEST = 1.5  # strength
KINDS = 5  # of op actions: mean and variance of affinities, mean and variance of priorities, elite bias


# ---- the policy's inputs beside the encoder's features. All are cheap beside the search, and none is a price.

FEW = 0.06  # share of results that are live at once: forward passes of deep networks have less, others more
LARGEST = 20_000  # ops up to which eigenvectors are computed; beyond it the topological order stands in

ORDERS = (
    "topological", "depth", "height", "slack", "bottom_level", "spectral", "spectral_2", "bytes_share", "largest",
    "size",
)  # fmt: skip
MEMBERSHIPS = (
    "spectral", "spectral_by_bytes", "spectral_2_by_bytes", "blocks_by_bytes", "large_by_bytes", "heft",
    "heft_cautious", "first", "speed", "room",
)  # fmt: skip
DESCRIPTORS = ("ops", "weights", "live", "even", "largest", "wide", "transfer", "spread")


class Inputs(NamedTuple):
    """Of one graph on one machine."""

    order_NX: F32  # [N, len(ORDERS)]
    member_NDX: F32  # [N, D, len(MEMBERSHIPS)]
    whole_1X: F32  # [1, len(DESCRIPTORS)]


_CACHE: "WeakKeyDictionary[Graph, dict[AssignTask, Inputs]]" = WeakKeyDictionary()


def inputs(graph: Graph, task: AssignTask) -> Inputs:
    """Computed once per graph and task."""
    known = _CACHE.setdefault(graph, {})
    if task in known:
        return known[task]
    held = (graph.weight_bytes + graph.result_bytes).astype(np.float64)
    held[view_inline(graph)] = 0.0
    held = held / max(held.sum(), 1.0) + 1e-6 / graph.num_ops
    instance, vectors, depths = SchedulingInstance(graph, task), fiedler(graph), levels(graph)
    parts = rules.by_heft(instance).device, rules.by_heft(instance, rules.CAUTION).device
    made = (_orders(instance, held, vectors, depths), _members(instance, held, vectors, parts),
            descriptors(instance, held, depths, parts[1])[None])  # fmt: skip
    return known.setdefault(task, Inputs(*(part.astype(np.float32) for part in made)))


def _orders(instance: SchedulingInstance, held: F64, vectors: tuple[F64, F64], depths: tuple[F64, F64]) -> F64:
    """[N, len(ORDERS)]"""
    ops, (depth, height), one = instance.graph.num_ops, depths, np.ones(instance.graph.num_ops)
    columns = [
        share(np.arange(ops, dtype=np.float64), one), share(depth, one), share(height, one),
        1 - (depth + height) / max(float((depth + height).max()), 1.0),
        ranks(rules.order_bottom_level(instance, rules.place_single(instance))),
        share(vectors[0], one), share(vectors[1], one),
        np.clip(np.log10(held * ops), -3, 3) / 3, held / held.max(), np.full(ops, np.log10(ops) / 2 - 1),
    ]  # fmt: skip
    return np.stack(columns, 1)


def _members(instance: SchedulingInstance, held: F64, vectors: tuple[F64, F64], parts: tuple[Device, Device]) -> F64:
    """[N, D, len(MEMBERSHIPS)]"""
    machine, ops = instance.task.machine, instance.graph.num_ops
    position = np.arange(ops, dtype=np.float64)
    weights = (vectors[0], np.ones(ops)), (vectors[0], held), (vectors[1], held), (position, held)
    split = [membership(share(*pair), machine.num_devices) for pair in weights]
    large = split[1] * (held / held.max())[:, None]
    devices = np.arange(machine.num_devices)
    sides = [np.where(part[:, None] == devices, 1.0, -1.0) for part in (*parts, np.zeros(ops, np.int16))]
    speed, room = ([d.contraction_flops for d in machine.devices], [min(d.capacity, 1e15) for d in machine.devices])
    logs = [np.log(value / np.exp(np.log(value).mean())) for value in (speed, room)]  # over the machine's means
    own = [np.broadcast_to(np.clip(log, -3, 3), (ops, machine.num_devices)) for log in logs]
    return np.stack([*split, large, *sides, *own], 2)


def descriptors(instance: SchedulingInstance, held: F64, depths: tuple[F64, F64], cautious: Device) -> F64:
    """[len(DESCRIPTORS)], each of the order of 1.

    ops: how many, log10. weights: their share of one device's bytes when most are live. live: the share r of results
    that are live when most are, as a soft step at `FEW` from 0, one after another, to 1, all at once. even: over how
    many ops bytes are spread, as a share, log10. largest: the largest op's share of bytes, log10. wide: ops over the
    longest path, log10. transfer: a result's mean time on a link over an op's mean time, log10. spread: how evenly a
    cautious list schedule uses the devices, from 0, one of them, to 1, all alike.
    """
    graph, kernels = instance.graph, instance.kernels
    live, results = float(live_bytes(graph).max()), max(float(graph.result_bytes.sum()), 1.0)
    weights, share_of = float(graph.tensor_bytes[graph.is_weight].sum()), held / held.sum()
    count = max(int(kernels.is_kernel.sum()), 1)
    sizes, links = instance.needs.size, instance.links
    travel = links.mean_latency + links.mean_per_byte * float(sizes.mean()) if len(sizes) else 0.0
    takes = float(kernels.time.mean(1).sum()) / count
    most, devices = np.bincount(cautious[kernels.is_kernel], minlength=1).max(), kernels.time.shape[1]
    values = [
        np.log10(graph.num_ops) - 2.5, 2 * weights / max(weights + live, 1.0) - 1,
        1 / (1 + (FEW * results / max(live, 1.0)) ** 3),
        1 - np.log10(np.sum(share_of**2) * graph.num_ops), np.log10(share_of.max()) + 1.5,
        np.log10(graph.num_ops / max(float(depths[0].max()), 1.0)) - 0.5,
        np.log10(max(travel, 1e-12) / max(takes, 1e-12)), (1 - most / count) / max(1 - 1 / devices, 0.5),
    ]  # fmt: skip
    return np.asarray(np.clip(values, -2.0, 2.0))


def live_bytes(graph: Graph) -> F64:
    """[N] bytes of results that are live when an op has run, all ops in op order on one device."""
    _, target, tensor = graph.edges
    last = np.maximum(graph.producer, 0).astype(np.int64)
    np.maximum.at(last, tensor, target)
    made = graph.producer >= 0
    size = graph.tensor_bytes[made].astype(np.float64)
    begins = np.bincount(graph.producer[made], size, graph.num_ops)
    ends = np.bincount(last[made] + 1, size, graph.num_ops + 1)[: graph.num_ops]
    return np.asarray(np.cumsum(begins - ends))


def share(value: F64, weight: F64) -> F64:
    """[N] in (0, 1): the share of all weight that lies before the op in the order of value; equal values share."""
    _, group = np.unique(value, return_inverse=True)
    total = np.bincount(group, weight)
    return np.asarray(((np.cumsum(total) - total / 2) / total.sum())[group])


def membership(position: F64, devices: int) -> F64:
    """[N, D] how far positions in (0, 1) lie inside the d-th of D equal intervals, in interval lengths, within [-1, 1].

    The outer ends are open: of two devices one's membership is the negative of the other's.
    """
    d = np.arange(devices)
    low = np.where(d == 0, np.inf, position[:, None] * devices - d)
    high = np.where(d == devices - 1, np.inf, d + 1 - position[:, None] * devices)
    return np.asarray(np.clip(np.minimum(low, high), -1.0, 1.0)) if devices > 1 else np.ones((len(position), 1))


def fiedler(graph: Graph) -> tuple[F64, F64]:
    """The second and third eigenvector of the normalised Laplacian [N], edges weighted by bytes.

    The sign is such that the op position correlates with them, so that equal graphs give equal signs.
    """
    n = graph.num_ops
    if n < 4 or n > LARGEST:
        return np.arange(n, dtype=np.float64), np.arange(n, dtype=np.float64)
    source, target, tensor = graph.edges
    weight = graph.tensor_bytes[tensor] / max(float(graph.tensor_bytes.max()), 1.0) + 1e-6
    both = coo_array((np.tile(weight, 2), (np.append(source, target), np.append(target, source))), shape=(n, n))
    vectors = smallest_eigenvectors(both.tocsr(), 3)[:, 1:]
    signs = np.where(np.arange(n) @ (vectors - vectors.mean(0)) < 0, -1.0, 1.0)
    return vectors[:, 0] * signs[0], vectors[:, 1] * signs[1]


# ---- the policy


@dataclass(frozen=True, kw_only=True)
class Heads:
    """How actions are made."""

    kind: Literal["independent", "autoregressive"]  # autoregressive: an op sees the decisions before it
    width: Width  # of the networks behind the heads
    op_spread: Positive  # standard deviation of an op's actions before training, in indices
    graph_spread: NotNegative  # standard deviation of a graph's actions before training, in indices; 0: not sampled
    strength_spread: NotNegative  # the same of its two strengths, of which 1 is the proposal and 0 uniform keys
    placement_prior: Shift  # shift of the mean of a device's keys by full membership in its spectral part, where ...
    caution_prior: Shift  # ... most results live at once; by membership in a cautious list schedule's where few do
    placement_variance: Positive  # variance index of affinities before training


class ActionHead(nn.Module):
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
        read = nn.functional.linear(state, of_state, self.hidden.bias)  # once per op, for any number of devices
        read = read if inputs.dim() == state.dim() else read[:, None]
        hidden = nn.functional.gelu(read + nn.functional.linear(inputs, of_inputs))
        given = (inputs[..., None] * linear[..., :-1, :]).sum(-2)  # a product of small matrices per op would be slow
        out: Tensor = given + linear[..., -1, :] + self.out(hidden) * LEVELS
        return out


def prior_actions(heads: Heads) -> tuple[Tensor, Tensor]:
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


def betas(mean_index: NDArray[np.integer], variance_index: NDArray[np.integer]) -> tuple[F32, F32]:
    """(alpha, beta) of Beta distributions by their two indices, elementwise."""
    mean = (mean_index + 1.0) / (LEVELS + 1)
    concentration = (LEVELS - variance_index) / (variance_index + 1.0)
    return (mean * concentration).astype(np.float32), ((1 - mean) * concentration).astype(np.float32)


def elite_bias(index: NDArray[np.integer]) -> F32:
    """rho in (0.5, 1)."""
    return (0.5 + 0.5 * (index + 0.5) / LEVELS).astype(np.float32)


@dataclass(frozen=True)
class REGALObservation:
    """A batch of graphs as the policy sees it."""

    data: Any  # features of all graphs
    order: Tensor  # [N, X]
    member: Tensor  # [N, D, X]
    whole: Tensor  # [G, len(DESCRIPTORS)]


class Action(NamedTuple):
    """Sampled actions, S times."""

    graph: Tensor  # [S, G, P]
    op: Tensor  # [S, N, A] indices


class States(NamedTuple):
    """The encoder's states of a batch."""

    op: Tensor  # [N, width]
    graph_of: Tensor  # [N]
    mean: Tensor  # [G, P] of the graphs' actions


class Indices(NamedTuple):
    """Distributions of the ops' actions."""

    log_p: Tensor  # [N, A, k] log-probabilities of every index
    best: Tensor  # [N, A] the most probable index


class Policy(nn.Module):
    """p(y | G): samples of actions and their log-probabilities."""

    memory: nn.GRU  # of the decisions before, where heads are autoregressive

    def __init__(self, encoder: Encoder, heads: Heads) -> None:
        super().__init__()
        self.encoder, self.heads = encoder, heads
        self.recurrent = heads.width if heads.kind == "autoregressive" else 0
        self.state = encoder.width + self.recurrent  # width of the heads' input for an op
        self.log_graph_spread = nn.Parameter(torch.zeros(0))
        self.log_op_spread = nn.Parameter(torch.full((KINDS,), math.log(heads.op_spread)))

    def means(self, graph: Tensor, observation: REGALObservation) -> Tensor:
        """[G, P] means of the graphs' actions, from their states [G, width]."""
        return graph[:, :0]

    def used_by_graph(self, use: "Use") -> Tensor:
        """[P] 1 for the actions of a graph that reach a head in use."""
        return self.log_graph_spread.detach()

    def indices(self, observation: REGALObservation, states: States, graph: Tensor, memory: Tensor | None = None
                ) -> Indices:  # fmt: skip
        """Of the ops' actions, given those of the graphs [G, P]: (mean, variance) per device, of the priority, then
        the elite bias. memory: [N, W] of the decisions before, where heads are autoregressive."""
        raise NotImplementedError

    def encode(self, observation: REGALObservation) -> States:
        h_ND, g_GD = self.encoder(observation.data, observation.order)
        count = observation.data.num_ops
        return States(h_ND, torch.repeat_interleave(torch.arange(len(count), device=h_ND.device), count),
                      self.means(g_GD, observation))  # fmt: skip

    def propose(self, observation: REGALObservation, samples: int) -> Action:
        """Sampled actions, those of graphs in opposite pairs; with 0 samples the most probable ones, S = 1."""
        states = self.encode(observation)
        graph = states.mean.expand(max(1, samples), -1, -1)
        if samples and self.heads.graph_spread:
            graph = graph + opposite_pairs(graph) * self.log_graph_spread.exp()
        if self.heads.kind == "autoregressive":
            return Action(graph, self._in_turn(observation, states, graph, samples > 0))
        return Action(graph, torch.stack([_draw(self.indices(observation, states, g), samples > 0) for g in graph]))

    def log_prob(self, observation: REGALObservation, action: Action) -> tuple[Tensor, Tensor, Tensor]:
        """([S, G, P] of the graphs' actions, [S, N, A] of the ops' actions, [] mean entropy of an op's action)."""
        states, spread = self.encode(observation), self.log_graph_spread.exp()
        of_graph = -0.5 * ((action.graph - states.mean) / spread) ** 2 - self.log_graph_spread
        of_graph = of_graph if self.heads.graph_spread else torch.zeros_like(of_graph)
        if self.heads.kind == "autoregressive":
            log_p = self._teacher_forced(observation, states, action)
        else:
            log_p = torch.stack([self.indices(observation, states, row).log_p for row in action.graph])
        of_op = log_p.gather(-1, action.op[..., None]).squeeze(-1)
        return of_graph, of_op, -(log_p.exp() * log_p).sum(-1).mean()

    def normal(self, centres: Tensor) -> Indices:
        """Discretised normals around centres [N, A]; the best index is the nearest, of two the lower."""
        devices = (centres.shape[1] - 3) // 2
        kind = torch.tensor([0, 1] * devices + [2, 3, 4], device=centres.device)
        spread = self.log_op_spread[kind].exp().clamp(0.25, LEVELS)
        index = torch.arange(LEVELS, device=centres.device)
        best = torch.ceil(centres - 0.5).clamp(0, LEVELS - 1).long()
        centres = centres.clamp(-1.0, float(LEVELS))
        distance = (index - centres[:, :, None]) / spread[:, None]
        return Indices(torch.log_softmax(-0.5 * distance**2, -1), best)

    # ---- autoregressive heads: ops in topological order, each sees the decisions before it

    def _in_turn(self, observation: REGALObservation, states: States, graph: Tensor, sample: bool) -> Tensor:
        """[S, N, A] op by op, all samples at once."""
        count, rows = len(graph), []
        memory = states.op.new_zeros((1, count, self.heads.width))
        for n, g in enumerate(states.graph_of.tolist()):
            if n == 0 or g != states.graph_of[n - 1]:
                memory = torch.zeros_like(memory)
            here = REGALObservation(None, observation.order[n].expand(count, -1),
                                    observation.member[n].expand(count, -1, -1), observation.whole)  # fmt: skip
            one = States(states.op[n].expand(count, -1), torch.arange(count, device=graph.device), states.mean)
            rows.append(_draw(self.indices(here, one, graph[:, g], memory[0]), sample))
            _, memory = self.memory(torch.cat([one.op, summary(rows[-1])], 1)[None], memory)
        return torch.stack(rows, 1)

    def _teacher_forced(self, observation: REGALObservation, states: States, action: Action) -> Tensor:
        """[S, N, A, k] log-probabilities given the decisions that were made."""
        decided = torch.cat([states.op.expand(len(action.op), -1, -1), summary(action.op)], 2)
        before = []
        for part in decided.split_with_sizes(observation.data.num_ops.tolist(), 1):
            after, _ = self.memory(part.transpose(0, 1))
            before.append(torch.cat([torch.zeros_like(after[:1]), after[:-1]]).transpose(0, 1))
        given = zip(action.graph, torch.cat(before, 1))
        return torch.stack([self.indices(observation, states, g, m).log_p for g, m in given])


class GraphPolicy(Policy):
    """Ours: it reads orders, parts and descriptors, and has actions of the graph."""

    def __init__(self, encoder: Encoder, heads: Heads) -> None:
        super().__init__(encoder, heads)
        self.placement = ActionHead(self.state, len(MEMBERSHIPS), heads.width, 2)
        self.scheduling = ActionHead(self.state, len(ORDERS), heads.width, 2)
        self.elite_bias = ActionHead(self.state, len(ORDERS), heads.width, 1)
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
        if self.recurrent:
            self.memory = nn.GRU(encoder.width + KINDS, self.recurrent)

    @property
    def _sizes(self) -> list[int]:
        return [self.placement.size, self.scheduling.size, self.elite_bias.size]

    def means(self, graph: Tensor, observation: REGALObservation) -> Tensor:
        out: Tensor = self.graph_mean(graph) + self.describe(observation.whole)
        return out

    def used_by_graph(self, use: "Use") -> Tensor:
        heads = (use.placement, use.scheduling, use.elite_bias, use.placement, use.scheduling)
        used = [on for on, size in zip(heads, [*self._sizes, 1, 1], strict=True) for _ in range(size)]
        return torch.tensor(used, device=self.log_op_spread.device).float()

    def indices(self, observation: REGALObservation, states: States, graph: Tensor, memory: Tensor | None = None
                ) -> Indices:  # fmt: skip
        own = states.op if memory is None else torch.cat([states.op, memory], 1)
        place, order, bias, strength = graph[states.graph_of].split_with_sizes([*self._sizes, 2], 1)
        affinity = self.placement(own, observation.member, place)
        priority = self.scheduling(own, observation.order, order)
        return self.normal(torch.cat([weakened(affinity, strength[:, :1, None]).flatten(1),
                                      weakened(priority, strength[:, 1:]),
                                      self.elite_bias(own, observation.order, bias)], 1))  # fmt: skip


class PublishedPolicy(Policy):
    """As published: it reads the encoder's features alone, has an output for every device and action, and starts from
    uniform keys (`op_spread` around them). categorical: a softmax over the k indices, not a discretised normal."""

    def __init__(self, encoder: Encoder, heads: Heads, devices: int, categorical: bool) -> None:
        super().__init__(encoder, heads)
        self.categorical = categorical
        uniform = torch.tensor([[MIDDLE, UNIFORM_VARIANCE] * (devices + 1) + [0.4 * LEVELS - 0.5]])  # rho = 0.7
        start = self.normal(uniform).log_p[0].detach() if categorical else uniform.T / LEVELS  # [A, k] or [A, 1]
        last = nn.Linear(heads.width, start.numel())
        self.output = nn.Sequential(nn.Linear(self.state, heads.width), nn.GELU(), last)
        nn.init.zeros_(last.weight)
        with torch.no_grad():
            last.bias.copy_(start.flatten())
        if self.recurrent:
            self.memory = nn.GRU(encoder.width + KINDS, self.recurrent)

    def indices(self, observation: REGALObservation, states: States, graph: Tensor, memory: Tensor | None = None
                ) -> Indices:  # fmt: skip
        out: Tensor = self.output(states.op if memory is None else torch.cat([states.op, memory], 1))
        if not self.categorical:
            return self.normal(out * LEVELS)
        log_p = torch.log_softmax(out.view(len(out), -1, LEVELS), -1)
        return Indices(log_p, log_p.argmax(-1))


def _draw(indices: Indices, sample: bool) -> Tensor:
    """[N, A] indices, sampled or the most probable ones."""
    if not sample:
        return indices.best
    return torch.multinomial(indices.log_p.exp().reshape(-1, LEVELS), 1).reshape(indices.best.shape)


def summary(actions: Tensor) -> Tensor:
    """[..., KINDS] the memory's input from decided actions [..., A]: of the first device, the priority, the bias."""
    return torch.cat([actions[..., :2], actions[..., -3:]], -1).float() / LEVELS - 0.5


def opposite_pairs(like: Tensor) -> Tensor:
    """Standard normal noise [S, ...], the second half the negative of the first: less noise in gradients."""
    noise = torch.randn_like(like[: (len(like) + 1) // 2])
    return torch.cat([noise, -noise])[: len(like)]


# ---- the learner


@dataclass(frozen=True, kw_only=True)
class Use:
    """Which actions act; the others keep the values of plain BRKGA (Table 3)."""

    placement: bool
    scheduling: bool
    elite_bias: bool


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings:
    """REINFORCE."""

    evals: Count  # budget of every BRKGA run in training
    samples: Few  # actions per graph and step
    entropy: NotNegative
    value: NotNegative  # weight of the baseline network's loss
    rate: NotNegative
    graph_rate: NotNegative  # of how the graphs' actions depend on `DESCRIPTORS`, in indices
    halved_after: Positive  # steps after which rates are half of the first; then a third after as many more, and so on
    gradient_clip: NotNegative


class REGAL(Learner):
    """yaml: conf/algo/regal.yaml explains every hyper-parameter."""

    applies_train_mask = True
    network_settings = frozenset({"actions", "heads", "use"})
    training_only = ("critic.", "value.")

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int,
                 evolution: Evolution, use: Use, actions: Literal["graph", "ordinal", "categorical"], heads: Heads,
                 learning: ReinforceSettings, local: RegalLocal, local_evals: Whole) -> None:  # fmt: skip
        """actions: of whole graphs, too, or of the ops alone, as published. local, local_evals: as of `brkga`."""
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.evolution, self.use, self.learning, self.published = evolution, use, learning, actions != "graph"
        self.local, self.local_evals = local, local_evals
        self.policy = (
            PublishedPolicy(encoder, heads, task.machine.num_devices, actions == "categorical")
            if self.published else GraphPolicy(encoder, heads)
        )  # fmt: skip
        self.critic, self.value = deepcopy(encoder), nn.Linear(encoder.width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.constant_(self.value.bias, -1.0)  # the reward of standard BRKGA
        self._standard: dict[str, float] = {}

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        """Inputs per op that REGAL adds to the encoder's: orders of the ops."""
        return len(ORDERS)

    def made_for(self) -> dict[str, Any]:
        """The inputs of its heads; one policy serves any task and, unless it is as published, any number of devices."""
        if self.published:
            return {"devices": self.task.machine.num_devices}
        return {"inputs": [*ORDERS, *MEMBERSHIPS, *DESCRIPTORS]}

    def configure_optimizers(self) -> Any:
        policy = self.policy
        common = [policy.graph_mean.bias, policy.describe.weight] if isinstance(policy, GraphPolicy) else []
        others = [parameter for parameter in self.parameters() if not any(parameter is one for one in common)]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": common, "lr": self.learning.graph_rate}]
        optimizer = torch.optim.Adam(groups, lr=self.learning.rate)
        decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / self.learning.halved_after))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["standard"] = dict(self._standard)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._standard = {graph: stored_numbers([price], 1)[0] for graph, price in checkpoint["standard"].items()}

    # ---- learning

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        """One REINFORCE step on a batch of graphs."""
        observation = self.observe(graphs)
        with torch.no_grad():
            action = self.policy.propose(observation, self.learning.samples)
        reward_SG = torch.tensor(self._rewards(graphs, action.op.numpy(force=True)), dtype=torch.float32)
        reward_SG = reward_SG.to(self.device)
        of_graph, of_op, entropy = self.policy.log_prob(observation, action)
        value_G = self.value(self.critic(observation.data, observation.order)[1]).squeeze(1)
        advantage_SG = _advantages(reward_SG, value_G.detach())
        taught = torch.from_numpy(np.concatenate([graph.train_mask for graph in graphs])).to(self.device)
        used = [self.use.placement] * (of_op.shape[2] - 3) + [self.use.scheduling] * 2 + [self.use.elite_bias]
        own = of_op * torch.tensor(used, device=of_op.device).float() * taught[:, None]
        parts = own.split_with_sizes([graph.num_ops for graph in graphs], 1)
        score_SG = torch.stack([part.mean(1).sum(1) for part in parts], 1)
        score_SG += (of_graph * self.policy.used_by_graph(self.use)).sum(2)
        policy = -(score_SG * advantage_SG).mean()
        critic = nn.functional.mse_loss(value_G.expand_as(reward_SG), reward_SG)
        loss: Tensor = policy + self.learning.value * critic - self.learning.entropy * entropy
        losses = {"policy": policy, "value": critic, "entropy": entropy}
        self.log_dict({f"losses/{name}": value.detach() for name, value in losses.items()})
        self.log("reward", reward_SG.mean(), prog_bar=True)
        return loss

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None,
                                    gradient_clip_algorithm: Any = None) -> None:  # fmt: skip
        nn.utils.clip_grad_norm_(self.parameters(), self.learning.gradient_clip)

    def observe(self, graphs: list[Graph]) -> REGALObservation:
        """The policy's input for a batch of graphs."""
        data = batch([graph_features(graph, self.task.machine) for graph in graphs]).to(self.device)
        read = zip(*(self._inputs(graph) for graph in graphs), strict=True)
        order, member, whole = (torch.from_numpy(np.concatenate(part)).to(self.device) for part in read)
        return REGALObservation(data, order, member, whole)

    def _inputs(self, graph: Graph) -> Inputs:
        """Zeros for a policy as published."""
        if not self.published:
            return inputs(graph, self.task)
        shapes = (graph.num_ops, len(ORDERS)), (graph.num_ops, 0, len(MEMBERSHIPS)), (1, len(DESCRIPTORS))
        return Inputs(*(np.zeros(shape, np.float32) for shape in shapes))

    def _rewards(self, graphs: list[Graph], actions: NDArray[np.int64]) -> F64:
        """[S, G] -o_a / o_s. The samples of a graph share their random numbers."""
        out, start = np.zeros((len(actions), len(graphs))), 0
        for g, graph in enumerate(graphs):
            seed = int(self._random.integers(2**31))
            rows = actions[:, start : start + graph.num_ops]
            start += graph.num_ops
            if graph.hash not in self._standard:
                self._standard[graph.hash] = self._outcome(graph, 0, None)
            out[:, g] = [-self._outcome(graph, seed, row) / self._standard[graph.hash] for row in rows]
        return out

    def _outcome(self, graph: Graph, seed: int, actions: Actions | None) -> float:
        """The best score of one BRKGA run by itself; without actions of plain BRKGA."""
        sampler = uniform_keys(self.task.key_count(graph)) if actions is None else self.sampler(graph, actions)
        bias = None if actions is None else self.bias(graph, actions)
        return run_alone(self.pricing(graph), sampler, self.evolution, evals=self.learning.evals, seed=seed, bias=bias)

    # ---- use

    def solve(self, problem: AssignProblem) -> None:
        if problem.open:
            with inference(problem.graph):
                actions = self.policy.propose(self.observe([problem.graph]), 0).op[0].numpy(force=True)
            sampler, bias = self.sampler(problem.graph, actions), self.bias(problem.graph, actions)
            seeds = self.local.best_after(problem, self.local_evals)
            evolve(priced_by(problem), sampler, problem.rng, self.evolution, seeds=seeds, bias=bias)

    def sampler(self, graph: Graph, actions: Actions) -> Sampler:
        """Keys from the Betas of the actions [N, A]; uniform where an action is not used."""
        layout, devices = self.task.layout(graph), self.task.machine.num_devices
        alpha, beta = np.ones(len(layout), np.float32), np.ones(len(layout), np.float32)
        if self.use.placement:
            keys = np.flatnonzero(layout.role == KeyRole.AFFINITY)
            op, device = layout.op[keys], layout.device[keys]
            alpha[keys], beta[keys] = betas(actions[op, 2 * device], actions[op, 2 * device + 1])
        if self.use.scheduling:
            keys = np.flatnonzero((layout.role == KeyRole.PRIORITY) | (layout.role == KeyRole.TRANSFER))
            op = layout.op[keys]
            alpha[keys], beta[keys] = betas(actions[op, 2 * devices], actions[op, 2 * devices + 1])
        return beta_keys(alpha, beta)

    def bias(self, graph: Graph, actions: Actions) -> F32 | None:
        """[K] elite bias of every gene, that of its op; None where the action is not used."""
        return elite_bias(actions[self.task.layout(graph).op, -1]) if self.use.elite_bias else None


def _advantages(reward_SG: Tensor, value_G: Tensor) -> Tensor:
    """[S, G] reward over the mean of the graph's other samples (the learned value where there is one sample), in
    standard deviations."""
    others = (reward_SG.sum(0) - reward_SG) / (len(reward_SG) - 1) if len(reward_SG) > 1 else value_G
    advantage = reward_SG - others
    return (advantage / advantage.square().mean().sqrt().clamp(min=1e-4)).clamp(-3.0, 3.0)
