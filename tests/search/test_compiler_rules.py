"""The compilers' rules on hand-made graphs; XLA's greedy against a slow one that scores everything at every step."""

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from graphopt.core.errors import ConfigError, Incompatible
from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits, legalise
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Head, Plans, Role
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.tasks.fusion import Fusion
from graphopt.search.fusion.xla_priority import LAUNCH, SIGNIFICANT, XlaPriority, as_decision, priority_fusion

GPU = Device(
    name="gpu", fusion_model="xla_gpu", bandwidth=768e9, launch=LAUNCH, contraction_flops=38e12,
    clock=1.41e9, cores=84, fpus_per_core=128, l2_bytes=6 * 2**20,
)  # fmt: skip
CPU = Device(name="cpu")
LIMITS = KernelLimits(64, 16, 8)


class Builder(GraphBuilder):
    """One-line ops: `make` adds an op with one new result of the given shape."""

    def make(self, kind: str, inputs: list[int], shape: tuple[int, ...], name: str, flops: float | None = None) -> int:
        result = self.tensor(shape)
        self.op(kind, inputs, [result], name=name, flops=flops)
        return result


def xla(graph: Graph) -> set[str]:
    """Names of the ops that XLA inlines."""
    inline, _ = priority_fusion(graph, GPU, LIMITS)
    return {graph.op_names[op] for op in np.flatnonzero(inline & ~view_inline(graph))}


def chain(length: int, elements: int = 1 << 20) -> Graph:
    b = Builder("chain")
    x = b.tensor((elements,))
    for i in range(length):
        x = b.make("exp", [x], (elements,), f"op{i}")
    b.output(x)
    return b.build()


def fork(flops: float, readers: int = 2) -> Graph:
    """One producer with several readers, all graph outputs."""
    b = Builder("fork")
    shape = (1 << 20,)
    x = b.make("relu", [b.tensor(shape)], shape, "producer", flops)
    for i in range(readers):
        b.output(b.make("neg", [x], shape, f"reader{i}"))
    return b.build()


def normalised() -> Graph:
    """y = x - max(x) over rows, and s = 2 * sum(x) per row."""
    b = Builder("normalised")
    x = b.tensor((4096, 1024))
    largest = b.make("amax", [x], (4096, 1), "max")
    b.output(b.make("sub", [x, largest], (4096, 1024), "centred"))
    total = b.make("sum", [x], (4096, 1), "sum")
    b.output(b.make("mul", [total, b.tensor((1,))], (4096, 1), "twice"))
    return b.build()


def matmul() -> Graph:
    """relu -> matmul -> add."""
    b = Builder("matmul")
    x = b.make("relu", [b.tensor((1024, 1024))], (1024, 1024), "before")
    y = b.make("matmul", [x, b.tensor((1024, 1024), weight=True)], (1024, 1024), "matmul", 2.0 * 1024**3)
    b.output(b.make("add", [y, b.tensor((1024,), weight=True)], (1024, 1024), "after"))
    return b.build()


def random_graph(seed: int, ops: int = 18) -> Graph:
    """Elementwise ops, row reductions and broadcasts of their results; some expensive; several outputs."""
    rng = np.random.default_rng(seed)
    wide, narrow = (512, 256), (512, 1)
    b = Builder(f"random{seed}")
    made = [(b.tensor(wide), wide), (b.tensor(wide), wide), (b.tensor(narrow), narrow)]
    for i in range(ops):
        first, second = (made[j] for j in rng.integers(max(0, len(made) - 6), len(made), 2))
        if first[1] == wide and rng.random() < 0.2:
            made.append((b.make("sum", [first[0]], narrow, f"op{i}"), narrow))
        else:
            shape = max(first[1], second[1])
            flops = None if rng.random() < 0.6 else float(np.prod(shape)) * 2000
            made.append((b.make("add", [first[0], second[0]], shape, f"op{i}", flops), shape))
    for tensor, _ in made[-3:]:
        b.output(tensor)
    return b.build()


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


def test_xla_keeps_reductions_out_of_loops() -> None:
    assert xla(normalised()) == {"sum"}


def test_xla_leaves_matrix_products_to_the_library() -> None:
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
    b = Builder("twins")
    for i in range(2):
        x = b.make("relu", [b.tensor((1 << 20,))], (1 << 20,), f"producer{i}")
        b.output(b.make("neg", [x], (1 << 20,), f"reader{i}"))
    graph = b.build()
    _, rank = priority_fusion(graph, GPU, LIMITS)
    assert rank[graph.op_names.index("producer1")] < rank[graph.op_names.index("producer0")]


def test_xla_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="clock, cores and fpus_per_core"):
        priority_fusion(chain(2), CPU, LIMITS)


class _KernelSum(CostModel):
    """Sum of all kernel times."""

    name, objective = "sum", "runtime"

    def price(self, plans: Plans) -> Prices:
        times = [kernel_graph(plans.graph, inline, (GPU,)).time.sum() for inline in plans.inline]
        return Prices(np.array(times), np.zeros(len(times)))


def problem(graph: Graph, decision: str, evals: int, device: Device = GPU) -> AssignProblem:
    task = Fusion(name="fusion", machine=Machine(name="m", devices=(device,)), decision=decision, numerics=None,
                  levels=20,                  max_ops=64, max_inputs=16, max_duplicates=8)  # type: ignore[arg-type]  # fmt: skip
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


def test_rules_obey_tight_caps() -> None:
    graph = chain(40)
    for limits in (KernelLimits(4, 16, 8), KernelLimits(64, 1, 1)):
        inline, _ = priority_fusion(graph, dataclasses.replace(GPU), limits)
        assert np.array_equal(legalise(graph, inline.astype(np.uint8)[None], limits)[0], inline)
    inline, _ = priority_fusion(graph, GPU, KernelLimits(4, 16, 8))
    assert (~inline).sum() == 10  # 40 ops in kernels of 4
