"""What a compiler decides by itself about a graph that it was asked about: which ops it stores, which have a choice.

Readers of compilers' own graphs (`graphopt.hardware.inductor`) note `stored` in the attributes of every op that the
compiler can as well compute where it is read.
"""

from typing import NamedTuple

import numpy as np

from graphopt.core.graph import Bool, Graph, once_per_graph

STORED = "stored"  # attribute of ops


class CompilerChoice(NamedTuple):
    """free: [N] ops that can be stored or inlined. inline: [N] those of them that the compiler inlines by default."""

    free: Bool
    inline: Bool


@once_per_graph
def compiler_choice(graph: Graph) -> CompilerChoice | None:
    """What the compiler does by default; None of graphs that no compiler was asked about."""
    said = [attributes.get(STORED) for attributes in graph.attributes]
    free = np.array([value is not None for value in said], np.bool_)
    if not free.any():
        return None
    return CompilerChoice(free, np.array([value is False for value in said], np.bool_))
