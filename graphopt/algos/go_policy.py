"""GO's network: p(y | G, y') for all ops at once, as described at the top of graphopt.algos.go.

Shape legend: N ops of all graphs of a batch, G graphs, S samples, H heads, K choices, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.algos.attention import SegmentAttention, Segments
from graphopt.core.head import Head
from graphopt.encoders.encoder import Encoder
from graphopt.errors import ConfigError
from graphopt.utils.ranges import AttentionHeads, Between, Few, Layers, Share

_NEVER = -1e9


@dataclass(frozen=True)
class GOObservation:
    """A batch of graphs as the policy sees it."""

    data: Any  # features of all graphs
    extra: Tensor  # [N, 2H] the default's choice (scaled to [0, 1]) and whether there is a choice
    default: Tensor  # [N, H] the default's choice
    allowed: Tensor  # [N, H, K] False where a choice does not exist; ops without a choice keep the default


@dataclass(frozen=True)
class EncodedGraphs:
    """What the encoder made of it; computed once for all iterations."""

    h: Tensor  # [N, D]
    gate: Tensor  # [N, D] superposition m(h_G), spread over the ops
    segments: Segments

    def times(self, count: int, num_ops: Tensor, segment: int) -> "EncodedGraphs":
        """The same graphs so many times, one after the other. num_ops: [G]"""
        if count == 1:
            return self
        return EncodedGraphs(
            self.h.repeat(count, 1), self.gate.repeat(count, 1), Segments.of(num_ops.repeat(count), segment)
        )


@dataclass(frozen=True, kw_only=True)
class PolicySizes:
    """Sizes of the policy."""

    attention_layers: Layers
    attention_heads: AttentionHeads
    segment: Annotated[int, Between(1, 2048)]  # ops per attention segment
    superposition: bool  # modulate every attention layer's input by the graph state
    iterations: Few  # T of the iterative decoding
    recurrent: bool  # the attention layers once for every head, each seeing what those before decided
    prior: dict[str, Share]  # per head, or role of heads: probability of the default's choice before training

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
        bonus = [_bonus(head, network.prior) for head in heads]
        self.register_buffer("bonus", torch.tensor(bonus), persistent=False)
        self.previous = nn.ModuleList(nn.Embedding(head.count, width) for head in heads)
        self.modulate = nn.Linear(width, width) if network.superposition else None
        self.layers = nn.ModuleList(
            SegmentAttention(width, network.attention_heads) for _ in range(network.attention_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(_head(width, head.count) for head in heads)

    def encode(self, observation: GOObservation) -> EncodedGraphs:
        h_ND, g_GD = self.encoder(observation.data, observation.extra)
        num_ops = observation.data.num_ops
        gate = torch.ones_like(g_GD) if self.modulate is None else torch.sigmoid(self.modulate(g_GD)) * 2
        return EncodedGraphs(h_ND, torch.repeat_interleave(gate, num_ops, 0), Segments.of(num_ops, self.segment))

    def forward(self, observation: GOObservation, encoded: EncodedGraphs, previous_NH: Tensor,
                chosen_SNH: Tensor | None = None) -> Tensor:  # fmt: skip
        """Log-probabilities of the next decisions given the previous ones: [N, H, K], where every head sees the
        previous decisions of all; [S, N, H, K] given decisions, where a recurrent head sees of those before it what was
        chosen."""
        seen = previous_NH[None] if chosen_SNH is None or not self.recurrent else chosen_SNH
        if not self.recurrent:
            x_ND = self._read(encoded, encoded.h, previous_NH)
            logits = [linear(x_ND) for linear in self.heads]
            log_p = self._log_p(observation, torch.stack([self._wide(each, observation) for each in logits], 1))
            return log_p if chosen_SNH is None else log_p.expand(len(chosen_SNH), *log_p.shape)
        chosen: list[Tensor] = list(seen.unbind(2))
        log_p = self._one_by_one(observation, encoded, previous_NH, lambda head, _: chosen[head])
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
        """[S, N, H, K] head by head: the layers read the graph, the previous decisions, in their place what heads
        before have chosen, and what the layers said to the head before."""
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
        x_ND = self.norm(x_ND)
        return x_ND

    def _wide(self, logits: Tensor, observation: GOObservation) -> Tensor:
        """[..., K] with choices that the head does not have, never taken."""
        missing = observation.allowed.shape[2] - logits.shape[-1]
        return nn.functional.pad(logits, (0, missing), value=_NEVER)

    def _log_p(self, observation: GOObservation, logits: Tensor, first: int = 0) -> Tensor:
        """Of logits [..., N, heads, K], of the heads from `first` on."""
        heads = slice(first, first + logits.shape[-2])
        default = nn.functional.one_hot(observation.default[:, heads], logits.shape[-1])
        at_default = default * self.bonus[heads, None]
        return torch.log_softmax((logits + at_default).masked_fill(~observation.allowed[:, heads], _NEVER), -1)


def _head(width: int, choices: int) -> nn.Linear:
    """Starts with nearly equal logits."""
    linear = nn.Linear(width, choices)
    nn.init.normal_(linear.weight, std=0.01)
    nn.init.zeros_(linear.bias)
    return linear


def _bonus(head: Head, prior: Mapping[str, float]) -> float:
    """What to add to one of equal logits so that its probability becomes the prior of the head, or of its role."""
    at = prior.get(head.name, prior.get(head.role.value, 0.0))
    if not 0.0 < at < 1.0:
        raise ConfigError(
            f"algo.network.prior has no probability between 0 and 1 for {head.name!r}; "
            f"give algo.network.prior.{head.name}=0.8"
        )
    return float(np.log(at / (1.0 - at) * max(1, head.count - 1)))
