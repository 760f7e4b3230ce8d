"""Inception v3 (Szegedy et al., 2016), op by op as in the graph that Tensat publishes: convolutions with relu."""

from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program


class _Inception(ProgramBuilder):
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
