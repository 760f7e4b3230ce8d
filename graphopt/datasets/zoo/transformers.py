"""Attention networks of GO's and X-RLflow's evaluations. Shape legend as in layers.py, and M memory, R positions."""

# mypy: disable-error-code="no-any-return, no-untyped-call"

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphopt.datasets.zoo.layers import Attention, FeedForward, causal_mask

Built = tuple[nn.Module, tuple[Tensor, ...]]


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
