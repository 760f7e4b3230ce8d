"""GO: Transferable Graph Optimizers for ML Compilers (Zhou et al., NeurIPS 2020).

An inductive graph encoder reads the graph; segment-recurrent attention over the ops in topological order, without
positional encoding, reads the encoder's states; each layer's input is modulated by the graph state (superposition); a
head per kind of choice gives a distribution for every op at once. Decoding is iterative and non-autoregressive:
y(t) ~ p(y | G, y(t-1)), all ops in parallel, the decisions of the previous iteration fed as input (section 3).

The paper (its section)                     | Here
attention, superposition, iterations (3)    | off, no gain is shown (docs/papers.md); `algo=go_paper` has them
attention once per task, tasks in turn (3)  | `network.recurrent`: residual states, and the decisions of tasks before
y(0): left open                             | the default's decision, of probability `network.prior` before training
                                            | (`algo=go_paper`: all choices are alike before training)
PPO: ratio of a graph's probabilities       | clipped per op: a product of thousands of factors leaves the range
reward -sqrt(time), illegal plans -10 (4)   | over the default's time; decisions of every iteration are rewarded
advantage: reward minus the graph's mean    | standardised, plus each op's own advantage (`flip_weight`; the paper: 0)
fine-tuning on one graph                    | `search.tuning`: half of the budget at most, by the reward alone, undone
the decision is the answer                  | then uniform decisions, answers to these, samples, single changes
                                            | (`algo=go_paper`: all of it is fine-tuning, its best sample counts)
sizes, T, segments, rates: left open        | conf/algo/go.yaml

An op's own advantage is the price after changing this op alone minus the price of the plan. It is log-compressed on the
scale of the graph's median, and multiplied by the probability of the other choices. So a settled op stops learning.

Shape legend: N ops of all graphs of a batch, G graphs, S samples, H heads, K choices, D width; of attention P segments,
Z ops per segment.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.core.errors import ConfigError
from graphopt.core.graph import F64, I64, Graph
from graphopt.core.plan import Decision, Decisions, Head, Role
from graphopt.core.utils.marks import AttentionHeads, Between, Count, Few, Layers, NotNegative, Positive, Share, Whole
from graphopt.core.utils.terminal import Bar
from graphopt.learn.encoders.encoder import Encoder
from graphopt.learn.encoders.features import batch, graph_features
from graphopt.learn.guided import guided_search
from graphopt.learn.learner import Learner, inference, stored_numbers
from graphopt.learn.placing.group_policy import GroupPolicy, GroupSettings, TaughtState, bonus, place, taught_states
from graphopt.learn.placing.op_groups import learning_inside, of_chosen
from graphopt.problems.assignment import AssignProblem, AssignTask, Pricing
from graphopt.problems.cost_model import CostModel
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.walks.moves import Slots, slots_of

ILLEGAL_REWARD = -10.0
NEVER = -1e9  # logit of a choice that does not exist
LAST_RATE = 0.03  # of the rate, at the end of training on moves of groups
TUNING_SHARE = 0.5  # of the budget, at most, where a search follows


# ---- the network (section 3)


@dataclass(frozen=True)
class Segments:
    """How the ops of a batch of graphs are cut into segments; a segment never spans two graphs."""

    row: Tensor  # [N] position of each op among the P x Z places
    filled: Tensor  # [P, Z] bool
    before: Tensor  # [P] previous segment of the same graph, or the segment itself
    first: Tensor  # [P] bool: there is none

    @staticmethod
    def of(num_ops: Tensor, size: int) -> "Segments":
        """Cuts graphs of `num_ops` [B] ops into segments of at most `size`."""
        counts = (num_ops + size - 1) // size
        total = int(counts.sum())
        start = torch.cumsum(counts, 0) - counts
        empty = start * size - (torch.cumsum(num_ops, 0) - num_ops)  # places before each graph
        row = torch.arange(int(num_ops.sum()), device=num_ops.device) + torch.repeat_interleave(empty, num_ops)
        filled = torch.zeros(total * size, dtype=torch.bool, device=num_ops.device)
        first = torch.zeros(total, dtype=torch.bool, device=num_ops.device)
        filled[row], first[start] = True, True
        before = torch.arange(total, device=num_ops.device) - (~first).long()
        return Segments(row, filled.view(total, size), before, first)


class SegmentAttention(nn.Module):
    """One layer: an op attends to its own segment and to the cached, gradient-free states of the one before.

    Caching layer inputs without gradient makes the recurrence exact for all segments at once: no loop over segments.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"attention width {width} is not a multiple of heads {heads}; choose e.g. heads=4")
        self.heads = heads
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x_ND: Tensor, segments: Segments) -> Tensor:
        x_ND = x_ND + self.out(self._attend(self.norm(x_ND), segments))
        out: Tensor = x_ND + self.feed(self.feed_norm(x_ND))
        return out

    def _attend(self, x_ND: Tensor, segments: Segments) -> Tensor:
        places, size = segments.filled.shape
        x_PZD = x_ND.new_zeros(places * size, x_ND.shape[1]).index_copy(0, segments.row, x_ND).view(places, size, -1)
        seen_PKD = torch.cat([x_PZD.detach()[segments.before], x_PZD], 1)
        allowed_PK = torch.cat([segments.filled[segments.before] & ~segments.first[:, None], segments.filled], 1)
        key, value = self.key_value(seen_PKD).chunk(2, -1)
        mixed = nn.functional.scaled_dot_product_attention(
            self._split(self.query(x_PZD)), self._split(key), self._split(value), attn_mask=allowed_PK[:, None, None]
        )
        return mixed.transpose(1, 2).reshape(places * size, -1)[segments.row]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


@dataclass(frozen=True)
class GOObservation:
    """A batch of graphs as the policy sees it."""

    data: Any  # features of all graphs
    extra: Tensor  # [N, 2H] the default's choice (scaled to [0, 1]) and whether there is a choice
    default: Tensor  # [N, H] the default's choice
    allowed: Tensor  # [N, H, K] False where a choice does not exist; ops without a choice keep the default


@dataclass(frozen=True)
class EncodedGraphs:
    """The encoder's output; computed once for all iterations."""

    h: Tensor  # [N, D]
    gate: Tensor  # [N, D] superposition m(h_G), spread over the ops
    segments: Segments

    def times(self, count: int, num_ops: Tensor, segment: int) -> "EncodedGraphs":
        """The same graphs so many times, one after the other. num_ops: [G]"""
        segments = Segments.of(num_ops.repeat(count), segment)
        return EncodedGraphs(self.h.repeat(count, 1), self.gate.repeat(count, 1), segments)


@dataclass(frozen=True, kw_only=True)
class PolicySizes:
    """Sizes of the policy."""

    attention_layers: Layers
    attention_heads: AttentionHeads
    segment: Annotated[int, Between(1, 2048)]  # ops per attention segment
    superposition: bool  # modulate every attention layer's input by the graph state
    iterations: Few  # T of the iterative decoding
    recurrent: bool  # the attention layers once for every head, each sees the choices of those before
    prior: dict[
        str, Share
    ]  # per head, or role of heads: probability of the default's choice before training; 0: uniform

    def __post_init__(self) -> None:
        if self.superposition and not self.attention_layers:
            raise ConfigError("algo.network.superposition=true modulates attention layers, of which there are none: "
                              "give algo.network.attention_layers=2, or superposition=false")  # fmt: skip


class GOPolicy(nn.Module):
    """p(y | G, y') for all ops at once."""

    bonus: Tensor  # [H] added to the logit of the default's choice

    def __init__(self, encoder: Encoder, heads: Sequence[Head], network: PolicySizes) -> None:
        super().__init__()
        width = encoder.width
        self.encoder, self.segment = encoder, network.segment
        self.recurrent = network.recurrent and len(heads) > 1
        self.register_buffer("bonus", torch.tensor([self._bonus(head, network.prior) for head in heads]),
                             persistent=False)  # fmt: skip
        self.previous = nn.ModuleList(nn.Embedding(head.count, width) for head in heads)
        self.modulate = nn.Linear(width, width) if network.superposition else None
        self.layers = nn.ModuleList(
            SegmentAttention(width, network.attention_heads) for _ in range(network.attention_layers)
        )
        self.norm = nn.LayerNorm(width)
        last = [nn.Linear(width, head.count) for head in heads]
        for linear in last:  # nearly equal logits
            nn.init.normal_(linear.weight, std=0.01)
            nn.init.zeros_(linear.bias)
        self.heads = nn.ModuleList(last)

    @staticmethod
    def _bonus(head: Head, prior: Mapping[str, float]) -> float:
        """The term added to one of equal logits so that its probability becomes the prior of the head, or its role."""
        at = prior.get(head.name, prior.get(head.role.value, 1.0))
        if not 0.0 <= at < 1.0:
            raise ConfigError(f"algo.network.prior has no probability below 1 for {head.name!r}; "
                              f"give algo.network.prior.{head.name}=0.8")  # fmt: skip
        return bonus(at, head.count)

    def encode(self, observation: GOObservation) -> EncodedGraphs:
        h_ND, g_GD = self.encoder(observation.data, observation.extra)
        num_ops = observation.data.num_ops
        gate = torch.ones_like(g_GD) if self.modulate is None else torch.sigmoid(self.modulate(g_GD)) * 2
        return EncodedGraphs(h_ND, torch.repeat_interleave(gate, num_ops, 0), Segments.of(num_ops, self.segment))

    def forward(self, observation: GOObservation, encoded: EncodedGraphs, previous_NH: Tensor,
                chosen_SNH: Tensor | None = None) -> Tensor:  # fmt: skip
        """Log-probabilities of the next decisions given the previous ones: [N, H, K], where every head sees the
        previous decisions of all; [S, N, H, K] given decisions, where a recurrent head sees the choices of those before
        it."""
        if not self.recurrent:
            x_ND = self._read(encoded, encoded.h, previous_NH)
            logits = [linear(x_ND) for linear in self.heads]
            log_p = self._log_p(observation, torch.stack([self._wide(each, observation) for each in logits], 1))
            return log_p if chosen_SNH is None else log_p.expand(len(chosen_SNH), *log_p.shape)
        chosen = previous_NH[None] if chosen_SNH is None else chosen_SNH
        log_p = self._one_by_one(observation, encoded, previous_NH, lambda head, _: chosen[:, :, head])
        return log_p[0] if chosen_SNH is None else log_p

    def decide(self, observation: GOObservation, encoded: EncodedGraphs, previous_NH: Tensor,
               pick: Callable[[Tensor], Tensor]) -> Tensor:  # fmt: skip
        """[S, N, H] decisions. pick: log-probabilities of one head [1, N, K] or [S, N, K] -> choices [S, N]."""
        picked: list[Tensor] = []

        def keep(head: int, log_p_SNK: Tensor) -> Tensor:
            picked.append(pick(log_p_SNK))
            return picked[-1]

        if self.recurrent:
            self._one_by_one(observation, encoded, previous_NH, keep)
        else:
            for head, log_p_NK in enumerate(self(observation, encoded, previous_NH).unbind(1)):
                keep(head, log_p_NK[None])
        return torch.stack(picked, 2)

    def _one_by_one(self, observation: GOObservation, encoded: EncodedGraphs, previous_NH: Tensor,
                    choose: Callable[[int, Tensor], Tensor]) -> Tensor:  # fmt: skip
        """[S, N, H, K] head by head. The layers read the graph, the previous decisions, in their place the choices of
        earlier heads, and the layers' output for the head before."""
        ops, num_ops, parts = len(previous_NH), observation.data.num_ops, []
        now, seen, before = encoded, previous_NH, torch.zeros_like(encoded.h)
        for head, linear in enumerate(self.heads):
            before = self._read(now, now.h + before, seen)
            logits = self._wide(linear(before), observation).view(-1, ops, observation.allowed.shape[2])
            log_p_SNK = self._log_p(observation, logits[:, :, None], head)[:, :, 0]
            chosen_SN = choose(head, log_p_SNK)
            if len(chosen_SN) > len(log_p_SNK):
                log_p_SNK = log_p_SNK.expand(len(chosen_SN), -1, -1)
            parts.append(log_p_SNK)
            if len(chosen_SN) * ops > len(seen):  # from here on every sample goes its own way
                now = encoded.times(len(chosen_SN), num_ops, self.segment)
                seen, before = seen.repeat(len(chosen_SN), 1), before.repeat(len(chosen_SN), 1)
            seen = torch.cat([seen[:, :head], chosen_SN.reshape(-1, 1), seen[:, head + 1 :]], 1)
        return torch.stack(parts, 2)

    def _read(self, encoded: EncodedGraphs, x_ND: Tensor, seen_NH: Tensor) -> Tensor:
        for head, embed in enumerate(self.previous):
            x_ND = x_ND + embed(seen_NH[:, head])
        for layer in self.layers:
            x_ND = layer(encoded.gate * x_ND, encoded.segments)
        normed: Tensor = self.norm(x_ND)
        return normed

    def _wide(self, logits: Tensor, observation: GOObservation) -> Tensor:
        """[..., K] with choices that the head does not have, never taken."""
        missing = observation.allowed.shape[2] - logits.shape[-1]
        return nn.functional.pad(logits, (0, missing), value=NEVER)

    def _log_p(self, observation: GOObservation, logits: Tensor, first: int = 0) -> Tensor:
        """Of logits [..., N, heads, K], of the heads from `first` on."""
        heads = slice(first, first + logits.shape[-2])
        default = nn.functional.one_hot(observation.default[:, heads], logits.shape[-1])
        at_default = default * self.bonus[heads, None]
        return torch.log_softmax((logits + at_default).masked_fill(~observation.allowed[:, heads], NEVER), -1)


# ---- PPO (Schulman et al., 2017)


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """PPO and its credit."""

    reward_weight: NotNegative  # of the graph's standardised reward, shared by all its ops (the paper: 1)
    flip_weight: NotNegative  # of each op's own counterfactual advantage (the paper: 0)
    flips: Whole  # slots priced per decision where the cost model has no exact flips
    samples: Few  # decisions per graph, iteration and update
    epochs: Few
    clip: NotNegative
    entropy: NotNegative
    rate: NotNegative
    gradient_clip: NotNegative


@dataclass(frozen=True)
class Trial:
    """One iteration of decoding with S samples and their rewards."""

    previous: Tensor  # [N, H]
    chosen: Tensor  # [S, N, H]
    log_prob: Tensor  # [S, N, H]
    advantage: Tensor  # [S, N, H]


def clipped_loss(policy: GOPolicy, observation: GOObservation, trials: list[Trial],
                 settings: PPOSettings) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(minus PPO's clipped objective per slot and an entropy bonus, the entropy); every graph weighs the same."""
    encoded = policy.encode(observation)
    free_NH = observation.allowed.sum(-1) > 1
    num_ops = observation.data.num_ops
    graph_N = torch.repeat_interleave(torch.arange(len(num_ops), device=num_ops.device), num_ops)
    slots_G = torch.zeros(len(num_ops), device=num_ops.device).index_add(0, graph_N, free_NH.sum(1).float())
    share_N1 = (1.0 / (slots_G.clamp(min=1) * len(num_ops)))[graph_N][:, None]  # every graph counts the same
    loss = entropy = torch.zeros((), device=share_N1.device)
    for trial in trials:
        log_p = policy(observation, encoded, trial.previous, trial.chosen)
        ratio = torch.exp(of_chosen(log_p, trial.chosen) - trial.log_prob)
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gain = torch.minimum(ratio * trial.advantage, clipped * trial.advantage).mean(0)
        spread = -(log_p.exp() * log_p.clamp(min=-30)).sum(-1).mean(0)
        loss = loss - (gain * free_NH * share_N1).sum() / len(trials)
        entropy = entropy + (spread * free_NH * share_N1).sum() / len(trials)
    return loss - settings.entropy * entropy, entropy


def sample(log_p: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
    """[S, N] draws of one head from log-probabilities [1, N, K], of which `count` are drawn, or [S, N, K], one each."""
    flat = log_p.exp().flatten(0, 1)
    if not torch.isfinite(flat).all():
        raise ConfigError("the probabilities of algo=go are no numbers: its weights are too large; give another "
                          "checkpoint, or train with a lower algo.learning.rate")  # fmt: skip
    draws = torch.multinomial(flat, count if len(log_p) == 1 else 1, replacement=True, generator=generator)
    return draws.T.reshape(count, log_p.shape[1])


# ---- credit


class Credit:
    """cost: prices [B] of decisions of a graph; pricing: of its default and its single changes; past: per graph, mean,
    mean square and number of the rewards so far."""

    def __init__(self, task: AssignTask, settings: PPOSettings, cost: Callable[[Graph, Decisions], F64],
                 pricing: Callable[[Graph], Pricing], random: np.random.Generator) -> None:  # fmt: skip
        self.task, self.settings, self.random = task, settings, random
        self.past: dict[str, tuple[float, float, int]] = {}
        self._cost, self._pricing = cost, pricing

    def judge(self, graphs: list[Graph], chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """Prices S samples [S, N, H] of every graph. Returns (one canonical decision per graph [N, H], the credit that
        all ops of a graph share and each op's own [S, N, H] each, the mean reward)."""
        picked, shared, own, rewards, start = [], [], [], [], 0
        for graph in graphs:
            decisions = chosen[:, start : start + graph.num_ops].cpu().numpy().astype(np.int16)
            start += graph.num_ops
            prices = self._cost(graph, decisions)
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
        return torch.cat(picked), torch.cat(shared, 1), torch.cat(own, 1), float(np.mean(rewards))

    def reward(self, graph: Graph, prices: F64) -> F64:
        """[S] -sqrt(price / the default's price); ILLEGAL_REWARD for infeasible plans (out of memory)."""
        legal = np.isfinite(prices)
        scale = self._pricing(graph).initial_cost
        if not np.isfinite(scale):  # the default is infeasible: all work one after the other
            scale = float(SchedulingInstance(graph, self.task).weight("time").sum())
        return np.where(legal, -np.sqrt(np.where(legal, prices, 1.0) / scale), ILLEGAL_REWARD)

    def standardised(self, graph: Graph, reward: F64) -> F64:
        """Reward minus the mean of the graph's past trials, over their standard deviation."""
        mean, square, trials = self.past.get(graph.hash, (0.0, 0.0, 0))
        weight = max(len(reward) / (trials + len(reward)), 0.05)
        mean += weight * (float(reward.mean()) - mean)
        square += weight * (float((reward**2).mean()) - square)
        self.past[graph.hash] = (mean, square, trials + len(reward))
        return np.asarray((reward - mean) / max(np.sqrt(max(square - mean**2, 0.0)), 1e-4))

    def flip_credit(self, graph: Graph, decision: Decision, price: float) -> F64:
        """[N, H] how much better each choice is than another at the same op, log-compressed on the graph's scale."""
        op, head, worse = self.flip_prices(graph, decision, price)
        size = np.abs(worse)
        scale = np.median(size[size > 0]) if np.any(size > 0) else 1.0
        out = np.zeros(decision.shape)
        out[op, head] = np.sign(worse) * np.log1p(size / scale)
        return out

    def flip_prices(self, graph: Graph, decision: Decision, price: float) -> tuple[I64, ...]:
        """(op, head, price after changing that slot minus price now) for all slots, or a sample of them."""
        canonical = self.task.canonical(graph, decision)
        counts = self.task.counts(graph)
        op, head = np.nonzero(counts > 1)
        flips = self._pricing(graph).flips(canonical)
        if flips is not None:
            worse = np.where(canonical[op, 0] == decision[op, 0], flips.price(op) - flips.cost, 0.0)
            return op, head, worse
        rows = self.random.permutation(len(op))[: self.settings.flips]
        op, head = op[rows], head[rows]
        changed = np.repeat(decision[None], len(op), 0)
        counts = counts[op, head]
        changed[np.arange(len(op)), op, head] = (decision[op, head] + self.random.integers(1, counts)) % counts
        prices = self._cost(graph, changed)
        worse = np.where(np.isfinite(prices) & np.isfinite(price), prices - price, 0.0)
        return op, head, worse


# ---- the learner


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """PPO updates on the graph that is being solved, billed."""

    steps: Annotated[int, Between(0, 100_000)]  # at most


@dataclass(frozen=True, kw_only=True)
class GOSearchSettings:
    """How `solve` spends a budget."""

    tuning: Tuning
    samples: Whole
    temperature: Positive
    refresh: Count


class GO(Learner):
    """PPO on `GOPolicy`; see the module's docstring. yaml: conf/algo/go.yaml explains every hyper-parameter."""

    network_settings = frozenset({"network"})

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int,
                 network: PolicySizes, learning: PPOSettings, guided: bool, search: GOSearchSettings,
                 placing: GroupSettings | None) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.placing = placing if [head.role for head in task.heads] == [Role.DEVICE] else None
        if self.placing:
            self.encoder, self.groups = encoder, GroupPolicy(encoder.width, network.prior.get(Role.DEVICE.value, 0.0))
        else:
            self.policy = GOPolicy(encoder, task.heads, network)
        self.network, self.learning, self.guided, self.search = network, learning, guided, search
        self.automatic_optimization = False
        self.credit = Credit(task, learning, lambda graph, decisions: self.pricing(graph).decisions(decisions).cost,
                             self.pricing, self._random)  # fmt: skip
        self._inputs: dict[str, tuple[Any, Tensor, Tensor, Tensor]] = {}
        self._taught: dict[str, list[TaughtState]] = {}

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        """Inputs per op that GO adds to the encoder's: default choice and mask of every head."""
        return 2 * len(task.heads)

    def made_for(self) -> dict[str, Any]:
        """Placement by groups: any number of devices."""
        return {"places": "groups"} if self.placing else super().made_for()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning.rate)
        if not self.placing:
            return optimizer
        steps = max(1, int(self.trainer.estimated_stepping_batches))
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, LAST_RATE, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": falling, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["past_rewards"] = {graph: list(past) for graph, past in self.credit.past.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        past = {graph: stored_numbers(values, 3) for graph, values in checkpoint["past_rewards"].items()}
        self.credit.past = {graph: (mean, square, int(trials)) for graph, (mean, square, trials) in past.items()}

    # ---- asking the policy

    def observe(self, graphs: list[Graph]) -> GOObservation:
        """The policy's input for a batch of graphs."""
        data, extra, default, allowed = zip(*map(self._inputs_of, graphs))
        joined = (torch.cat(part).to(self.device) for part in (extra, default, allowed))
        return GOObservation(batch(data).to(self.device), *joined)

    def _inputs_of(self, graph: Graph) -> tuple[Any, Tensor, Tensor, Tensor]:
        if graph.hash not in self._inputs:
            default_NH = torch.from_numpy(self.task.initial(graph).astype(np.int64))
            mask_NH = torch.from_numpy(np.ascontiguousarray(self.task.mask(graph)))
            counts_NH1 = torch.from_numpy(self.task.counts(graph))[:, :, None]
            most = torch.tensor([max(1, head.count - 1) for head in self.task.heads])
            choice = torch.arange(self.task.num_choices)
            allowed = torch.where(mask_NH[:, :, None], choice < counts_NH1, choice == default_NH[:, :, None])
            extra = torch.cat([default_NH / most, mask_NH.float()], 1).float()
            self._inputs[graph.hash] = (graph_features(graph, self.task.machine), extra, default_NH, allowed)
        return self._inputs[graph.hash]

    # ---- learning

    def prepare_training(self, graphs: Sequence[Graph]) -> None:
        """Placement by groups: prices moves from some plans of every training graph."""
        before = self.train_evals
        if self.placing:
            with Bar("price moves", len(graphs)) as bar:
                for graph in graphs:
                    seed = (self.val_seed * 1_000_003 + int(graph.hash[:7], 16)) % 2**31
                    problem = AssignProblem(graph, self.task, self.cost, evals=2**31, seed=seed)
                    self._taught[graph.hash] = taught_states(problem, self.placing)
                    self._count(problem.evals)
                    bar.step(graph.name)
        if self.train_steps:
            self.train_evals = before

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        """One PPO update: sample decisions for every graph, price them, improve the policy for some epochs."""
        if self.placing:
            self._learn_moves([graph for graph in graphs if self._taught[graph.hash]], self.placing)
            return
        observation = self.observe(graphs)
        with torch.no_grad():
            trials, reward = self._try(graphs, observation, self.credit)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        losses = self._improve(optimizer, self.manual_backward, observation, trials)
        self.log("reward", reward, prog_bar=True)
        self.log_dict(losses)

    def _learn_moves(self, graphs: list[Graph], settings: GroupSettings) -> None:
        """One plan of every graph."""
        loss = torch.zeros((), device=self.device)
        for graph in graphs:
            taught = self._taught[graph.hash]
            drawn = taught[int(self._random.integers(len(taught)))]
            loss = loss + self.groups.loss(self._states(graph), drawn, settings.temperature) / len(graphs)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        self.manual_backward(loss)
        nn.utils.clip_grad_norm_(self.parameters(), self.learning.gradient_clip)
        optimizer.step()
        schedule = self.lr_schedulers()
        assert isinstance(schedule, torch.optim.lr_scheduler.LinearLR)
        schedule.step()
        self.log("losses/policy", loss.detach(), prog_bar=True)

    def _states(self, graph: Graph) -> Tensor:
        """[N, D] the encoder's states of the ops."""
        observation = self.observe([graph])
        h_ND: Tensor = self.encoder(observation.data, observation.extra)[0]
        return h_ND

    def _improve(self, optimizer: Any, backward: Callable[[Tensor], None], observation: GOObservation,
                 trials: list[Trial]) -> dict[str, Tensor]:  # fmt: skip
        """Some epochs of PPO on trials; returns values to log."""
        for _ in range(self.learning.epochs):
            loss, entropy = clipped_loss(self.policy, observation, trials, self.learning)
            optimizer.zero_grad()
            backward(loss)
            norm = nn.utils.clip_grad_norm_(self.parameters(), self.learning.gradient_clip)
            if torch.isfinite(norm):
                optimizer.step()
        return {"losses/policy": loss.detach(), "losses/entropy": entropy.detach(), "losses/gradient": norm}

    def _try(self, graphs: list[Graph], observation: GOObservation, credit: Credit) -> tuple[list[Trial], float]:
        """The trials of one update and their mean reward."""
        encoded, previous, trials, rewards = self.policy.encode(observation), observation.default, [], []
        for _ in range(self.network.iterations):
            chosen = self.policy.decide(observation, encoded, previous, lambda p: sample(p, self.learning.samples))
            log_prob = of_chosen(self.policy(observation, encoded, previous, chosen), chosen)
            *judged, reward = credit.judge(graphs, chosen)
            picked, shared, own = (part.to(log_prob.device) for part in judged)
            # an op's own credit is counted from the expectation over its choices (counterfactual baseline)
            trials.append(Trial(previous, chosen, log_prob, shared + own * (1.0 - log_prob.exp())))
            previous = picked
            rewards.append(reward)
        return trials, float(np.mean(rewards))

    # ---- solving

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and self.placing:
            with inference(problem.graph):
                h_ND = self._states(problem.graph)
            with learning_inside(problem), torch.enable_grad():
                place(problem, self.placing, lambda state: self.groups(h_ND, state).detach(), self.learning.clip,
                      self.learning.epochs)  # fmt: skip
        elif len(slots):
            before = deepcopy(self.state_dict()) if self.search.tuning.steps else {}
            try:
                self._tune(problem)
                with inference(problem.graph):
                    self._search(problem, slots)
            finally:
                if before:
                    self.load_state_dict(before)

    def _tune(self, problem: AssignProblem) -> None:
        """PPO updates on this graph by the graph's reward; the learner's randomness and memory stay as they are."""
        each = self.learning.samples * self.network.iterations
        share = TUNING_SHARE * problem.evals_cap if self.guided else problem.evals_cap - self.network.iterations
        steps = min(self.search.tuning.steps, int(share) // each)
        if steps <= 0:
            return
        random = np.random.default_rng(int(problem.rng.integers(2**31)))
        learning = replace(self.learning, flip_weight=0.0)
        credit = Credit(self.task, learning, lambda _, decisions: problem.cost(decisions), self.pricing, random)
        credit.past = dict(self.credit.past)
        with learning_inside(problem), torch.enable_grad():
            optimizer = self.configure_optimizers()
            observation = self.observe([problem.graph])
            for _ in range(steps):
                with torch.no_grad():
                    trials, _ = self._try([problem.graph], observation, credit)
                self._improve(optimizer, torch.Tensor.backward, observation, trials)

    def _search(self, problem: AssignProblem, slots: Slots) -> None:
        observation = self.observe([problem.graph])
        encoded = self.policy.encode(observation)
        greedy = self._decode(problem, observation, encoded)
        if not problem.open:
            problem.commit(greedy[-1])
            return
        problem.cost(np.stack(greedy[-problem.remaining :]))
        if not self.guided:
            return
        self._price_answers(problem, observation, encoded)
        self._price_samples(problem, observation, encoded, greedy[-1])

        guided_search(problem, slots, lambda decision: self._given(observation, encoded, decision).cpu().numpy(),
                      self.search.refresh)  # fmt: skip

    def _decode(self, problem: AssignProblem, observation: GOObservation, encoded: EncodedGraphs) -> list[Decision]:
        """The most likely decisions of every iteration, canonical."""
        out, previous = list[Decision](), observation.default
        for _ in range(self.network.iterations):
            choice = self.policy.decide(observation, encoded, previous, lambda log_p: log_p.argmax(-1))[0]
            out.append(self.task.canonical(problem.graph, choice.cpu().numpy().astype(np.int16)))
            previous = torch.from_numpy(out[-1].astype(np.int64)).to(self.device)
        return out

    def _price_answers(self, problem: AssignProblem, observation: GOObservation, encoded: EncodedGraphs) -> None:
        """Further starts: the same choice everywhere, and the policy's answer to that.

        Only for tasks with one head of few choices, and at most a quarter of the budget.
        """
        count, counts = self.task.num_choices, self.task.counts(problem.graph)[:, 0]
        if len(self.task.heads) > 1 or 2 * count * 4 > problem.evals_cap:
            return
        for choice in range(count):
            same = problem.initial.copy()
            same[counts > 1, 0] = np.minimum(choice, counts - 1)[counts > 1]
            answer = self._given(observation, encoded, same).argmax(-1).cpu().numpy().astype(np.int16)
            problem.cost(np.stack([same, answer])[: problem.remaining])

    def _price_samples(self, problem: AssignProblem, observation: GOObservation, encoded: EncodedGraphs,
                       given: Decision) -> None:  # fmt: skip
        """A tenth of the budget, at most `search.samples`, on decisions sampled at a low temperature."""
        count = min(self.search.samples, problem.evals_cap // 10, problem.remaining)
        if count:
            generator = torch.Generator().manual_seed(int(problem.rng.integers(2**31)))

            def cool(log_p: Tensor) -> Tensor:
                drawn = sample(torch.log_softmax(log_p / self.search.temperature, -1).cpu(), count, generator)
                return drawn.to(log_p.device)

            previous = torch.from_numpy(given.astype(np.int64)).to(self.device)
            drawn = self.policy.decide(observation, encoded, previous, cool)
            problem.cost(drawn.cpu().numpy().astype(np.int16))

    def _given(self, observation: GOObservation, encoded: EncodedGraphs, decision: Decision) -> Tensor:
        """[N, H, K] log-probabilities given a decision."""
        log_p: Tensor = self.policy(observation, encoded, torch.from_numpy(decision.astype(np.int64)).to(self.device))
        return log_p
