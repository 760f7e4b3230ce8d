"""NasRNN and NASNet-A, op by op as in TASO's builders."""

from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program

Builder = ProgramBuilder


def nasrnn(steps: int = 5, width: int = 512) -> Program:
    """The recurrent cell found by Zoph and Le (2017), unrolled; as in TASO, every step has weights of its own."""
    b = Builder()
    inputs = [b.input((1, width)) for _ in range(steps)]
    state = b.input((1, width))
    for x in inputs:
        state = _nas_node(b, state, x)
    return b.build(state)


def _nas_node(b: Builder, state: int, x: int) -> int:
    """Eight sums of two products, combined as the search found it."""
    width = b.shape(x)[1]
    t = [b.add(b.linear(x, width), b.linear(state, width)) for _ in range(8)]
    first = b.add(b.unary("relu", t[0]), b.unary("sigmoid", t[3]))
    second = b.add(b.unary("sigmoid", t[1]), b.unary("tanh", t[2]))
    third = b.mul(b.unary("sigmoid", t[4]), b.unary("tanh", t[5]))
    fourth = b.mul(b.unary("sigmoid", t[6]), b.unary("relu", t[7]))
    fifth = b.add(b.unary("sigmoid", second), b.unary("tanh", third))
    sixth = b.mul(b.unary("tanh", first), b.unary("tanh", fourth))
    return b.unary("tanh", b.mul(b.unary("tanh", fifth), b.unary("tanh", sixth)))


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
