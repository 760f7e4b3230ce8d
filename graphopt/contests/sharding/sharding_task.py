"""Sharding: which strategy each node of an instance takes, as XLA's auto-sharding and the contest on it (IOPDDL, ASPLOS
2025) pose it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.sharding.cheapest import cheapest
from graphopt.core.auto_sharding.strategies import tables_of
from graphopt.core.graph import I64, Graph, GraphError
from graphopt.core.machine import Machine
from graphopt.core.plan import MOST_LEVELS, Decision, Decisions, Head, Plans, Role
from graphopt.core.utils.marks import Between
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel
from graphopt.problems.keys import Keys
from graphopt.problems.problem import Clock


class Sharding(AssignTask):
    """Head `strategy`: each node has as many choices as its table; most: of any. share: of the seconds that the contest
    gives to an instance, where the data set says so; a solve has no more. clock: what seconds are: of the `wall`, or of
    the `processor`, of all threads."""

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
