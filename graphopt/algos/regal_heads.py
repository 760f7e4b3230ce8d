"""What REGAL's actions stand for, and the heads that say them (see `graphopt.algos.regal_policy`).

Every gene of an op has a Beta distribution given by two categorical actions with k = 16 values each, a mean index m and
a variance index v: mu = (m + 1) / (k + 1), sigma^2 = mu (1 - mu) (v + 1) / (k + 1), alpha + beta = (k - v) / (v + 1).
The elite bias of an op is one more categorical, rho = 0.5 + 0.5 (i + 0.5) / k.

Shape legend: N ops of all graphs of a batch, D devices, P actions of a graph, X inputs of a head, W width of a state.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.algos.regal_inputs import MEMBERSHIPS, ORDERS
from graphopt.utils.ranges import NotNegative, Positive, Shift, Width

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
        read = nn.functional.linear(state, of_state, self.hidden.bias)  # once per op, whatever the number of devices
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
