"""Networks of sequences, sets and graphs of the papers' evaluations: recurrent, graph networks, a ranker, transformers.

Shape legend: B batch, S sequence, D width, H heads, M memory, R positions.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]


class LSTMCell(nn.Module):
    """One step of a long short-term memory: (x [B, I], (h, c) [B, D]) -> (h, c). Gates by two matrix products."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.from_input, self.from_state = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        gate_in, gate_forget, update, gate_out = (self.from_input(x) + self.from_state(h)).chunk(4, -1)
        c = torch.sigmoid(gate_forget) * c + torch.sigmoid(gate_in) * torch.tanh(update)
        return torch.sigmoid(gate_out) * torch.tanh(c), c


class MLP(nn.Sequential):
    """Linear layers of the given widths with ReLU between, and a layer norm at the end if asked."""

    def __init__(self, widths: Sequence[int], *, norm: bool = False) -> None:
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            layers += [nn.ReLU()] * (i > 0) + [nn.Linear(inputs, outputs)]
        super().__init__(*layers, *([nn.LayerNorm(widths[-1])] if norm else []))


class Attention(nn.Module):
    """Multi-head attention of queries [B, S, D] over a memory [B, M, D]; the mask is added to the scores."""

    def __init__(self, width: int, heads: int, *, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return self.join(weights @ v)

    def split(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, H, S, D / H]"""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with GELU or ReLU between."""

    def __init__(self, width: int, inner: int, *, gelu: bool = True) -> None:
        super().__init__()
        self.up, self.down, self.gelu = nn.Linear(width, inner), nn.Linear(inner, width), gelu

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        return self.down(F.gelu(inner) if self.gelu else F.relu(inner))


def causal_mask(queries: int, keys: int) -> Tensor:
    """[Q, K] 0 where a query may look (keys end where queries end), -inf elsewhere."""
    ahead = torch.arange(keys) - (keys - queries) > torch.arange(queries)[:, None]
    return torch.zeros(queries, keys).masked_fill(ahead, float("-inf"))


# --- Recurrent networks.


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


# --- Graph networks and a ranker.


class GraphBlock(nn.Module):
    """Updates edges, then nodes, then the global state (Battaglia et al. 2018, algorithm 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge, self.node = MLP([4 * width, width, width], norm=True), MLP([3 * width, width, width], norm=True)
        self.all = MLP([3 * width, width, width], norm=True)

    def forward(
        self, nodes: Tensor, edges: Tensor, state: Tensor, sender: Tensor, receiver: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_edges, to_nodes = state.expand(len(edges), -1), state.expand(len(nodes), -1)
        edges = edges + self.edge(torch.cat([edges, nodes[sender], nodes[receiver], to_edges], -1))
        received = torch.zeros_like(nodes).index_add(0, receiver, edges)
        nodes = nodes + self.node(torch.cat([nodes, received, to_nodes], -1))
        means = [nodes.mean(0, keepdim=True), edges.mean(0, keepdim=True)]
        return nodes, edges, state + self.all(torch.cat([*means, state], -1))


class GraphNets(nn.Module):
    """Encode, process for several rounds, decode."""

    def __init__(self, rounds: int, width: int) -> None:
        super().__init__()
        self.nodes, self.edges, self.state = (MLP([16, width, width], norm=True) for _ in range(3))
        self.rounds = nn.ModuleList(GraphBlock(width) for _ in range(rounds))
        self.node_out, self.edge_out = MLP([width, width, 1]), MLP([width, width, 1])

    def forward(
        self, nodes: Tensor, edges: Tensor, state: Tensor, sender: Tensor, receiver: Tensor
    ) -> tuple[Tensor, Tensor]:
        nodes, edges, state = self.nodes(nodes), self.edges(edges), self.state(state)
        for block in self.rounds:
            nodes, edges, state = block(nodes, edges, state, sender, receiver)
        return self.node_out(nodes), torch.sigmoid(self.edge_out(edges))


def graph_nets(*, rounds: int = 4, nodes: int = 256, edges: int = 1024, width: int = 128) -> Built:
    ends = torch.zeros(2, edges, dtype=torch.int64)
    return GraphNets(rounds, width), (
        torch.zeros(nodes, 16),
        torch.zeros(edges, 16),
        torch.zeros(1, 16),
        ends[0],
        ends[1],
    )


class Tower(nn.Module):
    """Feature embeddings joined by cross layers (Wang et al. 2017) beside a deep network."""

    def __init__(self, features: int, width: int, layers: int, rows: int) -> None:
        super().__init__()
        joined = features * width
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(features))
        self.crosses = nn.ModuleList(nn.Linear(joined, 1) for _ in range(layers))
        self.deep = MLP([joined, *[256] * layers])
        self.out = nn.Linear(joined + 256, 64)

    def forward(self, ids: Tensor) -> Tensor:
        first = torch.cat([table(i) for table, i in zip(self.tables, ids.unbind(1))], -1)
        x = first
        for cross in self.crosses:
            x = first * cross(x) + x
        return torch.tanh(self.out(torch.cat([x, torch.relu(self.deep(first))], -1)))


class DeepRank(nn.Module):
    """Scores of candidates for a query: two towers, their interactions, and a softmax over the candidates."""

    def __init__(self, features: int, width: int, layers: int, rows: int) -> None:
        super().__init__()
        self.query, self.item = (Tower(features, width, layers, rows) for _ in range(2))
        self.score = MLP([64 * 3 + 1, *[128] * layers, 1])

    def forward(self, query: Tensor, items: list[Tensor]) -> Tensor:
        q, scores = self.query(query), []
        for ids in items:
            x = self.item(ids)
            cosine = (q * x).sum(-1, keepdim=True) * torch.rsqrt(
                (q * q).sum(-1, keepdim=True) * (x * x).sum(-1, keepdim=True) + 1e-6
            )
            scores.append(self.score(torch.cat([q * x, (q - x).abs(), x, cosine], -1)))
        return torch.cat(scores, -1).log_softmax(-1)


def deep_rank(
    *, layers: int = 3, candidates: int = 4, features: int = 8, batch: int = 64, width: int = 32, rows: int = 10_000
) -> Built:
    module = DeepRank(features, width, layers, rows)
    ids = [torch.zeros(batch, features, dtype=torch.int64) for _ in range(candidates + 1)]
    return module, (ids[0], ids[1:])  # type: ignore[return-value]


# --- Transformers.


def _tokens(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.int64)


class PostNormLayer(nn.Module):
    """BERT's encoder layer: attention and feed-forward, each followed by residual and layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.feed = Attention(width, heads), FeedForward(width, 4 * width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.norm_1(x + self.attention(x, x, mask))
        return self.norm_2(x + self.feed(x))


class PreNormLayer(PostNormLayer):
    """The same with the layer norms in front of attention and feed-forward, as in ViT and transducers."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.norm_1(x)
        x = x + self.attention(y, y, mask)
        return x + self.feed(self.norm_2(x))


class BERT(nn.Module):
    """Devlin et al. 2019: tokens and segments [B, S], padding mask [B, S] -> hidden states and pooled state."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.word, self.position, self.segment = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(length, width),
            nn.Embedding(2, width),
        )
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, width)
        self.layers = nn.ModuleList(PostNormLayer(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor, segments: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.word(tokens) + self.position(torch.arange(tokens.shape[1])) + self.segment(segments))
        mask = (1.0 - padding[:, None, None]) * -1e4
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


def bert(
    *, layers: int = 4, seq: int = 128, batch: int = 1, width: int = 512, heads: int = 8, vocabulary: int = 8192
) -> Built:
    module = BERT(layers, width, heads, vocabulary, seq)
    return module, (_tokens(batch, seq), _tokens(batch, seq), torch.ones(batch, seq))


class ViT(nn.Module):
    """Vision transformer (Dosovitskiy et al. 2021): image [B, 3, size, size] -> class scores."""

    def __init__(self, layers: int, width: int, heads: int, patch: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.start = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(PreNormLayer(width, heads) for _ in range(layers))
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(len(x), -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.classes(self.norm(x)[:, 0])


def vit(
    *, layers: int = 6, batch: int = 1, size: int = 224, patch: int = 16, width: int = 384, heads: int = 6
) -> Built:
    return ViT(layers, width, heads, patch, size), (torch.zeros(batch, 3, size, size),)


class RelativeAttention(Attention):
    """Transformer-XL's attention: content and position scores with global biases (Dai et al. 2019, section 3.3)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, bias=False)
        self.relative = nn.Linear(width, width, bias=False)
        self.content_bias, self.position_bias = (nn.Parameter(torch.zeros(heads, 1, width // heads)) for _ in range(2))

    def attend(self, x: Tensor, memory: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """x [B, S, D] over memory [B, M + S, D] with position codes [M + S, D]."""
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        r = self.split(self.relative(positions)[None])
        content = (q + self.content_bias) @ k.transpose(-1, -2)
        position = _shift((q + self.position_bias) @ r.transpose(-1, -2))
        weights = ((content + position) / math.sqrt(q.shape[-1]) + mask).softmax(-1)
        return self.join(weights @ v)


def _shift(scores: Tensor) -> Tensor:
    """[B, H, S, R]: row i is moved left by S - 1 - i, so that column j means position j rather than distance."""
    batch, heads, queries, positions = scores.shape
    padded = F.pad(scores, (1, 0)).view(batch, heads, positions + 1, queries)
    return padded[:, :, 1:].reshape(batch, heads, queries, positions)


class TransformerXLLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.feed = RelativeAttention(width, heads), FeedForward(width, 4 * width, gelu=False)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        x = self.norm_1(x + self.attention.attend(x, torch.cat([memory, x], 1), positions, mask))
        return self.norm_2(x + self.feed(x))


class TransformerXL(nn.Module):
    """Dai et al. 2019: segments of a sequence one after the other, each attending over the one before."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, segment: int) -> None:
        super().__init__()
        self.width, self.segment = width, segment
        self.embedding, self.logits = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.layers = nn.ModuleList(TransformerXLLayer(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        mask = causal_mask(self.segment, 2 * self.segment)
        distance = torch.arange(2 * self.segment - 1, -1, -1.0)[:, None]
        angle = distance * torch.exp(torch.arange(0, self.width, 2) * (-math.log(1e4) / self.width))
        positions = torch.cat([angle.sin(), angle.cos()], -1)
        memory = [torch.zeros(len(tokens), self.segment, self.width) for _ in self.layers]
        outputs = []
        for part in tokens.split(self.segment, 1):
            x = self.embedding(part)
            for i, layer in enumerate(self.layers):
                x, memory[i] = layer(x, memory[i], positions, mask), x.detach()
            outputs.append(self.logits(x).log_softmax(-1))
        return torch.cat(outputs, 1)


def transformer_xl(*, layers: int = 2, segments: int = 2, seq: int = 64, batch: int = 4, width: int = 512,
                   heads: int = 8, vocabulary: int = 4096) -> Built:  # fmt: skip
    """`segments` segments of `seq` tokens each; about 49 ops per layer and segment."""
    return TransformerXL(layers, width, heads, vocabulary, seq), (_tokens(batch, segments * seq),)


class Transducer(nn.Module):
    """Transformer-Transducer (Zhang et al. 2020): audio and label encoders, joined for every (frame, label) pair."""

    def __init__(
        self, audio_layers: int, label_layers: int, width: int, heads: int, vocabulary: int, window: int
    ) -> None:
        super().__init__()
        self.window = window
        self.audio_in, self.label_in = nn.Linear(512, width), nn.Embedding(vocabulary, width)
        self.audio = nn.ModuleList(PreNormLayer(width, heads) for _ in range(audio_layers))
        self.label = nn.ModuleList(PreNormLayer(width, heads) for _ in range(label_layers))
        self.audio_out, self.label_out = nn.Linear(width, width), nn.Linear(width, width)
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, frames: Tensor, labels: Tensor) -> Tensor:
        steps = torch.arange(frames.shape[1])
        far = (steps - steps[:, None]).abs() > self.window
        window = torch.zeros(len(steps), len(steps)).masked_fill(far, float("-inf"))
        x, y = self.audio_in(frames), self.label_in(labels)
        for layer in self.audio:
            x = layer(x, window)
        for layer in self.label:
            y = layer(y, causal_mask(labels.shape[1], labels.shape[1]))
        joint = torch.tanh(self.audio_out(x)[:, :, None] + self.label_out(y)[:, None])
        return self.logits(joint).log_softmax(-1)


def transformer_transducer(*, layers: int = 4, label_layers: int = 2, frames: int = 64, labels: int = 16,
                           batch: int = 1, width: int = 512, heads: int = 8,
                           vocabulary: int = 128) -> Built:  # fmt: skip
    module = Transducer(layers, label_layers, width, heads, vocabulary, window=10)
    return module, (torch.zeros(batch, frames, 512), _tokens(batch, labels))


class GatedFeedForward(nn.Module):
    """Gated linear unit between two layer norms, as in DALL-E mini."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
            nn.Linear(inner, width, bias=False),
        )
        self.norm_in, self.norm_inner = nn.LayerNorm(width), nn.LayerNorm(inner)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_in(x)
        return self.down(self.norm_inner(F.gelu(self.gate(x)) * self.up(x)))


class GatedLayer(nn.Module):
    """Attention (and cross-attention in decoders) with norms before and after, then a gated feed-forward."""

    def __init__(self, width: int, heads: int, *, cross: bool) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(Attention(width, heads, bias=False) for _ in range(1 + cross))
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(1 + cross))
        self.after = nn.ModuleList(nn.LayerNorm(width) for _ in range(1 + cross))
        self.feed = GatedFeedForward(width, 4 * width)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        for i, attention in enumerate(self.attentions):
            y = self.before[i](x)
            x = x + self.after[i](attention(y, memory if i and memory is not None else y, None if i else mask))
        return x + self.feed(x)


class DalleMini(nn.Module):
    """DALL-E mini (Dayma et al. 2021): text encoder and image-token decoder of gated layers."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, seq: int, image: int) -> None:
        super().__init__()
        self.text, self.picture = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.text_position, self.picture_position = nn.Embedding(seq, width), nn.Embedding(image, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.encoder = nn.ModuleList(GatedLayer(width, heads, cross=False) for _ in range(layers))
        self.decoder = nn.ModuleList(GatedLayer(width, heads, cross=True) for _ in range(layers))
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor, picture: Tensor) -> Tensor:
        x = self.norms[0](self.text(text) + self.text_position(torch.arange(text.shape[1])))
        for layer in self.encoder:
            x = layer(x)
        x = self.norms[1](x)
        y = self.norms[2](self.picture(picture) + self.picture_position(torch.arange(picture.shape[1])))
        mask = causal_mask(picture.shape[1], picture.shape[1])
        for layer in self.decoder:
            y = layer(y, x, mask)
        return self.logits(self.norms[3](y))


def dalle_mini(*, layers: int = 3, seq: int = 64, image: int = 64, batch: int = 1, width: int = 512, heads: int = 8,
               vocabulary: int = 4096) -> Built:  # fmt: skip
    module = DalleMini(layers, width, heads, vocabulary, seq, image)
    return module, (_tokens(batch, seq), _tokens(batch, image))
