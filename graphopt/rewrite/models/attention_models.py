"""BERT, DALL-E mini, Transformer-Transducer and ViT as X-RLflow builds them: no softmax, no normalisation, batch 1.

Attention without softmax is cubic in its input, so that nothing bounds it. Every block therefore adds its result to its
input with a small gain of the random weights; the sizes of the published graphs do not change by that.
"""

from math import sqrt

from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program

Builder = ProgramBuilder
_GAIN = 0.1  # of what a block adds, relative to its input


def bert(blocks: int = 8, seq: int = 64, width: int = 1024, heads: int = 16, dangling: bool = False) -> Program:
    """Attention blocks with residual sums. `dangling`: the graph that TASO, Tensat and X-RLflow measure.

    There, the last product of every block multiplies the block's *input*, so nothing reads the attention. As in
    Tensat, attentions are further outputs then: 81 ops, and 32 reshapes.
    """
    b = Builder()
    x, ignored = b.unary("relu", b.input((seq, width))), list[int]()
    for _ in range(blocks):
        attention = _attention(b, x, heads)
        if dangling:
            ignored.append(attention)
            x = b.linear(x, width)
        else:
            x = b.add(x, b.linear(attention, width, gain=_attention_gain(seq, width, heads)))
    return b.build(x, *ignored)


def dalle_mini(blocks: int = 8, text: int = 16, width: int = 768, heads: int = 12, hidden: int = 2048) -> Program:
    """The text encoder's blocks: attention, then a gated linear unit (gate: sigmoid, our choice for the smooth one)."""
    b = Builder()
    x = b.input((text, width))
    for _ in range(blocks):
        x = _attended(b, x, heads)
        gated = b.mul(b.unary("sigmoid", b.linear(x, hidden)), b.linear(x, hidden))
        x = b.add(x, b.linear(gated, width, gain=_GAIN))
    return b.build(x)


def transformer_transducer(audio_blocks: int = 12, label_blocks: int = 2, seq: int = 80, width: int = 512,
                           heads: int = 8, hidden: int = 2048) -> Program:  # fmt: skip
    """Transformer-Transducer (Zhang et al., 2020): an audio and a label encoder, and the network that joins them."""
    b = Builder()
    audio = _encoder(b, audio_blocks, seq, width, heads, hidden)
    labels = _encoder(b, label_blocks, seq, width, heads, hidden)
    joined = b.unary("tanh", b.add(b.linear(audio, width), b.linear(labels, width)))
    return b.build(b.linear(joined, width))


def vit(patches: int = 64, width: int = 768, blocks: int = 12, heads: int = 12, hidden: int = 3072) -> Program:
    """ViT-base (Dosovitskiy et al., 2021) on embedded patches."""
    b = Builder()
    x = b.input((patches, width))
    for _ in range(blocks):
        x = _feed_forward(b, _attended(b, x, heads), hidden)
    return b.build(x)


def _encoder(b: Builder, blocks: int, seq: int, width: int, heads: int, hidden: int) -> int:
    x = b.input((seq, width))
    for _ in range(blocks):
        x = _feed_forward(b, _attended(b, x, heads), hidden)
    return x


def _attention(b: Builder, x: int, heads: int) -> int:
    """[seq, width] q k^T v of every head, without softmax, scale and the last product."""
    seq, width = b.shape(x)
    if width % heads:
        raise ValueError(f"a width of {width} does not make {heads} heads")
    q, k, v = (b.reshape(b.linear(x, width), seq, heads, width // heads) for _ in range(3))
    logits = b.matmul(b.transpose(q, 1, 0, 2), b.transpose(k, 1, 2, 0))
    return b.reshape(b.transpose(b.matmul(logits, b.transpose(v, 1, 0, 2)), 1, 0, 2), seq, width)


def _attended(b: Builder, x: int, heads: int) -> int:
    seq, width = b.shape(x)
    return b.add(x, b.linear(_attention(b, x, heads), width, gain=_attention_gain(seq, width, heads)))


def _attention_gain(seq: int, width: int, heads: int) -> float:
    """Takes the growth of the sums over a head and over the sequence back."""
    return _GAIN / sqrt(seq * (width // heads))


def _feed_forward(b: Builder, x: int, hidden: int) -> int:
    return b.add(x, b.linear(b.linear(x, hidden, "relu"), b.shape(x)[-1], gain=_GAIN))
