"""All small programs over a few inputs, and which of them are equal: TASO's generator (SOSP 2019, section 2).

A world is a handful of inputs of fixed small shapes and the operations that may be applied. Programs are enumerated by
size (operations, shared ones counted again). Each is computed on one draw of random integers; the exact result is its
fingerprint. Of programs with one fingerprint the first, a smallest one, goes on as the representative; a program built
later from any other would equal one built from it, by that equality. So equalities are listed once, not in every
context: TASO's pruning of common subgraphs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Operation, Shape, ShapeError


@dataclass(frozen=True)
class Move:
    """An operation of so many inputs, or a part of a split; used in programs of at most `largest` operations."""

    arity: int
    operation: Operation
    part: int | None = None
    largest: int = 3


@dataclass(frozen=True)
class World:
    """Inputs by name and shape, moves, the size of the largest programs, and which inputs are kernels of convs: a
    result of kernels alone is a kernel, and nothing else."""

    name: str
    leaves: dict[str, Shape]
    moves: tuple[Move, ...]
    depth: int = 3
    kernels: frozenset[str] = frozenset()


@dataclass
class Enumerated:
    """Representatives of all values found in a world."""

    terms: Terms
    values: dict[int, reference.Array]
    by_size: list[list[int]]
    kernels: set[int]
    first: dict[bytes, int] = field(default_factory=dict)

    def representative(self, value: reference.Array) -> int | None:
        return self.first.get(fingerprint(value))


def fingerprint(value: reference.Array) -> bytes:
    return str(value.shape).encode() + np.ascontiguousarray(value).tobytes()


def start(world: World, rng: np.random.Generator) -> Enumerated:
    """The inputs alone."""
    terms = Terms()
    leaves = [terms.add(Operation("input", (name, shape, "float32"))) for name, shape in world.leaves.items()]
    values = {leaf: rng.integers(-4, 5, terms.shape(leaf)) for leaf in leaves}
    kernels = {leaf for leaf, name in zip(leaves, world.leaves) if name in world.kernels}
    return Enumerated(terms, values, [leaves], kernels, {fingerprint(v): leaf for leaf, v in values.items()})


def grow(world: World, known: Enumerated) -> Iterator[tuple[int, int]]:
    """Adds the programs of the next size; pairs of a program and an earlier one of equal value."""
    size = len(known.by_size)
    known.by_size.append([])
    for move in world.moves:
        if size <= move.largest:
            for inputs in _inputs(move, size, known):
                equal = _made(move, inputs, known)
                if equal is not None:
                    yield equal


def _inputs(move: Move, size: int, known: Enumerated) -> Iterator[tuple[int, ...]]:
    if move.arity == 1:
        yield from ((one,) for one in known.by_size[size - 1])
        return
    commutes = move.operation.name in ("add", "mul") and size > 1
    for left in range(size):
        for a in known.by_size[left]:
            for b in known.by_size[size - 1 - left]:
                if not commutes or a <= b:
                    yield a, b


def _made(move: Move, inputs: tuple[int, ...], known: Enumerated) -> tuple[int, int] | None:
    """The program that a move makes, with an earlier one of equal value; None where it is new or does not exist."""
    terms, operation = known.terms, move.operation
    roles = [i in known.kernels for i in inputs]
    if len(set(roles)) > 1 if operation.name != "conv" else roles != [False, True]:
        return None
    try:
        if move.part is None:
            term = terms.add(operation, inputs)
        else:
            operation = halves(terms, operation.params[0], inputs[0])
            term = terms.add(Operation("item", (move.part,)), (terms.add(operation, inputs),))
    except ShapeError:
        return None
    if term in known.values:
        return None
    result = reference.apply(operation, [known.values[i] for i in inputs])
    value = result if move.part is None else result[move.part]
    earlier = known.first.setdefault(fingerprint(value), term)
    if earlier != term:
        return term, earlier
    known.values[term] = value
    if all(roles):
        known.kernels.add(term)
    known.by_size[-1].append(term)
    return None


def halves(terms: Terms, axis: int, of: int) -> Operation:
    """The split of a tensor in the middle of an axis. Raises ShapeError where there is none."""
    shape = terms.shape(of)
    if axis >= len(shape) or shape[axis] % 2:
        raise ShapeError("no halves")
    return Operation("split", (axis, (shape[axis] // 2,) * 2))


def parts(axis: int, largest: int = 3) -> tuple[Move, Move]:
    return tuple(Move(1, Operation("split", (axis,)), part, largest) for part in (0, 1))  # type: ignore[return-value]


def moves(arity: int, largest: int, *operations: Operation) -> tuple[Move, ...]:
    return tuple(Move(arity, operation, None, largest) for operation in operations)


def conv(stride: int, pad: int, activation: str = "none") -> Operation:
    return Operation("conv", ((stride, stride), (pad,) * 4, activation))


def pool(name: str) -> Operation:
    return Operation(name, ((3, 3), (1, 1), (1, 1, 1, 1)))


RELU, TANH, SIGMOID, ADD, MUL = map(Operation, ("relu", "tanh", "sigmoid", "add", "mul"))
MATMUL, TURN = Operation("matmul", ("none",)), Operation("transpose", ((1, 0),))
JOIN = tuple(Operation("concat", (axis,)) for axis in (0, 1))
MATRIX, IMAGE, KERNEL = (4, 4), (2, 4, 4, 4), (4, 4, 3, 3)

WORLDS = (
    World("matrices", dict.fromkeys(("x", "y", "z", "u"), MATRIX),
          (*moves(1, 3, RELU), *moves(1, 2, TANH, SIGMOID), *moves(2, 3, ADD, MUL, MATMUL, *JOIN),
           *moves(2, 1, *(Operation("matmul", (f,)) for f in ("relu", "tanh", "sigmoid"))))),
    World("activations", dict.fromkeys(("x", "y"), MATRIX),
          (*moves(1, 3, RELU, TANH, SIGMOID, TURN), *moves(2, 3, ADD, MUL, MATMUL, *JOIN),
           *moves(2, 2, *(Operation("matmul", (f,)) for f in ("relu", "tanh", "sigmoid")))), 2),
    World("parts", dict.fromkeys(("x", "y"), MATRIX),
          (*parts(0), *parts(1), *moves(1, 3, RELU, TANH, SIGMOID), *moves(2, 3, ADD, MUL, MATMUL, *JOIN))),
    World("images", {"x": IMAGE, "y": IMAGE, "v": KERNEL, "w": KERNEL},
          (*moves(2, 3, ADD, conv(1, 1), *JOIN), *moves(1, 2, RELU, TANH, SIGMOID, pool("pool_max"), pool("pool_avg")),
           *moves(2, 2, conv(1, 1, "relu"), conv(1, 1, "tanh"), conv(1, 1, "sigmoid"), conv(2, 1))),
          3, frozenset("vw")),
    World("windows", {"x": IMAGE, "y": IMAGE},
          (*moves(1, 3, RELU, pool("pool_max"), pool("pool_avg")), *moves(2, 3, ADD, *JOIN), *parts(0), *parts(1))),
    World("kernels", {"x": IMAGE, "v": (4, 4, 1, 1), "w": (4, 4, 1, 1)},
          (*moves(2, 2, conv(1, 0), conv(1, 1), conv(2, 0), conv(2, 1)), *moves(1, 3, Operation("enlarge", ((3, 3),))),
           *moves(2, 2, ADD, *JOIN)), 3, frozenset("vw")),
    World("views", {"x": (2, 6), "y": (2, 6)},
          (*moves(1, 3, *(Operation("reshape", (shape,)) for shape in ((12,), (2, 6), (3, 4)))), *moves(1, 3, RELU),
           *moves(1, 2, TANH, SIGMOID), *moves(2, 3, ADD, MUL))),
)  # fmt: skip
