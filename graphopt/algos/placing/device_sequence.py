"""A sequence-to-sequence network with attention that places groups one after the other: the placer of HDP, which
Spotlight trains otherwise.

A bidirectional LSTM reads the groups; an LSTM decoder, fed with the device of the group before, attends to all of them
(additive attention) and says a distribution over devices, one group at a time. As in the authors' code (TensorFlow 1.x,
python/grappler/hierarchical_controller.py): the logits are `bound` x tanh of what the last layer says.

Shape legend: B decisions, M groups, F features, D devices, W width.
"""

import torch
from torch import Tensor, nn


class DeviceSequence(nn.Module):
    """Log-probabilities of devices of all groups."""

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

        noise: standard deviation of what is added to the logits, over their root mean square.
        """
        read_BMW, (h, c) = self.reads(x_BMF)
        memory_BMW = self.memory(read_BMW)
        state = tuple(last.transpose(0, 1).reshape(len(x_BMF), -1) for last in (h, c))
        device_B = torch.full((len(x_BMF),), self.device.num_embeddings - 1)
        chosen, said = [], []
        for group in range(x_BMF.shape[1]):
            state = self.decides(self.device(device_B), state)
            log_p = torch.log_softmax(_noisy(self._logits(state[0], memory_BMW), noise), -1)
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


def _noisy(logits: Tensor, noise: float) -> Tensor:
    size = logits.detach().square().mean().sqrt() * noise
    return logits + size * torch.randn_like(logits) if noise else logits
