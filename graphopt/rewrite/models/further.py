"""ShuffleNet, MobileNetV2, DenseNet, RegNetX, MLP-Mixer, T5, an LSTM and a mixture of experts as programs.

They are of no paper on rewriting, whole and normalised as published but for what each one says.
"""

from graphopt.rewrite.ir.program_builder import ProgramBuilder as Builder
from graphopt.rewrite.ir.terms import Program


def shufflenet(size: int = 224, channels: int = 240, groups: int = 3, stages: int = 3) -> Program:
    """ShuffleNet (Zhang et al., 2018). `channels` of the first stage of units, which double from stage to stage."""
    b = Builder()
    x = b.pool("max", _normalised(b, b.input((1, 3, size, size)), max(channels // 10, 1), 3, stride=2), 3, 2)
    for stage, repeats in enumerate((3, 7, 3)[:stages]):
        for unit in range(repeats + 1):
            x = _shuffle_unit(b, x, channels << stage, groups if (stage, unit) != (0, 0) else 1, 2 if unit == 0 else 1)
    return b.build(b.global_average(x))


def mobilenet_v2(size: int = 224, channels: int = 32, stages: int = 7) -> Program:
    """MobileNetV2 (Sandler et al., 2018), with relu in place of relu6. `channels` of the first convolution."""
    b = Builder()
    x = _normalised(b, b.input((1, 3, size, size)), channels, 3, stride=2)
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, width, repeats, stride in table[:stages]:
        for block in range(repeats):
            x = _inverted(b, x, expansion, max(width * channels // 32, 1), stride if block == 0 else 1)
    return b.build(b.global_average(_normalised(b, x, 40 * channels, 1)))


def densenet(size: int = 224, growth: int = 32, stages: int = 4) -> Program:
    """DenseNet-121 (Huang et al., 2017): every layer reads all before it. `growth`: channels that a layer adds."""
    b = Builder()
    x = b.pool("max", _normalised(b, b.input((1, 3, size, size)), 2 * growth, 7, stride=2), 3, 2)
    for stage, layers in enumerate((6, 12, 24, 16)[:stages]):
        if stage > 0:
            x = b.conv(b.unary("relu", b.batch_norm(x)), b.shape(x)[1] // 2, 1)
            x = b.pool("avg", x, 2, 2, same=False)
        for _ in range(layers):
            y = _normalised(b, b.unary("relu", b.batch_norm(x)), 4 * growth, 1)
            x = b.concat(1, x, b.conv(y, growth, 3))
    return b.build(b.global_average(b.unary("relu", b.batch_norm(x))))


def regnet_x(size: int = 224, width: int = 32, group: int = 16, stages: int = 4) -> Program:
    """RegNetX-400MF (Radosavovic et al., 2020). `width` of the first stage, `group`: channels of a group."""
    b = Builder()
    x = _normalised(b, b.input((1, 3, size, size)), 32, 3, stride=2)
    for factor, depth in ((1, 1), (2, 2), (5, 7), (12, 12))[:stages]:
        for block in range(depth):
            x = _regnet_block(b, x, factor * width, group, 2 if block == 0 else 1)
    return b.build(b.global_average(x))


def _normalised(b: Builder, x: int, channels: int, kernel: int, *, stride: int = 1, groups: int = 1,
                active: bool = True) -> int:  # fmt: skip
    """A convolution, its batch norm and, if `active`, a relu."""
    x = b.batch_norm(b.conv(x, channels, kernel, stride=stride, groups=groups))
    return b.unary("relu", x) if active else x


def _shuffle_unit(b: Builder, x: int, width: int, groups: int, stride: int) -> int:
    """Two grouped 1x1 convolutions around a shuffle of channels and a depthwise one; joined where the size halves."""
    made = width if stride == 1 else width - b.shape(x)[1]
    y = _shuffled(b, _normalised(b, x, width // 4, 1, groups=groups), groups)
    y = _normalised(b, y, width // 4, 3, stride=stride, groups=width // 4, active=False)
    y = _normalised(b, y, made, 1, groups=groups, active=False)
    if stride == 1:
        return b.unary("relu", b.add(x, y))
    return b.unary("relu", b.concat(1, b.pool("avg", x, 3, 2), y))


def _shuffled(b: Builder, x: int, groups: int) -> int:
    batch, channels, height, breadth = b.shape(x)
    x = b.transpose(b.reshape(x, batch, groups, channels // groups, height, breadth), 0, 2, 1, 3, 4)
    return b.reshape(x, batch, channels, height, breadth)


def _inverted(b: Builder, x: int, expansion: int, width: int, stride: int) -> int:
    wide = b.shape(x)[1] * expansion
    y = _normalised(b, x, wide, 1) if expansion > 1 else x
    y = _normalised(b, y, wide, 3, stride=stride, groups=wide)
    y = _normalised(b, y, width, 1, active=False)
    return b.add(x, y) if b.shape(x) == b.shape(y) else y


def _regnet_block(b: Builder, x: int, width: int, group: int, stride: int) -> int:
    y = _normalised(b, _normalised(b, x, width, 1), width, 3, stride=stride, groups=max(width // group, 1))
    y = _normalised(b, y, width, 1, active=False)
    if b.shape(x) != b.shape(y):
        x = _normalised(b, x, width, 1, stride=stride, active=False)
    return b.unary("relu", b.add(x, y))


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
