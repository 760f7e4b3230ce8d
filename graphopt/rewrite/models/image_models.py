"""SqueezeNet 1.1, VGG-19 and ResNeXt-50, op by op as in the graphs that TASO and Tensat publish: without biases."""

from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program

Builder = ProgramBuilder


def squeezenet(size: int = 224, channels: int = 64, classes: int = 1000) -> Program:
    """SqueezeNet 1.1 (Iandola et al., 2016). `channels` of the first convolution; all others are in proportion."""
    b, unit = Builder(), channels // 4
    x = b.unary("relu", b.conv(b.input((1, 3, size, size)), channels, 3, stride=2, same=False))
    for squeezed in ((1, 1), (2, 2), (3, 3, 4, 4)):
        x = b.pool("max", x, 3, 2, same=False)
        for width in squeezed:
            x = _fire(b, x, width * unit)
    x = b.unary("relu", b.conv(x, classes, 1))
    return b.build(b.reshape(b.pool("avg", x, b.shape(x)[2], b.shape(x)[2], same=False), 1, classes))


def _fire(b: Builder, x: int, width: int) -> int:
    """A squeeze to `width` channels, then 1x1 and 3x3 expansions side by side."""
    x = b.unary("relu", b.conv(x, width, 1))
    return b.concat(1, *(b.unary("relu", b.conv(x, 4 * width, kernel)) for kernel in (1, 3)))


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
            x = _resnext_block(b, x, channels * 2 ** (stage + 1), groups, 2 if stage > 0 and block == 0 else 1)
    return b.build(x)


def _resnext_block(b: Builder, x: int, width: int, groups: int, stride: int) -> int:
    """Three convolutions beside a shortcut, which is a convolution where the shape changes."""
    y = b.conv(x, width, 1, activation="relu")
    y = b.conv(y, width, 3, stride=stride, groups=groups, activation="relu")
    y = b.conv(y, 2 * width, 1)
    if stride > 1 or b.shape(x)[1] != 2 * width:
        x = b.conv(x, 2 * width, 1, stride=stride, activation="relu")
    return b.unary("relu", b.add(x, y))
