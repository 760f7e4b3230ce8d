"""Classes of alike ops (Weisfeiler-Leman). Blocks of a network repeat, so one evaluation that changes an op everywhere
tells more than one that changes it once.

Shape legend: N ops.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from graphopt.core.colours import colours, largest_result
from graphopt.core.graph import I64, Graph
from graphopt.core.plan import Decision
from graphopt.problems.assignment import AssignProblem
from graphopt.search.walks.moves import Walk, scores


def alike(graph: Graph, free: NDArray[np.bool_], depth: int) -> Iterator[list[I64]]:
    """For 0 .. depth hops: the classes of at least two ops that are alike so far, each ascending, the largest first.

    Alike are free ops (free [N]) of one colour: the same operator and elements of the largest result, and from one hop
    on alike inputs and readers. A class that a smaller number of hops has given already is left out.
    """
    given: set[tuple[int, ...]] = set()
    ops = np.flatnonzero(free)
    for colour in islice(colours(graph, graph.kind, largest_result(graph), free), depth + 1):
        by_colour = ops[np.argsort(colour[ops], kind="stable")]
        parts = np.split(by_colour, np.flatnonzero(np.diff(colour[by_colour])) + 1)
        classes = [part for part in parts if len(part) > 1 and tuple(part.tolist()) not in given]
        given.update(tuple(part.tolist()) for part in classes)
        yield sorted(classes, key=lambda part: (-len(part), int(part[0])))


def try_decision(problem: AssignProblem, walk: Walk, candidate: Decision) -> bool:
    """Prices a decision that is another one and keeps it if it is better; whether it was."""
    if (candidate == walk.decision).all():
        return False
    score = float(scores(problem, candidate[None])[0])
    if score >= walk.score:
        return False
    walk.move_to(candidate, score)
    return True
