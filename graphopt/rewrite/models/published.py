"""Networks as programs, one function each.

The ten models of X-RLflow and Tensat are op by op as in the graphs that TASO and Tensat publish: no biases, softmax or
normalisation, and batch 1. Attention without softmax is cubic in its input, so that nothing bounds it. Every block
therefore adds its result to its input with a small gain of the random weights; the sizes of the published graphs do not
change by that.

ResNet-18, of X-RLflow's table 2, is made like them. ShuffleNet, MobileNetV2, DenseNet, RegNetX, MLP-Mixer, T5, an LSTM
and a mixture of experts are of no paper on rewriting. They are whole and normalised as published but for the exceptions
that each one states.
"""

from math import sqrt

from graphopt.rewrite.ir.program_builder import ProgramBuilder as Builder
from graphopt.rewrite.ir.terms import Program


def squeezenet(size: int = 224, channels: int = 64, classes: int = 1000) -> Program:
    """SqueezeNet 1.1 (Iandola et al., 2016). `channels` of the first convolution; all others are in proportion."""
    b, unit = Builder(), channels // 4
    x = b.unary("relu", b.conv(b.input((1, 3, size, size)), channels, 3, stride=2, same=False))
    for squeezed in ((1, 1), (2, 2), (3, 3, 4, 4)):
        x = b.pool("max", x, 3, 2, same=False)
        for width in squeezed:
            x = b.unary("relu", b.conv(x, width * unit, 1))  # squeezed, then expanded by 1x1 and 3x3 side by side
            x = b.concat(1, *(b.unary("relu", b.conv(x, 4 * width * unit, kernel)) for kernel in (1, 3)))
    x = b.unary("relu", b.conv(x, classes, 1))
    return b.build(b.reshape(b.pool("avg", x, b.shape(x)[2], b.shape(x)[2], same=False), 1, classes))


def vgg19(size: int = 224, channels: int = 64, width: int = 4096, classes: int = 1000) -> Program:
    """VGG-19 (Simonyan and Zisserman, 2015). `channels` of the first stage, `width` of the dense layers."""
    b = Builder()
    x = b.input((1, 3, size, size))
    for stage, repeats in zip((1, 2, 4, 8, 8), (2, 2, 4, 4, 4), strict=True):
        for _ in range(repeats):
            x = b.unary("relu", b.conv(x, stage * channels, 3))
        x = b.pool("max", x, 2, 2, same=False)
    _, depth, height, breadth = b.shape(x)
    x = b.reshape(x, 1, depth * height * breadth)
    for _ in range(2):
        x = b.unary("relu", b.linear(x, width))
    return b.build(b.linear(x, classes))


def resnext50(size: int = 224, channels: int = 64, groups: int = 32) -> Program:
    """ResNeXt-50 (Xie et al., 2017) up to its last block: 86 ops. `channels` of the first convolution."""
    b = Builder()
    x = b.conv(b.input((1, 3, size, size)), channels, 7, stride=2, activation="relu")
    x = b.pool("max", x, 3, 2)
    for stage, repeats in enumerate((3, 4, 6, 3)):
        for block in range(repeats):
            width, stride = channels * 2 ** (stage + 1), 2 if stage > 0 and block == 0 else 1
            y = b.conv(x, width, 1, activation="relu")
            y = b.conv(y, width, 3, stride=stride, groups=groups, activation="relu")
            y = b.conv(y, 2 * width, 1)
            if stride > 1 or b.shape(x)[1] != 2 * width:
                x = b.conv(x, 2 * width, 1, stride=stride, activation="relu")
            x = b.unary("relu", b.add(x, y))
    return b.build(x)


def resnet18(size: int = 224, channels: int = 64) -> Program:
    """ResNet-18 (He et al., 2016) up to its last block: 37 ops. `channels` of the first convolution."""
    b = Builder()
    x = b.conv(b.input((1, 3, size, size)), channels, 7, stride=2, activation="relu")
    x = b.pool("max", x, 3, 2)
    for stage in range(4):
        for block in range(2):
            width, stride = channels * 2**stage, 2 if stage > 0 and block == 0 else 1
            y = b.conv(b.conv(x, width, 3, stride=stride, activation="relu"), width, 3)
            x = b.unary("relu", b.add(b.conv(x, width, 1, stride=stride) if stride > 1 else x, y))
    return b.build(x)


class _Inception(Builder):
    """Blocks A to E of the paper; concatenations are of two, but for the last block's, as published."""

    def __init__(self, divisor: int) -> None:
        super().__init__()
        self.divisor = divisor

    def relu(self, x: int, channels: int, *kernels: int | tuple[int, int], stride: int = 1, same: bool = True) -> int:
        """Convolutions of these kernels one after another, all with so many channels."""
        for kernel in kernels:
            x = self.conv(x, channels // self.divisor, kernel, stride=stride, same=same, activation="relu")
        return x

    def pairs(self, a: int, b: int, c: int, d: int) -> int:
        return self.concat(1, self.concat(1, a, b), self.concat(1, c, d))

    def a(self, x: int, pooled: int) -> int:
        five = self.relu(self.relu(x, 48, 1), 64, 5)
        three = self.relu(self.relu(x, 64, 1), 96, 3, 3)
        return self.pairs(self.relu(x, 64, 1), five, three, self.relu(self.pool("avg", x, 3, 1), pooled, 1))

    def b(self, x: int) -> int:
        """Halves the size."""
        three = self.relu(x, 384, 3, stride=2, same=False)
        twice = self.relu(self.relu(self.relu(x, 64, 1), 96, 3), 96, 3, stride=2, same=False)
        return self.concat(1, self.pool("avg", x, 3, 2, same=False), self.concat(1, three, twice))

    def c(self, x: int, width: int) -> int:
        row, column = (1, 7), (7, 1)
        short = self.relu(self.relu(self.relu(x, width, 1), width, row), 192, column)
        long = self.relu(self.relu(self.relu(x, width, 1), width, column, row, column), 192, row)
        return self.pairs(self.relu(x, 192, 1), short, long, self.relu(self.pool("avg", x, 3, 1), 192, 1))

    def d(self, x: int) -> int:
        """Halves the size."""
        three = self.relu(self.relu(x, 192, 1), 320, 3, stride=2, same=False)
        seven = self.relu(self.relu(x, 192, 1, (1, 7), (7, 1)), 192, 3, stride=2, same=False)
        return self.concat(1, three, seven, self.pool("max", x, 3, 2, same=False))

    def e(self, x: int) -> int:
        row, column = (1, 3), (3, 1)
        short, long = self.relu(x, 384, 1), self.relu(self.relu(x, 448, 1), 384, 3)
        wide = [self.concat(1, self.relu(y, 384, row), self.relu(y, 384, column)) for y in (short, long)]
        return self.concat(1, self.relu(x, 320, 1), *wide, self.relu(self.pool("max", x, 3, 1), 192, 1))


def inception_v3(size: int = 299, divisor: int = 1) -> Program:
    """Up to the pooling over the whole image. `divisor` of all numbers of channels (16 at most), for small ones."""
    b = _Inception(divisor)
    x = b.relu(b.input((1, 3, size, size)), 32, 3, stride=2, same=False)
    x = b.relu(b.relu(x, 32, 3, same=False), 64, 3)
    x = b.pool("max", x, 3, 2, same=False)
    x = b.relu(b.relu(x, 80, 1, same=False), 192, 3, same=False)
    x = b.pool("max", x, 3, 2, same=False)
    for pooled in (32, 64, 64):
        x = b.a(x, pooled)
    x = b.b(x)
    for width in (128, 160, 160, 192):
        x = b.c(x, width)
    x = b.e(b.e(b.d(x)))
    return b.build(b.global_average(x))


def nasrnn(steps: int = 5, width: int = 512) -> Program:
    """The recurrent cell found by Zoph and Le (2017), unrolled; as in TASO, every step has weights of its own."""
    b = Builder()
    inputs = [b.input((1, width)) for _ in range(steps)]
    state = b.input((1, width))
    for x in inputs:  # eight sums of two products, combined as the search found it
        t = [b.add(b.linear(x, width), b.linear(state, width)) for _ in range(8)]
        first = b.add(b.unary("relu", t[0]), b.unary("sigmoid", t[3]))
        second = b.add(b.unary("sigmoid", t[1]), b.unary("tanh", t[2]))
        third = b.mul(b.unary("sigmoid", t[4]), b.unary("tanh", t[5]))
        fourth = b.mul(b.unary("sigmoid", t[6]), b.unary("relu", t[7]))
        fifth = b.add(b.unary("sigmoid", second), b.unary("tanh", third))
        sixth = b.mul(b.unary("tanh", first), b.unary("tanh", fourth))
        state = b.unary("tanh", b.mul(b.unary("tanh", fifth), b.unary("tanh", sixth)))
    return b.build(state)


def nasnet_a(size: int = 224, channels: int = 128, cells: int = 5) -> Program:
    """NASNet-A (Zoph et al., 2018): three times so many normal cells and a reduction. `channels` of the first ones."""
    b = Builder()
    x = b.conv(b.input((1, 3, size, size)), channels // 2, 7, stride=2, activation="relu")
    x = b.pool("max", x, 3, 2)
    for stage in range(3):
        previous, current = x, x
        for _ in range(cells):
            previous, current = current, _normal_cell(b, previous, current, channels << stage)
        x = _reduction_cell(b, previous, current, channels << (stage + 1))
    return b.build(x)


def _fitted(b: Builder, x: int, like: int) -> int:
    """x with the channels and the size of `like`."""
    if b.shape(x)[2] == b.shape(like)[2]:
        return b.conv(x, b.shape(like)[1], 1, activation="relu")
    return b.conv(x, b.shape(like)[1], 3, stride=2, activation="relu")


def _separable(b: Builder, x: int, kernel: int, stride: int = 1) -> int:
    """One kernel per channel, then a mixture of the channels."""
    channels = b.shape(x)[1]
    return b.conv(b.conv(x, channels, kernel, stride=stride, groups=channels), channels, 1)


def _normal_cell(b: Builder, previous: int, current: int, channels: int) -> int:
    current = b.conv(current, channels, 1, activation="relu")
    previous = _fitted(b, previous, current)
    sums = (
        b.add(_separable(b, current, 3), current),
        b.add(_separable(b, previous, 3), _separable(b, current, 5)),
        b.add(b.pool("avg", current, 3, 1), previous),
        b.add(b.pool("avg", previous, 3, 1), b.pool("avg", previous, 3, 1)),
        b.add(_separable(b, previous, 5), _separable(b, previous, 3)),
    )
    return b.concat(1, *sums)


def _reduction_cell(b: Builder, previous: int, current: int, channels: int) -> int:
    current = b.conv(current, channels, 1, activation="relu")
    previous = _fitted(b, previous, current)
    first = b.add(_separable(b, previous, 7, 2), _separable(b, current, 5, 2))
    second = b.add(b.pool("max", current, 3, 2), _separable(b, previous, 7, 2))
    third = b.add(b.pool("avg", current, 3, 2), _separable(b, previous, 5, 2))
    fourth = b.add(b.pool("max", current, 3, 2), _separable(b, first, 3))
    fifth = b.add(b.pool("avg", first, 3, 1), second)
    return b.concat(1, first, second, third, fourth, fifth)


_GAIN = 0.1  # of a block's term, relative to its input


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


def _attention(b: Builder, x: int, heads: int, read: int | None = None) -> int:
    """[seq, width] q k^T v of every head, without scale and the last product. read: the attended sequence, by softmax;
    None: x itself, without."""
    seq, width = b.shape(x)
    if width % heads:
        raise ValueError(f"a width of {width} does not make {heads} heads")
    sources = (x, x, x) if read is None else (x, read, read)
    q, k, v = (b.reshape(b.linear(of, width), b.shape(of)[0], heads, width // heads) for of in sources)
    logits = b.matmul(b.transpose(q, 1, 0, 2), b.transpose(k, 1, 2, 0))
    weights = logits if read is None else b.op("softmax", 2, inputs=[logits])
    return b.reshape(b.transpose(b.matmul(weights, b.transpose(v, 1, 0, 2)), 1, 0, 2), seq, width)


def _attended(b: Builder, x: int, heads: int) -> int:
    seq, width = b.shape(x)
    return b.add(x, b.linear(_attention(b, x, heads), width, gain=_attention_gain(seq, width, heads)))


def _attention_gain(seq: int, width: int, heads: int) -> float:
    """Takes the growth of the sums over a head and over the sequence back."""
    return _GAIN / sqrt(seq * (width // heads))


def _feed_forward(b: Builder, x: int, hidden: int) -> int:
    return b.add(x, b.linear(b.linear(x, hidden, "relu"), b.shape(x)[-1], gain=_GAIN))


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
            wide = b.shape(x)[1] * expansion
            y = _normalised(b, x, wide, 1) if expansion > 1 else x
            y = _normalised(b, y, wide, 3, stride=stride if block == 0 else 1, groups=wide)
            y = _normalised(b, y, max(width * channels // 32, 1), 1, active=False)
            x = b.add(x, y) if b.shape(x) == b.shape(y) else y
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
            wide, stride = factor * width, 2 if block == 0 else 1
            y = _normalised(b, _normalised(b, x, wide, 1), wide, 3, stride=stride, groups=max(wide // group, 1))
            y = _normalised(b, y, wide, 1, active=False)
            if b.shape(x) != b.shape(y):
                x = _normalised(b, x, wide, 1, stride=stride, active=False)
            x = b.unary("relu", b.add(x, y))
    return b.build(b.global_average(x))


def _normalised(b: Builder, x: int, channels: int, kernel: int, *, stride: int = 1, groups: int = 1,
                active: bool = True) -> int:  # fmt: skip
    """A convolution, its batch norm and, if `active`, a relu."""
    x = b.batch_norm(b.conv(x, channels, kernel, stride=stride, groups=groups))
    return b.unary("relu", x) if active else x


def _shuffle_unit(b: Builder, x: int, width: int, groups: int, stride: int) -> int:
    """Two grouped 1x1 convolutions around a shuffle of channels and a depthwise one; joined where the size halves."""
    made = width if stride == 1 else width - b.shape(x)[1]
    y = _normalised(b, x, width // 4, 1, groups=groups)
    batch, channels, *sides = b.shape(y)
    y = b.transpose(b.reshape(y, batch, groups, channels // groups, *sides), 0, 2, 1, 3, 4)
    y = b.reshape(y, batch, channels, *sides)
    y = _normalised(b, y, width // 4, 3, stride=stride, groups=width // 4, active=False)
    y = _normalised(b, y, made, 1, groups=groups, active=False)
    if stride == 1:
        return b.unary("relu", b.add(x, y))
    return b.unary("relu", b.concat(1, b.pool("avg", x, 3, 2), y))


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
        normed = b.layer_norm(x)
        x = b.add(x, b.linear(_attention(b, normed, heads, normed), width))
        x = b.add(x, b.linear(_attention(b, b.layer_norm(x), heads, encoded), width))
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
