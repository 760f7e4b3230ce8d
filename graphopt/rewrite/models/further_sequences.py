"""MLP-Mixer, T5, an LSTM and a mixture of experts as programs: networks of no paper on rewriting, whole as published
but for what each one says."""

from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program

Builder = ProgramBuilder


def mlp_mixer(patches: int = 196, width: int = 768, blocks: int = 12, tokens: int = 384, hidden: int = 3072) -> Program:
    """MLP-Mixer (Tolstikhin et al., 2021) on embedded patches, with relu in place of gelu."""
    b = Builder()
    x = b.input((patches, width))
    for _ in range(blocks):
        mixed = b.linear(b.linear(b.transpose(b.layer_norm(x), 1, 0), tokens, "relu"), patches)
        x = b.add(x, b.transpose(mixed, 1, 0))
        x = b.add(x, b.linear(b.linear(b.layer_norm(x), hidden, "relu"), width))
    return b.build(b.layer_norm(x))


def t5(
    blocks: int = 6, seq: int = 32, memory: int = 64, width: int = 512, heads: int = 8, hidden: int = 2048
) -> Program:
    """T5's decoder (Raffel et al., 2020): every block attends to the words so far and to one encoded text.

    As there, nothing scales the logits and products have no biases. Layer norms stand for its root mean squares, and
    the relative positions' biases and the mask are left out.
    """
    b = Builder()
    x, encoded = b.input((seq, width)), b.input((memory, width))
    for _ in range(blocks):
        x = b.add(x, _attended(b, b.layer_norm(x), None, heads))
        x = b.add(x, _attended(b, b.layer_norm(x), encoded, heads))
        x = b.add(x, b.linear(b.linear(b.layer_norm(x), hidden, "relu"), width))
    return b.build(b.layer_norm(x))


def lstm(steps: int = 8, layers: int = 2, width: int = 512) -> Program:
    """An LSTM (Hochreiter and Schmidhuber, 1997) op by op: eight products a cell, whose weights all steps share."""
    b = Builder()
    xs = [b.input((1, width)) for _ in range(steps)]
    for _ in range(layers):
        weights = [(b.weight(width, width), b.weight(width, width), b.weight(width)) for _ in range(4)]
        hidden, state, ys = b.input((1, width)), b.input((1, width)), []
        for x in xs:
            into = [b.add(b.add(b.matmul(x, w), b.matmul(hidden, u)), shift) for w, u, shift in weights]
            take, keep, give = (b.unary("sigmoid", gate) for gate in into[:3])
            state = b.add(b.mul(keep, state), b.mul(take, b.unary("tanh", into[3])))
            hidden = b.mul(give, b.unary("tanh", state))
            ys.append(hidden)
        xs = ys
    return b.build(*xs)


def mixture(experts: int = 8, tasks: int = 2, batch: int = 16, width: int = 256, hidden: int = 128) -> Program:
    """A multi-gate mixture of experts (Ma et al., 2018): experts on one input, mixed for every task by a gate of it."""
    b = Builder()
    x = b.input((batch, width))
    made = [b.linear(b.linear(x, hidden, "relu"), hidden, "relu") for _ in range(experts)]
    stacked = b.concat(1, *(b.reshape(y, batch, 1, hidden) for y in made))
    towers = []
    for _ in range(tasks):
        gate = b.reshape(b.op("softmax", 1, inputs=[b.linear(x, experts)]), batch, 1, experts)
        mixed = b.reshape(b.matmul(gate, stacked), batch, hidden)
        towers.append(b.unary("sigmoid", b.linear(b.linear(mixed, hidden, "relu"), 1)))
    return b.build(*towers)


def _attended(b: Builder, x: int, encoded: int | None, heads: int) -> int:
    """Attention of x to `encoded`, or to itself."""
    (seq, width), read = b.shape(x), x if encoded is None else encoded
    if width % heads:
        raise ValueError(f"a width of {width} does not make {heads} heads")
    q, k, v = (b.reshape(b.linear(of, width), b.shape(of)[0], heads, width // heads) for of in (x, read, read))
    weights = b.op("softmax", 2, inputs=[b.matmul(b.transpose(q, 1, 0, 2), b.transpose(k, 1, 2, 0))])
    return b.linear(b.reshape(b.transpose(b.matmul(weights, b.transpose(v, 1, 0, 2)), 1, 0, 2), seq, width), width)
