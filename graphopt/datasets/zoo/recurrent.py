"""Unrolled recurrent networks of GO's evaluation: a language model and a translation model."""

# mypy: disable-error-code="no-any-return, no-untyped-call"

import torch
from torch import Tensor, nn

from graphopt.datasets.zoo.layers import LSTMCell


class RNNLM(nn.Module):
    """Stacked LSTM language model (Jozefowicz et al. 2016), unrolled: tokens [B, S] -> log probabilities [B, S, V]."""

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.cells = nn.ModuleList(LSTMCell(width, width) for _ in range(layers))
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        zero = torch.zeros(tokens.shape[0], self.width)
        states = [(zero, zero) for _ in self.cells]
        outputs = []
        for x in self.embedding(tokens).unbind(1):
            for i, cell in enumerate(self.cells):
                states[i] = cell(x, states[i])
                x = states[i][0]
            outputs.append(x)
        return self.logits(torch.stack(outputs, 1)).log_softmax(-1)


def rnnlm(
    *, layers: int = 2, steps: int = 16, batch: int = 16, width: int = 512, vocabulary: int = 4096
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """13 ops per layer and step."""
    return RNNLM(layers, width, vocabulary), (torch.zeros(batch, steps, dtype=torch.int64),)


class GNMT(nn.Module):
    """Google's neural machine translation (Wu et al. 2016): bidirectional first encoder layer, residual LSTM stacks,
    additive attention from the first decoder layer, whose context feeds every decoder layer."""

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.width = width
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.forwards, self.backwards = LSTMCell(width, width), LSTMCell(width, width)
        self.encoder = nn.ModuleList(LSTMCell(2 * width if i == 0 else width, width) for i in range(layers - 1))
        self.decoder = nn.ModuleList(LSTMCell(2 * width, width) for _ in range(layers))
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.logits = nn.Linear(2 * width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self._encode(source)
        keys = self.key(memory)
        context, states = self._zero(target), [(self._zero(target), self._zero(target)) for _ in self.decoder]
        outputs = []
        for x in self.target(target).unbind(1):
            for i, cell in enumerate(self.decoder):
                states[i] = cell(torch.cat([x, context], -1), states[i])
                x = states[i][0] + x if i >= 2 else states[i][0]
                if i == 0:
                    context = self._attend(x, keys, memory)
            outputs.append(torch.cat([x, context], -1))
        return self.logits(torch.stack(outputs, 1)).log_softmax(-1)

    def _zero(self, tokens: Tensor) -> Tensor:
        return torch.zeros(tokens.shape[0], self.width)

    def _encode(self, source: Tensor) -> Tensor:
        """[B, S] tokens -> [B, S, D]"""
        inputs = list(self.source(source).unbind(1))
        ahead = self._run(self.forwards, inputs)
        back = self._run(self.backwards, inputs[::-1])[::-1]
        xs = [torch.cat(pair, -1) for pair in zip(ahead, back)]
        for i, cell in enumerate(self.encoder):
            ys = self._run(cell, xs)
            xs = [x + y for x, y in zip(xs, ys)] if i >= 1 else ys
        return torch.stack([x[:, : self.width] for x in xs], 1)

    def _run(self, cell: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        zero = torch.zeros_like(inputs[0])
        state, outputs = (zero[:, : self.width], zero[:, : self.width]), []
        for x in inputs:
            state = cell(x, state)
            outputs.append(state[0])
        return outputs

    def _attend(self, query: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        """[B, D] weighted sum of the memory by additive attention."""
        scores = self.score(torch.tanh(keys + self.query(query)[:, None]))
        return (scores.softmax(1) * memory).sum(1)


def gnmt(
    *, layers: int = 2, steps: int = 8, batch: int = 16, width: int = 512, vocabulary: int = 4096
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """`steps` source tokens and as many target tokens; about 28 ops per layer and step, and 24 per step."""
    tokens = torch.zeros(batch, steps, dtype=torch.int64)
    return GNMT(layers, width, vocabulary), (tokens, tokens.clone())
