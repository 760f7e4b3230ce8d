"""What a compiler decides by itself about a graph that it was asked about: which ops it stores, which have a choice.

Readers of compilers' own graphs (`graphopt.inductor`) note `stored` in the attributes of every op that the compiler can
as well compute where it is read.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from graphopt.core.graph import Bool, Graph

STORED = "stored"  # attribute of ops


class CompilerChoice(NamedTuple):
    """free: [N] ops that can be stored or inlined. inline: [N] those of them that the compiler inlines by default."""

    free: Bool
    inline: Bool


_KNOWN: "WeakKeyDictionary[Graph, CompilerChoice | None]" = WeakKeyDictionary()


def compiler_choice(graph: Graph) -> CompilerChoice | None:
    """What the compiler does by default; None of graphs that no compiler was asked about."""
    if graph not in _KNOWN:
        _KNOWN[graph] = _read(graph)
    return _KNOWN[graph]


def _read(graph: Graph) -> CompilerChoice | None:
    said = [attributes.get(STORED) for attributes in graph.attributes]
    free = np.array([value is not None for value in said], np.bool_)
    if not free.any():
        return None
    return CompilerChoice(free, np.array([value is False for value in said], np.bool_))
