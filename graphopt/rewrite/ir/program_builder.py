"""`ProgramBuilder`: writes a program op by op, with random weights."""

from collections.abc import Sequence
from typing import Any

from graphopt.rewrite.ir.random_weights import RandomWeights, Role, default_role
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import Operation, Shape

Pads = tuple[int, int, int, int]
NO_PADS: Pads = (0, 0, 0, 0)


class ProgramBuilder:
    """Adds terms and names inputs and weights; every method returns the new term.

    >>> b = ProgramBuilder()
    >>> program = b.build(b.conv(b.input((1, 3, 8, 8)), 16, 3, activation="relu"))
    """

    def __init__(self, seed: int = 0) -> None:
        self.terms = Terms()
        self._seed = seed
        self._inputs: list[int] = []
        self._weights: dict[str, tuple[Shape, str, Role, float]] = {}

    def build(self, *outputs: int) -> Program:
        names = tuple(f"output{i}" for i in range(len(outputs)))
        return Program(self.terms, outputs, names, tuple(self._inputs), RandomWeights(self._seed, self._weights, {}))

    def input(self, shape: Shape, dtype: str = "float32") -> int:
        term = self.op("input", f"input{len(self._inputs)}", shape, dtype)
        self._inputs.append(term)
        return term

    def weight(self, *shape: int, gain: float = 1.0, role: Role | None = None) -> int:
        """A new weight; role: what it is for, by default what its shape suggests."""
        name = f"weight{len(self._weights)}"
        self._weights[name] = (shape, "float32", role or default_role(shape), gain)
        return self.op("weight", name, shape, "float32")

    def op(self, name: str, *params: Any, inputs: Sequence[int] = ()) -> int:
        return self.terms.add(Operation(name, params), tuple(inputs))

    def shape(self, x: int) -> Shape:
        return self.terms.shape(x)

    def matmul(self, a: int, b: int, activation: str = "none") -> int:
        return self.op("matmul", activation, inputs=(a, b))

    def linear(self, x: int, width: int, activation: str = "none", gain: float = 1.0) -> int:
        """x times a new weight with `width` columns; a gain of 1 keeps the size of the signal."""
        return self.matmul(x, self.weight(self.shape(x)[-1], width, gain=gain), activation)

    def conv(self, x: int, channels: int, kernel: int | tuple[int, int], *, stride: int = 1, groups: int = 1,
             same: bool = True, activation: str = "none", bias: bool = False) -> int:  # fmt: skip
        """A convolution with new kernels; `same` pads so that a stride of 1 keeps the size, as TensorFlow does."""
        window = (kernel, kernel) if isinstance(kernel, int) else kernel
        weight = self.weight(channels, self.shape(x)[1] // groups, *window)
        inputs = [x, weight, self.weight(channels)] if bias else [x, weight]
        return self.op("conv", (stride, stride), self._pads(x, window, stride, same), activation, inputs=inputs)

    def pool(self, kind: str, x: int, kernel: int, stride: int, *, same: bool = True) -> int:
        """`max` or `avg` over square windows."""
        window = (kernel, kernel)
        return self.op(f"pool_{kind}", window, (stride, stride), self._pads(x, window, stride, same), inputs=[x])

    def global_average(self, x: int) -> int:
        return self.op("pool_avg", self.shape(x)[2:], (1, 1), NO_PADS, inputs=[x])

    def add(self, a: int, b: int) -> int:
        return self.op("add", inputs=(a, b))

    def mul(self, a: int, b: int) -> int:
        return self.op("mul", inputs=(a, b))

    def batch_norm(self, x: int) -> int:
        """Over the channels of [B, C, H, W], with new weights."""
        roles: tuple[Role, ...] = ("scale", "shift", "shift", "variance")
        return self.op("batch_norm", 1e-5, inputs=[x, *(self.weight(self.shape(x)[1], role=role) for role in roles)])

    def layer_norm(self, x: int) -> int:
        """Over the last axis, with new weights."""
        size = self.shape(x)[-1]
        return self.op("layer_norm", 1e-5, inputs=[x, self.weight(size, role="scale"), self.weight(size)])

    def unary(self, name: str, x: int) -> int:
        """relu, tanh or sigmoid."""
        return self.op(name, inputs=[x])

    def concat(self, axis: int, *parts: int) -> int:
        return self.op("concat", axis, inputs=parts)

    def transpose(self, x: int, *permutation: int) -> int:
        return self.op("transpose", permutation, inputs=[x])

    def reshape(self, x: int, *shape: int) -> int:
        return self.op("reshape", shape, inputs=[x])

    def _pads(self, x: int, window: tuple[int, int], stride: int, same: bool) -> Pads:
        if not same:
            return NO_PADS
        (top, bottom), (left, right) = (same_pads(n, k, stride) for n, k in zip(self.shape(x)[2:], window))
        return top, left, bottom, right


def same_pads(size: int, window: int, stride: int, lower: bool = False) -> tuple[int, int]:
    """Padding before and after, so that there are ceil(size / stride) windows; the odd one is last, or first."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def ceiled_pads(size: Sequence[int], windows: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
                pads: Pads) -> Pads:  # fmt: skip
    """Padding below and to the right that lets so many windows fit (`ceil_mode`): it is no maximum, and means do not
    count it."""
    bottom, right = (max((windows[i] - 1) * strides[i] + kernel[i] - size[i] - pads[i], pads[2 + i]) for i in (0, 1))
    return pads[0], pads[1], bottom, right
