"""The default answer: the least node costs that edges and memory allow."""

from functools import lru_cache

import numpy as np

from graphopt.contests.sharding.memory_profile import MemoryProfile, memory_profile
from graphopt.contests.sharding.pairwise import Pairwise
from graphopt.contests.sharding.reducing import reduced
from graphopt.contests.sharding.region_walk import BROKEN, RegionWalk
from graphopt.contests.sharding.trws import Passing
from graphopt.core.auto_sharding.strategies import IMPOSSIBLE, StrategyTables
from graphopt.core.graph import F64, I64

SWEEPS = 3
MENDS, REGIONS, ENTRIES = 40, 100, 1024  # attempts to mend labels, regions of each, and their largest tables
RAISES = 24  # of the price of memory, each time by four


@lru_cache(maxsize=64)
def cheapest(tables: StrategyTables) -> I64:
    """[N] strategies of least cost by themselves, of all that go with each other as far as messages tell; where they do
    not fit, memory has the same price at all times, the lowest of a geometric series at which they do. What edges cost
    does not count, unless it is impossible."""
    model = reduced(tables)
    memory, own = memory_profile(model, tables), _node_costs(model, tables)
    possible = np.where(model.table < IMPOSSIBLE, 0.0, np.inf)
    passing = Passing(model._replace(unary=own, table=possible))
    each = memory.priced(np.full(len(memory.room), 1.0 / max(1, len(memory.room))), model.ptr)
    unit = max(1.0, float(own.max(initial=0.0))) / max(1.0, float(each.max(initial=0.0)))
    best, over = passing.labels.copy(), (True, np.inf)
    for raised in range(-1, RAISES):
        unary = own + (0.0 if raised < 0 else unit * 4.0 ** (raised - RAISES // 2)) * each
        for _ in range(SWEEPS):
            passing.sweep(unary, forward=False)
            passing.sweep(unary, forward=True)
        labels = _mended(passing, memory, unary, unary - own)
        now = max(0.0, float((memory.used(labels) - memory.room).max(initial=0.0)))
        broken = passing.model.energy(labels) == np.inf
        if (broken, now) < over:
            best, over = labels, (broken, now)
        if over == (False, 0.0):
            break
    return model.choice(best)


def _mended(passing: Passing, memory: MemoryProfile, unary: F64, paid: F64) -> I64:
    """Its labels; where edges are impossible, what regions solved one after the other make of them."""
    if passing.model.energy(passing.labels) < np.inf:
        return passing.labels.copy()
    walk = RegionWalk(passing.model, memory, passing.labels, ENTRIES)
    for tried in range(MENDS):
        walk.go(unary, passing.model.table, paid, REGIONS, tried)
        if walk.moving.cost[0] < BROKEN:
            break
    return walk.moving.labels.copy()


def _node_costs(model: Pairwise, tables: StrategyTables) -> F64:
    """[S] without what edges add."""
    out = np.zeros(len(model.unary))
    lengths = np.diff(model.map_ptr)
    node = np.repeat(np.arange(tables.num_nodes), lengths)
    state = np.arange(len(model.map)) - np.repeat(model.map_ptr[:-1], lengths)
    np.add.at(out, model.ptr[model.owner[node]] + state, tables.cost[tables.ptr[node] + model.map].astype(np.float64))
    return out
