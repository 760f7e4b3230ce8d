"""PPO (Schulman et al., 2017) on decisions of all ops at once, as GO uses it: what was tried, the clipped objective.

Shape legend: N ops of all graphs of a batch, G graphs, S samples, H heads, K choices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphopt.algos.go_policy import GOObservation, GOPolicy
from graphopt.errors import ConfigError
from graphopt.utils.ranges import Few, NotNegative, Share, Whole


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """PPO and its credit."""

    reward_weight: NotNegative  # of the graph's standardised reward, shared by all its ops (the paper: 1)
    flip_weight: NotNegative  # of each op's own counterfactual advantage (the paper: 0)
    flips: Whole  # slots priced per decision where the cost model has no exact flips
    alone: Share  # of the updates, in which one head alone is decided
    samples: Few  # decisions per graph, iteration and update
    epochs: Few
    clip: NotNegative
    entropy: NotNegative
    rate: NotNegative
    gradient_clip: NotNegative


@dataclass(frozen=True)
class Trial:
    """One iteration of decoding with S samples and what they earned."""

    previous: Tensor  # [N, H]
    chosen: Tensor  # [S, N, H]
    log_prob: Tensor  # [S, N, H]
    advantage: Tensor  # [S, N, H]


def clipped_loss(policy: GOPolicy, observation: GOObservation, trials: list[Trial],
                 settings: PPOSettings) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(minus PPO's clipped objective per slot and an entropy bonus, the entropy); every graph weighs the same."""
    encoded = policy.encode(observation)
    free_NH = observation.allowed.sum(-1) > 1
    share_N1 = _share_of_graph(free_NH, observation.data.num_ops)
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
        raise ConfigError(
            "the probabilities of algo=go are no numbers: its weights are too large; give another checkpoint, or train "
            "with a lower algo.learning.rate"
        )
    each = count if len(log_p) == 1 else 1
    return torch.multinomial(flat, each, replacement=True, generator=generator).T.reshape(count, log_p.shape[1])


def of_chosen(log_p: Tensor, chosen: Tensor) -> Tensor:
    """[S, N, H] log-probability of each draw, from [S, N, H, K]."""
    return log_p.gather(-1, chosen[..., None]).squeeze(-1)


def _share_of_graph(free_NH: Tensor, num_ops: Tensor) -> Tensor:
    """[N, 1] weights that make every graph of the batch count the same: 1 / (G x its free slots)."""
    graph = torch.repeat_interleave(torch.arange(len(num_ops), device=num_ops.device), num_ops)
    count = torch.zeros(len(num_ops), device=num_ops.device).index_add(0, graph, free_NH.sum(1).float())
    return (1.0 / (count.clamp(min=1) * len(num_ops)))[graph][:, None]
