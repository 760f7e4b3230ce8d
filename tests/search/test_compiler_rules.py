"""The compilers' rules on hand-made graphs; XLA's greedy against a slow one that scores everything at every step;
classes of alike ops.
"""

import numpy as np
import pytest
from cells import fusion
from fusion_graphs import XLA, Net
from fusion_graphs import random_graph as random_net
from numpy.typing import NDArray

from graphopt.core.errors import ConfigError, Incompatible
from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, legalise
from graphopt.core.machine import Device, Machine
from graphopt.core.operators import OPERATOR_ID
from graphopt.core.plan import Head, Plans, Role
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.graphs.layered import layered_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import solve
from graphopt.search.fusion.modelled_scan import MotifScan
from graphopt.search.fusion.xla_priority import LAUNCH, SIGNIFICANT, XlaPriority, as_decision, priority_fusion
from graphopt.search.walks.moves import alike

GPU = Device(
    name="gpu", fusion_model="xla_gpu", bandwidth=768e9, launch=LAUNCH, contraction_flops=38e12,
    clock=1.41e9, cores=84, fpus_per_core=128, l2_bytes=6 * 2**20,
)  # fmt: skip
LIMITS = KernelLimits(64, 16, 8)
LARGE = (1 << 20,)


def xla(graph: Graph) -> set[str]:
    """Names of the ops that XLA inlines."""
    inline, _ = priority_fusion(graph, GPU, LIMITS)
    return {graph.op_names[op] for op in np.flatnonzero(inline & ~view_inline(graph))}


def chain(length: int) -> Graph:
    net = Net("chain")
    x = net.x(*LARGE)
    for i in range(length):
        x = net("exp", x, name=f"op{i}", shape=LARGE)
    return net.done(x)


def fork(flops: float, readers: int = 2) -> Graph:
    """One producer with several readers, all graph outputs."""
    net = Net("fork")
    x = net("relu", net.x(*LARGE), name="producer", shape=LARGE, flops=flops)
    return net.done(*(net("neg", x, name=f"reader{i}", shape=LARGE) for i in range(readers)))


def normalised() -> Graph:
    """y = x - max(x) over rows, and s = 2 * sum(x) per row."""
    net, wide, narrow = Net("normalised"), (4096, 1024), (4096, 1)
    x = net.x(*wide)
    largest, total = (net(kind, x, name=kind, shape=narrow) for kind in ("amax", "sum"))
    centred = net("sub", x, largest, name="centred", shape=wide)
    return net.done(centred, net("mul", total, net.x(1), name="twice", shape=narrow))


def matmul() -> Graph:
    """relu -> matmul -> add."""
    net, square = Net("matmul"), (1024, 1024)
    x = net("relu", net.x(*square), name="before", shape=square)
    y = net("matmul", x, net.tensor(square, weight=True), name="matmul", shape=square, flops=2.0 * 1024**3)
    return net.done(net("add", y, net.tensor((1024,), weight=True), name="after", shape=square))


def random_graph(seed: int, ops: int = 18) -> Graph:
    """Elementwise ops, row reductions and broadcasts of their results; some expensive; several outputs."""
    rng, net = np.random.default_rng(seed), Net(f"random{seed}")
    wide, narrow = (512, 256), (512, 1)
    made = [(net.x(*shape), shape) for shape in (wide, wide, narrow)]
    for i in range(ops):
        first, second = (made[j] for j in rng.integers(max(0, len(made) - 6), len(made), 2))
        if first[1] == wide and rng.random() < 0.2:
            made.append((net("sum", first[0], name=f"op{i}", shape=narrow), narrow))
        else:
            shape = max(first[1], second[1])
            flops = None if rng.random() < 0.6 else float(np.prod(shape)) * 2000
            made.append((net("add", first[0], second[0], name=f"op{i}", shape=shape, flops=flops), shape))
    return net.done(*(tensor for tensor, _ in made[-3:]))


def slow_priority_fusion(graph: Graph) -> NDArray[np.bool_]:
    """The same greedy, with every producer scored at every step by pricing the whole graph."""

    def total(flags: NDArray[np.bool_]) -> float:
        return float(kernel_graph(graph, flags, (GPU,)).time.sum())

    f, inline = fusible(graph), view_inline(graph)
    while True:
        best, chosen = -1.0, -1
        for op in np.flatnonzero(f.op["can_inline"] & ~inline):
            trial = inline.copy()
            trial[op] = True
            if np.array_equal(legalise(graph, trial.astype(np.uint8)[None], LIMITS)[0], trial) and not _loops(
                graph, trial
            ):
                saved = total(inline) - total(trial)
                if saved >= max(best, 0.0):
                    best, chosen = saved, int(op)
        if chosen < 0:
            return inline
        inline[chosen] = True


def _loops(graph: Graph, inline: NDArray[np.bool_]) -> bool:
    """Is a significant reduction inlined into a kernel of another size?"""
    f = fusible(graph)
    for op in np.flatnonzero(inline & (f.op["heavy"] == 1)):
        reader = int(op)
        while inline[reader]:
            reader = int(f.out_op[f.op[reader]["out_start"]])
        significant = f.op[op]["space"] >= SIGNIFICANT * f.op[op]["numel"]
        if significant and f.op[reader]["numel"] != f.op[op]["numel"]:
            return True
    return False


def test_xla_fuses_a_chain_and_stores_its_output() -> None:
    assert xla(chain(5)) == {"op0", "op1", "op2", "op3"}


def test_xla_duplicates_what_is_cheap_only() -> None:
    """By hand: m = seconds to move one tensor, C > 2m = seconds to compute the producer, time(C) = C + 2m - 0.95 * 2m.

    Apart: 3 launches + time(C) + 2 * 2m. Fused into both readers: 2 launches + 2 * time(C). Even at C = launch + 3.9 m.
    """
    peak = 2 * GPU.clock * GPU.cores * GPU.fpus_per_core
    even = (LAUNCH + 3.9 * 4 * (1 << 20) / GPU.bandwidth) * peak
    assert xla(fork(0.98 * even)) == {"producer"}
    assert xla(fork(1.02 * even)) == set()
    assert xla(fork(1.02 * even, readers=1)) == {"producer"}


def test_xla_keeps_reductions_out_of_loops_and_leaves_products_to_the_library() -> None:
    assert xla(normalised()) == {"sum"}
    assert xla(matmul()) == {"matmul"}


@pytest.mark.parametrize("seed", range(12))
def test_xla_equals_the_slow_greedy(seed: int) -> None:
    graph = random_graph(seed)
    inline, rank = priority_fusion(graph, GPU, LIMITS)
    assert np.array_equal(inline, slow_priority_fusion(graph))
    order = rank[inline & ~view_inline(graph)]
    assert sorted(order) == list(range(len(order)))
    assert np.array_equal(legalise(graph, inline.astype(np.uint8)[None], LIMITS)[0], inline)


def test_xla_prefers_the_larger_id_on_ties() -> None:
    """Two equal, independent pairs: the later producer is fused first."""
    net = Net("twins")
    makers = [net("relu", net.x(*LARGE), name=f"producer{i}", shape=LARGE) for i in range(2)]
    graph = net.done(*(net("neg", x, name=f"reader{i}", shape=LARGE) for i, x in enumerate(makers)))
    _, rank = priority_fusion(graph, GPU, LIMITS)
    assert rank[graph.op_names.index("producer1")] < rank[graph.op_names.index("producer0")]


def test_xla_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="clock, cores and fpus_per_core"):
        priority_fusion(chain(2), Device(name="cpu"), LIMITS)


class _KernelSum(CostModel):
    """Sum of all kernel times."""

    name, objective = "sum", "runtime"

    def price(self, plans: Plans) -> Prices:
        times = [kernel_graph(plans.graph, inline, (GPU,)).time.sum() for inline in plans.inline]
        return Prices(np.array(times), np.zeros(len(times)))


def problem(graph: Graph, decision: str, evals: int) -> AssignProblem:
    task = fusion(Machine(name="m", devices=(GPU,)), decision, levels=20)
    return AssignProblem(graph, task, _KernelSum(), evals=evals)


@pytest.mark.parametrize("decision", ["binary", "priority"])
def test_rules_answer_with_one_decision(decision: str) -> None:
    graph = random_graph(3)
    inline, rank = priority_fusion(graph, GPU, LIMITS)
    for evals in (0, 1, 5):
        p = problem(graph, decision, evals)
        XlaPriority(name="xla_priority").solve(p)
        assert p.evals == min(evals, 1)
        answer = as_decision(p, inline, rank)
        assert evals > 0 or np.array_equal(p.best, answer)
        assert np.array_equal(p.task.realise(graph, answer[None]).inline[0], inline)


def test_rules_refuse_tasks_without_fusion() -> None:
    p = problem(chain(3), "binary", 1)
    p.task.heads = (Head("device", 2, Role.DEVICE),)
    with pytest.raises(Incompatible, match="decides fusion"):
        XlaPriority(name="xla_priority").solve(p)


# --- Classes of alike ops against labels that are nested tuples, and the scan over them against one without.


def slow_classes(graph: Graph, free: np.ndarray, hops: int) -> set[tuple[int, ...]]:
    """Colours as what they stand for: own facts, and the sorted colours of inputs and of readers."""

    def colour(op: int, left: int) -> object:
        results = graph.results(op)
        own = (int(graph.kind[op]), max([1, *graph.numel[results].tolist()]), bool(free[op]))
        if not left:
            return own
        ends = [column[ptr[op] : ptr[op + 1]].tolist() for ptr, column in (graph.predecessors, graph.successors)]
        return (colour(op, left - 1), *(tuple(sorted((colour(o, left - 1) for o in e), key=repr)) for e in ends))

    found: dict[str, list[int]] = {}
    for op in np.flatnonzero(free).tolist():
        found.setdefault(repr(colour(op, hops)), []).append(op)
    return {tuple(ops) for ops in found.values() if len(ops) > 1}


@pytest.mark.parametrize("seed", range(8))
def test_classes_are_weisfeiler_lehman_colours(seed: int) -> None:
    graph = layered_graph(60, np.random.default_rng(seed), f"g{seed}") if seed % 2 else random_net(seed, 40)
    free = np.random.default_rng(seed).random(graph.num_ops) < 0.8
    seen: set[tuple[int, ...]] = set()
    for hops, classes in enumerate(alike(graph, free, 3)):
        sizes = [len(ops) for ops in classes]
        found = {tuple(ops.tolist()) for ops in classes}
        assert sizes == sorted(sizes, reverse=True) and not found & seen
        assert found | seen >= slow_classes(graph, free, hops) and found <= slow_classes(graph, free, hops)
        seen |= found


class Taste(CostModel):
    """Likes negations inline and everything else stored: what a kind of op wants it wants everywhere."""

    name, objective = "taste", "runtime"

    def price(self, plans: Plans) -> Prices:
        wish = np.where(plans.graph.kind == OPERATOR_ID["neg"], -1.0, 1.0)
        return Prices(1e3 + (plans.inline * wish).sum(1), np.zeros(len(plans)))


def best(optimizer: MotifScan, blocks: int, evals: int) -> float:
    net = Net("blocks", "blocks")
    x = net.tensor((4, 8))
    for i in range(blocks):
        x = net("relu", net("neg", x, name=f"neg{i}"), name=f"relu{i}")
    net.output(x)
    task = fusion(Machine(name="one", devices=(XLA,)))
    problem, _ = solve(optimizer, net.build(), task, Taste(), evals=evals)
    return problem.best_cost


def test_what_a_block_wants_is_found_once_for_all_blocks() -> None:
    blocks = 40
    optimum = 1e3 - blocks
    assert best(MotifScan(name="motif_scan", depth=3), blocks, 6) == optimum
    assert best(MotifScan(name="rules_scan", depth=None), blocks, 6) > optimum + 5
    assert best(MotifScan(name="motif_scan", depth=3), blocks, 3 * 2 * blocks) == optimum  # a scan ends it
