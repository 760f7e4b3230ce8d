"""Random weights of sensible scale, made when they are asked for: signals neither vanish nor grow with depth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.rewrite.ir.terms import Program

Role = Literal["matrix", "kernel", "shift", "scale", "variance"]


@dataclass(frozen=True)
class RandomWeights(Mapping[str, NDArray[Any]]):
    """Weights by name. The same seed and name give the same array each time; nothing is kept.

    made: (shape, element type, role, gain) per name. kept: arrays that stay what they are.
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
    roles = roles_of(program)
    made = {name: (shape, dtype, roles.get(name, default_role(shape)), 1.0) for name, shape, dtype in _weights(program)}
    return replace(program, weights=RandomWeights(seed, made, program.weights))


def default_role(shape: tuple[int, ...]) -> Role:
    """What a weight of this shape mostly is."""
    if len(shape) >= 2 and prod(shape) > max(shape):
        return "kernel" if len(shape) == 4 else "matrix"
    return "shift"


def _weights(program: Program) -> list[tuple[str, tuple[int, ...], str]]:
    operations = (program.terms.operation[term] for term in program.live())
    return [o.params for o in operations if o.name == "weight" and o.params[2] in ("float16", "float32", "float64")]


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
