"""A toy task and cost with a known optimum: a cost per op and choice, plus one per edge and pair of choices."""

import itertools

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel, Flips, Prices
from graphopt.problems.keys import KeyLayout, KeyRole

ROLES = {role.value: role for role in Role} | {"inline": Role.FUSION}
GRAIN = 2.0**-20  # costs are multiples of it, so that sums are exact in any order


def toy_graph(ops: int, seed: int = 0) -> Graph:
    """A random graph of elementwise ops, each reading one or two earlier results; the last result is the output."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"toy{ops}_{seed}", "toy")
    results = [b.tensor((16,))]
    for _ in range(ops):
        sources = [results[i] for i in rng.integers(max(0, len(results) - 4), len(results), 2)]
        results.append(b.tensor((16,)))
        b.op("add", sources, results[-1:])
    b.output(results[-1])
    return b.build()


class ToyTask(AssignTask):
    """Any heads; the whole choice of an op, in mixed radix, becomes its `device`, and `inline` is head `inline`."""

    def __init__(self, heads: dict[str, int], free: NDArray[np.bool_] | None = None) -> None:
        self.name, self.free, self.limits = "toy", free, KernelLimits(64, 16, 8)
        self.heads = tuple(Head(name, count, ROLES.get(name, Role.CHOICE)) for name, count in heads.items())
        self.machine = Machine(name="toy", devices=(Device(),))

    def initial(self, graph: Graph) -> Decision:
        return np.zeros((graph.num_ops, len(self.heads)), np.int16)

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        full = np.ones((graph.num_ops, len(self.heads)), bool)
        return full if self.free is None else full & self.free[:, None]

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        code = np.zeros(decisions.shape[:2], np.int16)
        for head, kind in enumerate(self.heads):
            code = (code * kind.count + decisions[:, :, head]).astype(np.int16)
        inline = code.astype(bool) if [h.name for h in self.heads] == ["inline"] else np.zeros(code.shape, bool)
        return Plans(graph, code, np.zeros(code.shape), inline)

    def realise_keys(self, graph: Graph, keys: NDArray[np.float64]) -> Plans:
        counts = np.tile([head.count for head in self.heads], graph.num_ops)
        choices = np.minimum(keys * counts, counts - 1).astype(np.int16)
        return self.realise(graph, choices.reshape(len(keys), graph.num_ops, len(self.heads)))

    def layout(self, graph: Graph) -> KeyLayout:
        op = np.repeat(np.arange(graph.num_ops, dtype=np.int32), len(self.heads))
        head = np.tile(np.arange(len(self.heads), dtype=np.int16), graph.num_ops)
        return KeyLayout(np.full(len(op), KeyRole.CHOICE, np.int8), op, head, np.full(len(op), -1, np.int16))


class ToyCost(CostModel):
    """sum_n unary[n, c_n] + pair_weight * sum_edges pair[e, c_src, c_dst], all in [0, 1); `calls` counts priced plans.

    deltas: offers exact flips (for the inline task). bound: plans whose unary sum exceeds it are infeasible.
    """

    def __init__(self, graph: Graph, codes: int, *, pair_weight: float = 0.5, deltas: bool = False, seed: int = 0,
                 bound: float = np.inf) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.name, self.objective, self.deltas, self.bound, self.calls = "toy", "runtime", deltas, bound, 0
        self.source, self.target, _ = graph.edges
        self.unary = np.round(rng.random((graph.num_ops, codes)) / GRAIN) * GRAIN
        self.pair = np.round(pair_weight * rng.random((len(self.source), codes, codes)) / GRAIN) * GRAIN

    def totals(self, codes: NDArray[np.int16]) -> NDArray[np.float64]:
        """[B] costs of codes [B, N]."""
        own = self.unary[np.arange(codes.shape[1]), codes].sum(1)
        joint = self.pair[np.arange(len(self.source)), codes[:, self.source], codes[:, self.target]].sum(1)
        excess = np.maximum(0.0, own - self.bound)
        return np.where(excess > 0, np.inf, own + joint)

    def price(self, plans: Plans) -> Prices:
        self.calls += len(plans)
        cost = self.totals(plans.device)
        own = self.unary[np.arange(plans.device.shape[1]), plans.device].sum(1)
        return Prices(cost, np.maximum(0.0, own - self.bound) if np.isfinite(self.bound) else np.zeros(len(plans)))

    def flips(self, graph: Graph, inline: NDArray[np.bool_], limits: KernelLimits) -> Flips | None:
        return ToyFlips(self, inline) if self.deltas else None

    def optimum(self) -> float:
        """By brute force over all codes; small graphs only."""
        ops, codes = self.unary.shape
        every = np.array(list(itertools.product(range(codes), repeat=ops)), np.int16)
        return float(self.totals(every).min())

    def separable_optimum(self) -> float:
        """When pair_weight is 0."""
        return float(self.unary.min(1).sum())


class ToyFlips:
    """Prices flips by pricing the flipped codes."""

    def __init__(self, model: ToyCost, inline: NDArray[np.bool_]) -> None:
        self._model, self.inline = model, inline.copy()
        self.cost = float(model.totals(inline[None].astype(np.int16))[0])

    def price(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        self._model.calls += len(ops)
        codes = np.repeat(self.inline[None], len(ops), 0)
        codes[np.arange(len(ops)), ops] ^= True
        return self._model.totals(codes.astype(np.int16))

    def apply(self, op: int) -> None:
        self.inline = self.inline.copy()
        self.inline[op] ^= True
        self.cost = float(self._model.totals(self.inline[None].astype(np.int16))[0])


def toy_problem(ops: int, heads: dict[str, int], evals: int, *, seed: int = 0, pair_weight: float = 0.5,
                deltas: bool = False,
                free: NDArray[np.bool_] | None = None) -> tuple[AssignProblem, ToyCost]:  # fmt: skip
    """A problem over a random toy graph, and its cost model."""
    graph = toy_graph(ops, seed)
    cost = ToyCost(graph, int(np.prod(list(heads.values()))), pair_weight=pair_weight, deltas=deltas, seed=seed)
    problem = AssignProblem(graph, ToyTask(heads, free), cost, evals=evals, seed=seed)
    cost.calls = 0
    return problem, cost
