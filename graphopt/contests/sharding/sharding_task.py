"""Sharding: which strategy each node of an instance takes, as XLA's auto-sharding and the contest on it (IOPDDL, ASPLOS
2025) pose it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.sharding.dual import Passing
from graphopt.contests.sharding.memory_profile import MemoryProfile, memory_profile
from graphopt.contests.sharding.pairwise import Pairwise
from graphopt.contests.sharding.reducing import reduced
from graphopt.contests.sharding.region_walk import BROKEN, RegionWalk
from graphopt.core.auto_sharding.strategies import IMPOSSIBLE, StrategyTables, price, relative, tables_of
from graphopt.core.graph import F64, I64, Graph, GraphError
from graphopt.core.machine import Machine
from graphopt.core.plan import MOST_LEVELS, Decision, Decisions, Head, Plans, Role
from graphopt.core.utils.marks import Between
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel, Objective, Prices
from graphopt.problems.keys import Keys
from graphopt.problems.problem import Clock

SWEEPS = 3
MENDS, REGIONS, ENTRIES = 40, 100, 1024  # attempts to mend labels, regions of each, and their largest tables
RAISES = 24  # of the price of memory, each time by four


@lru_cache(maxsize=64)
def cheapest(tables: StrategyTables) -> I64:
    """[N] strategies of least cost by themselves, of all that go with each other as far as messages tell; where they do
    not fit, memory has the same price at all times, the lowest of a geometric series at which they do. Costs of edges
    do not count, unless they are impossible."""
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
    """Its labels; where edges are impossible, repaired by solving regions one after the other."""
    if passing.model.energy(passing.labels) < np.inf:
        return passing.labels.copy()
    walk = RegionWalk(passing.model, memory, passing.labels, ENTRIES)
    for tried in range(MENDS):
        walk.go(unary, passing.model.table, paid, REGIONS, tried)
        if walk.moving.cost[0] < BROKEN:
            break
    return walk.moving.labels.copy()


def _node_costs(model: Pairwise, tables: StrategyTables) -> F64:
    """[S] costs of states without those of edges."""
    out = np.zeros(len(model.unary))
    lengths = np.diff(model.map_ptr)
    node = np.repeat(np.arange(tables.num_nodes), lengths)
    state = np.arange(len(model.map)) - np.repeat(model.map_ptr[:-1], lengths)
    np.add.at(out, model.ptr[model.owner[node]] + state, tables.cost[tables.ptr[node] + model.map].astype(np.float64))
    return out


class Sharding(AssignTask):
    """Head `strategy`: each node has as many choices as its table; most: of any. share: of the seconds that the contest
    gives to an instance, where the data set says so; a solve has no more. clock: of seconds: the `wall`, or the
    `processor`, of all threads."""

    needs: ClassVar[frozenset[str]] = frozenset({"strategies"})
    roles: ClassVar[Mapping[str, Role]] = {"strategy": Role.CHOICE}

    def __init__(self, *, name: str, machine: Machine, most: Annotated[int, Between(1, MOST_LEVELS)],
                 share: Annotated[float, Between(0.0, 1000.0)],
                 clock: Clock) -> None:  # fmt: skip
        self.name, self.machine, self.share, self.clock = name, machine, share, clock
        self.heads = (Head("strategy", most, Role.CHOICE),)

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> AssignProblem:  # fmt: skip
        allowed = tables_of(graph).seconds
        least = seconds if allowed is None else min(seconds, self.share * allowed)
        problem = super().open(graph, cost, evals=evals, seconds=least, seed=seed)
        problem.tell_time_by(self.clock)
        return problem

    def initial(self, graph: Graph) -> Decision:
        """[N, 1] least costs of the nodes themselves, made possible and made to fit."""
        return cheapest(tables_of(graph))[:, None].astype(np.int16)

    def counts(self, graph: Graph) -> I64:
        counts = tables_of(graph).counts[:, None]
        if counts.max() > self.heads[0].count:
            raise GraphError(f"graph {graph.name!r} has a node with {counts.max():,} strategies; raise task.most")
        return counts

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        return self.counts(graph) > 1

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        """`Plans.choices["strategy"]` [B, N]; a node takes its last one where it has fewer."""
        chosen = np.clip(decisions[:, :, 0], 0, self.counts(graph)[:, 0] - 1).astype(np.int16)
        still = np.zeros(chosen.shape, np.bool_)
        plan = Plans(graph, np.zeros(chosen.shape, np.int16), np.zeros(chosen.shape), still)
        return replace(plan, choices={"strategy": chosen})

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """A key for every node."""
        chosen = (np.asarray(keys, np.float64) * self.counts(graph)[:, 0]).astype(np.int16)
        return self.realise(graph, chosen[:, :, None])

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        kept: Decision = np.clip(decision, 0, self.counts(graph) - 1).astype(np.int16)
        return kept


class StrategyCost(CostModel):
    """Sum of the chosen strategies' costs and of an entry of every edge's table, in the instance's units, estimates of
    time; inf where at some time the memory in use is over the limit. Impossible entries are summed as they are."""

    needs: ClassVar[frozenset[str]] = frozenset({"strategies"})
    reads: ClassVar[frozenset[Role | str]] = frozenset({"strategy"})

    def __init__(self, *, name: str, objective: Objective) -> None:
        self.name, self.objective = name, objective

    def price(self, plans: Plans) -> Prices:
        tables = tables_of(plans.graph)
        found = [price(tables, row.astype(np.int64)) for row in plans.choices["strategy"]]
        over = np.array([relative(units, tables.limit) for _, units in found])
        return Prices(np.where(over > 0, np.inf, np.array([cost for cost, _ in found])), over)
