"""An instance as the smallest pairwise model that still has an optimum of it, within its memory."""

from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from graphopt.core.auto_sharding.strategies import StrategyTables
from graphopt.core.graph import F64
from graphopt.sharding.contracting import consistent, contracted, without_dominated
from graphopt.sharding.occupancy import Occupancy, occupancy, roomy
from graphopt.sharding.pairwise import Empty, Pairwise, pairwise

ROUNDS = 12
WORTH = 0.99  # of the states before: a round that leaves more is the last


_KNOWN: "WeakKeyDictionary[StrategyTables, Pairwise]" = WeakKeyDictionary()


def reduced(tables: StrategyTables) -> Pairwise:
    """Without states that nothing goes with, that no memory is left for, or that others dominate, and without variables
    that others determine. Where no assignment is possible, impossible entries cost what they say. Found out once."""
    if tables not in _KNOWN:
        _KNOWN[tables] = _reduced(tables)
    return _KNOWN[tables]


def _reduced(tables: StrategyTables) -> Pairwise:
    try:
        return closed(pairwise(tables, np.inf), tables)
    except Empty:
        pass
    try:
        return closed(pairwise(tables, None), tables)
    except Empty:  # not even the least fits into the memory
        return pairwise(tables, None)


def closed(model: Pairwise, tables: StrategyTables) -> Pairwise:
    """A model after all reductions. Raises Empty where nothing is possible."""
    for _ in range(ROUNDS):
        before = len(model.unary)
        model = within_memory(model, occupancy(model, tables))
        model = without_dominated(contracted(model, consistent(model)), tables)
        if len(model.unary) > WORTH * before:
            return model
    return model


def within_memory(model: Pairwise, memory: Occupancy) -> Pairwise:
    """Without states that do not fit beside the least of all others."""
    return replace(model, unary=np.where(roomy(model, memory), model.unary, np.inf))


def without_dear(model: Pairwise, unary: F64, table: F64, gap: float) -> Pairwise:
    """Without what cannot be part of an answer that is better than the best known. unary, table: an equal model whose
    least parts sum to a bound; gap: how far the best known is above that."""
    least = np.minimum.reduceat(unary, model.ptr[:-1])
    dear: NDArray[np.bool_] = unary - np.repeat(least, model.counts) >= gap
    new = np.where(dear, np.inf, model.unary)
    if not len(table):
        return replace(model, unary=new)
    least = np.minimum.reduceat(table, model.table_ptr[:-1])
    dear = table - np.repeat(least, np.diff(model.table_ptr)) >= gap
    return replace(model, unary=new, table=np.where(dear, np.inf, model.table))
