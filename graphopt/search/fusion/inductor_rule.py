"""`inductor_rule`: TorchInductor's fusion rule as a store/inline decision. From its lowering and scheduler (2026).

1. Lowering: a pointwise result is computed inside its readers unless it is realised: read by several and reading more
   than `reads` buffers or holding more than `ops` ops; reading more than `total_reads` in any case; or feeding a
   library call.
2. Scheduling: pairs of kernels, most bytes saved first, in at most `rounds` passes: at most `nodes` results together,
   memory kept alive for longer at most `extra_memory` times the saving. Inductor has no time model.

What store/inline cannot say is left out: kernels with several results (a producer is joined only where all its readers
are in one kernel), fusion of siblings, loop reordering. Matrix products are library calls without epilogues,
Inductor's default.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.machine import Device
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.fused import answer
from graphopt.utils.ranges import Count, NotNegative, Whole

REDUCTION, CONTRACTION = 1, 2


class InductorRule(Optimizer):
    """Inductor's choice for the machine's first device; one evaluation.

    ops_cpu holds for devices without streaming multiprocessors (`cores` = 0), ops_gpu for others.
    """

    needs_roles: ClassVar[frozenset[Role]] = frozenset({Role.FUSION})

    def __init__(self, *, name: str, reads: Whole, total_reads: Whole, ops_gpu: Whole, ops_cpu: Whole, nodes: Count,
                 extra_memory: NotNegative, rounds: Whole) -> None:  # fmt: skip
        self.name, self.reads, self.total_reads = name, reads, total_reads
        self.ops_gpu, self.ops_cpu, self.nodes = ops_gpu, ops_cpu, nodes
        self.extra_memory, self.rounds = extra_memory, rounds

    def solve(self, problem: AssignProblem) -> None:
        inline = self.inline(problem.graph, problem.task.machine.devices[0])
        answer(problem, inline, np.arange(problem.graph.num_ops)[::-1])

    def inline(self, graph: Graph, device: Device) -> NDArray[np.bool_]:
        """[N] flags of the inlined ops, views among them."""
        kernels = _Kernels(fusible(graph))
        self._lower(kernels, self.ops_gpu if device.cores > 0 else self.ops_cpu)
        for _ in range(self.rounds):
            if not self._schedule(kernels):
                break
        return np.array(kernels.inline)

    def _lower(self, k: "_Kernels", ops: int) -> None:
        """Decides every pointwise op in topological order, knowing what its producers became."""
        for op in range(len(k.inline)):
            if k.is_view[op]:
                continue
            k.form(op)
            pointwise = k.heavy[op] == 0 and k.can_inline[op]
            if not pointwise or any(k.heavy[c] == CONTRACTION for c in k.consumers[op]):
                continue
            reused = len(k.consumers[op]) > 1
            large = len(k.reads[op]) > self.reads or len(k.ops[op]) > ops
            k.inline[op] = len(k.reads[op]) <= self.total_reads and not (reused and large)

    def _schedule(self, k: "_Kernels") -> bool:
        """One pass over all pairs of a stored op and the single kernel that reads it; True when something was fused."""
        pairs = [(op, root) for op in range(len(k.inline)) if (root := k.single_reader(op)) >= 0]
        last_use = k.last_use()
        changed = False
        for op, _ in sorted(pairs, key=lambda pair: (-k.out_bytes[pair[0]], pair[0])):
            root = k.single_reader(op)  # an earlier fusion may have changed it
            if root < 0 or not k.fits(op, root) or k.nodes[op] + k.nodes[root] > self.nodes:
                continue
            saved = 2.0 * k.out_bytes[op]  # one write and one read
            kept = sum(k.tensor_bytes[t] for t in k.reads[op] if k.producer[t] >= 0 and last_use[t] < root)
            if kept > self.extra_memory * saved:
                continue
            k.inline[op] = changed = True
            k.join(op, root)
        return changed


class _Kernels:
    """Kernels while they grow: for every op, the ops and input tensors of the kernel that would end in it."""

    def __init__(self, f: Fusible) -> None:
        self.heavy: list[int] = f.op["heavy"].tolist()
        self.is_view: list[bool] = f.op["is_view"].tolist()
        self.can_inline: list[bool] = f.op["can_inline"].tolist()
        self.elementwise: list[bool] = f.op["elementwise"].tolist()
        self.numel: list[float] = f.op["numel"].tolist()
        self.space: list[float] = f.op["space"].tolist()
        self.out_bytes: list[float] = f.op["out_bytes"].tolist()
        self.tensor_bytes: list[float] = f.tensor["num_bytes"].tolist()
        self.consumers = _rows(f.out_op, f.op["out_start"], f.op["out_end"])
        self.operands = _rows(f.edge["tensor"], f.op["in_start"], f.op["in_end"])
        self.producer = np.full(len(f.tensor), -1)
        for op, (start, end) in enumerate(zip(f.op["result_start"].tolist(), f.op["result_end"].tolist(), strict=True)):
            self.producer[start:end] = op
        self.inline: list[bool] = list(self.is_view)
        self.ops: list[set[int]] = [set() for _ in self.heavy]
        self.reads: list[set[int]] = [set() for _ in self.heavy]
        self.nodes = [1] * len(self.heavy)  # realised results that the kernel unites

    def form(self, op: int) -> None:
        """The kernel of `op` from those of its producers, all of which have been decided."""
        self.ops[op], self.reads[op] = {op}, set()
        for tensor in self.operands[op]:
            source = self.producer[tensor]
            if source >= 0 and self.inline[source]:
                self.ops[op] |= self.ops[source]
                self.reads[op] |= self.reads[source]
            else:
                self.reads[op].add(tensor)

    def join(self, op: int, root: int) -> None:
        """Moves the kernel of `op` into that of `root`."""
        self.ops[root] |= self.ops[op]
        self.nodes[root] += self.nodes[op]
        self.reads[root] = {t for t in self.reads[root] if self.producer[t] != op} | self.reads[op]

    def single_reader(self, op: int) -> int:
        """The only kernel that reads a stored op which may be inlined, else -1."""
        if self.inline[op] or not self.can_inline[op]:
            return -1
        roots, stack, seen = set[int](), list(self.consumers[op]), set[int]()
        while stack and len(roots) < 2:
            here = stack.pop()
            if not self.inline[here]:
                roots.add(here)
            elif here not in seen:
                seen.add(here)
                stack += self.consumers[here]
        return roots.pop() if len(roots) == 1 else -1

    def fits(self, op: int, root: int) -> bool:
        """Loops over the same elements fuse; a reduction only with pointwise ops over its input or its result."""
        if self.heavy[root] == CONTRACTION or self.heavy[op] == CONTRACTION:
            return False
        reductions = sum(self.heavy[n] == REDUCTION for n in self.ops[op] | self.ops[root])
        if reductions > 1:
            return False
        if self.heavy[op] == REDUCTION:
            return self.elementwise[root] and self.numel[root] in (self.numel[op], self.space[op])
        return self.numel[op] == self.space[root]

    def last_use(self) -> NDArray[np.int64]:
        """[T] the last kernel that reads each tensor, as its stored op; -1 when none does."""
        last = np.full(len(self.tensor_bytes), -1)
        for op in range(len(self.inline)):
            if not self.inline[op]:
                last[list(self.reads[op])] = op
        return last


def _rows(values: NDArray[np.int32], start: NDArray[np.int32], end: NDArray[np.int32]) -> list[list[int]]:
    flat: list[int] = values.tolist()
    return [flat[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
