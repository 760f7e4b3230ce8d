"""Graphs on which encoders are tried, and the machine that they are read for."""

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine

MACHINE = Machine(name="gpu", devices=(Device(vector_flops=1e13, bandwidth=1e12, launch=1e-6),))


def diamond(order: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Graph:
    """a -> b -> d, a -> c -> d, d -> e, and f apart; ops are added in `order`."""
    b = GraphBuilder("diamond")
    x = b.tensor((8, 4))
    t = {n: b.tensor((8, 4) if n != "e" else (8,)) for n in "abcdef"}
    steps = [("relu", [x], "a"), ("exp", [t["a"]], "b"), ("tanh", [t["a"]], "c"), ("add", [t["b"], t["c"]], "d"),
             ("sum", [t["d"]], "e"), ("neg", [x], "f")]  # fmt: skip
    for i in order:
        kind, inputs, out = steps[i]
        b.op(kind, inputs, [t[out]], name=out)
    b.output(t["e"])
    b.output(t["f"])
    return b.build()


def chain(length: int) -> Graph:
    b = GraphBuilder("chain")
    x = b.tensor((4,))
    for _ in range(length):
        y = b.tensor((4,))
        b.op("relu", [x], [y])
        x = y
    b.output(x)
    return b.build()


def loose(kinds: tuple[str, ...] = ("relu", "exp", "tanh", "neg")) -> Graph:
    """Ops that all read the same input: no edges."""
    b = GraphBuilder("loose")
    x = b.tensor((4,))
    for kind in kinds:
        b.output(y := b.tensor((4,)))
        b.op(kind, [x], [y])
    return b.build()


def star(users: int) -> Graph:
    """One op with many readers."""
    b = GraphBuilder("star")
    x, y = b.tensor((4,)), b.tensor((4,))
    b.op("relu", [x], [y])
    for _ in range(users):
        b.op("exp", [y], [b.tensor((4,))])
    return b.build()
