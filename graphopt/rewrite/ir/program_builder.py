"""`ProgramBuilder` writes a program op by op, with random weights (`RandomWeights`).

Random weights are of sensible scale, and made when they are asked for: signals neither vanish nor grow with depth.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import Operation, Shape

Role = Literal["matrix", "kernel", "shift", "scale", "variance"]


@dataclass(frozen=True)
class RandomWeights(Mapping[str, NDArray[Any]]):
    """Weights by name. The same seed and name give the same array each time; nothing is kept.

    made: (shape, element type, role, gain) per name. kept: arrays that stay as they are.
    """

    seed: int
    made: Mapping[str, tuple[tuple[int, ...], str, Role, float]]
    kept: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.made:
            return self.kept[name]
        shape, dtype, role, gain = self.made[name]
        stream = int.from_bytes(sha256(name.encode()).digest()[:8], "big")
        drawn = drawn_as(np.random.default_rng([self.seed, stream]), shape, role)
        drawn *= gain
        return drawn.astype(dtype, copy=False)

    def __iter__(self) -> Iterator[str]:
        yield from self.made
        yield from (name for name in self.kept if name not in self.made)

    def __len__(self) -> int:
        return len(self.made.keys() | self.kept.keys())


def with_random_weights(program: Program, seed: int) -> Program:
    """The same program with random floating-point weights; integer weights stay, since they may be indices."""
    return replace(program, weights=RandomWeights(seed, drawable_weights(program), program.weights))


def drawable_weights(program: Program) -> dict[str, tuple[tuple[int, ...], str, Role, float]]:
    """`RandomWeights.made` of its floating-point weights."""
    roles = roles_of(program)
    operations = (program.terms.operation[term] for term in program.live())
    weights = [o.params for o in operations if o.name == "weight" and o.params[2] in ("float16", "float32", "float64")]
    return {name: (shape, dtype, roles.get(name, default_role(shape)), 1.0) for name, shape, dtype in weights}


def default_role(shape: tuple[int, ...]) -> Role:
    """The usual role of a weight of this shape."""
    if len(shape) >= 2 and prod(shape) > max(shape):
        return "kernel" if len(shape) == 4 else "matrix"
    return "shift"


def roles_of(program: Program) -> dict[str, Role]:
    """Roles of weights that batch norms, convolutions, products and scalings read."""
    terms, roles = program.terms, dict[str, Role]()
    at: dict[tuple[str, int], Role] = {
        ("batch_norm", 1): "scale", ("batch_norm", 2): "shift", ("batch_norm", 3): "shift",
        ("batch_norm", 4): "variance", ("mul", 0): "scale", ("mul", 1): "scale", ("conv", 1): "kernel",
        ("conv", 2): "shift", ("matmul", 1): "matrix",
    }  # fmt: skip
    for term in program.live():
        for position, used in enumerate(terms.inputs[term]):
            role = at.get((terms.operation[term].name, position))
            if role is not None and terms.operation[used].name == "weight":
                roles[terms.operation[used].params[0]] = role
    return roles


def drawn_as(rng: np.random.Generator, shape: tuple[int, ...], role: Role) -> NDArray[np.float32]:
    if role in ("scale", "variance"):
        return np.asarray(rng.random(shape, np.float32) + np.float32(0.5))
    drawn = np.asarray(rng.standard_normal(shape, np.float32))
    if role == "shift":
        drawn *= 0.1
        return drawn
    summed = prod(shape[1:]) if role == "kernel" else shape[-2] if len(shape) > 1 else shape[0]
    gain = sqrt(2.0) if role == "kernel" else 1.0  # convolutions are mostly followed by relu, which halves the power
    drawn *= gain / sqrt(max(summed, 1))
    return drawn


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
        """A new weight; role: its purpose, by default as its shape suggests."""
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
