"""GO's network: p(y | G, y') for all ops at once, as described at the top of graphopt.algos.go.

Shape legend: N ops of all graphs of a batch, G graphs, H heads, K choices, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.algos.attention import SegmentAttention, Segments
from graphopt.core.head import Head
from graphopt.encoders.encoder import Encoder
from graphopt.errors import ConfigError
from graphopt.utils.ranges import AttentionHeads, Between, Few, Layers

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


@dataclass(frozen=True, kw_only=True)
class PolicySizes:
    """Sizes of the policy."""

    attention_layers: Layers
    attention_heads: AttentionHeads
    segment: Annotated[int, Between(1, 2048)]  # ops per attention segment
    superposition: bool  # modulate every layer's input by the graph state
    iterations: Few  # T of the iterative decoding
    prior: dict[str, float]  # per head, or role of heads: probability of the default's choice before training


class GOPolicy(nn.Module):
    """p(y | G, y') for all ops at once."""

    bonus: Tensor  # [H] added to the logit of the default's choice

    def __init__(self, encoder: Encoder, heads: Sequence[Head], network: PolicySizes) -> None:
        super().__init__()
        width = encoder.width
        self.encoder, self.segment, self.superposition = encoder, network.segment, network.superposition
        bonus = [_bonus(head, network.prior) for head in heads]
        self.register_buffer("bonus", torch.tensor(bonus), persistent=False)
        self.previous = nn.ModuleList(nn.Embedding(head.count, width) for head in heads)
        self.modulate = nn.Linear(width, width)
        self.layers = nn.ModuleList(
            SegmentAttention(width, network.attention_heads) for _ in range(network.attention_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(_head(width, head.count) for head in heads)

    def encode(self, observation: GOObservation) -> EncodedGraphs:
        h_ND, g_GD = self.encoder(observation.data, observation.extra)
        num_ops = observation.data.num_ops
        gate = torch.sigmoid(self.modulate(g_GD)) * 2 if self.superposition else torch.ones_like(g_GD)
        return EncodedGraphs(h_ND, torch.repeat_interleave(gate, num_ops, 0), Segments.of(num_ops, self.segment))

    def forward(self, observation: GOObservation, encoded: EncodedGraphs, previous_NH: Tensor) -> Tensor:
        """[N, H, K] log-probabilities of the next decisions given the previous ones."""
        x_ND = encoded.h
        for head, embed in enumerate(self.previous):
            x_ND = x_ND + embed(previous_NH[:, head])
        for layer in self.layers:
            x_ND = layer(encoded.gate * x_ND, encoded.segments)
        x_ND = self.norm(x_ND)
        logits = torch.full(observation.allowed.shape, _NEVER, device=x_ND.device)
        for head, linear in enumerate(self.heads):
            logits[:, head, : linear.out_features] = linear(x_ND)
        at_default = nn.functional.one_hot(observation.default, logits.shape[2]) * self.bonus[:, None]
        return torch.log_softmax((logits + at_default).masked_fill(~observation.allowed, _NEVER), -1)


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
