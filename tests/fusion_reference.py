"""Fusion and the roofline in plain Python: sets, dictionaries, recursion. Written from what the words mean (a kernel is
a stored op plus all inlined ops that it needs), slow, and without a line of `core.kernels` or `costs`."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Device
from graphopt.core.operators import OPERATORS, Category

Inline = frozenset[int]


@dataclass(frozen=True)
class Operand:
    """How one op reads one tensor."""

    maker: int  # the op that made it; -1: nobody
    tensor: int  # behind views
    reads: float  # elements read to compute the reader once
    in_order: bool  # element by element as the reader goes
    strided: bool


class Reference:
    """One graph. Views are resolved: they appear neither as members nor as inputs of kernels."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.category = [OPERATORS[k].category for k in graph.kind.tolist()]
        self.views = {op for op, c in enumerate(self.category) if c == Category.VIEW}
        self.heavy = {op for op, c in enumerate(self.category) if c in (Category.REDUCTION, Category.CONTRACTION)}
        self.elements = [prod(graph.tensor_shape(t)) for t in range(graph.num_tensors)]
        self.base, self.turned = self._behind_views()
        results = {op: [self.elements[t] for t in graph.results(op)] for op in range(graph.num_ops)}
        self.numel = {op: max([1, *counts]) for op, counts in results.items()}
        self.operands = {op: self._operands(op) for op in range(graph.num_ops) if op not in self.views}
        self.readers: dict[int, set[int]] = {op: set() for op in range(graph.num_ops)}
        for op, operands in self.operands.items():
            for operand in operands:
                if operand.maker >= 0:
                    self.readers[operand.maker].add(op)
        self.may_inline = {op for op in self.operands if self._may_inline(op)}

    def _behind_views(self) -> tuple[list[int], list[bool]]:
        base, turned = list(range(self.graph.num_tensors)), [False] * self.graph.num_tensors
        for op in sorted(self.views):
            source = int(self.graph.operands(op)[0])
            for tensor in self.graph.results(op):
                base[tensor] = base[source]
                turned[tensor] = turned[source] or OPERATORS[self.graph.kind[op]].name == "transpose"
        return base, turned

    def space(self, op: int) -> int:
        """Iteration space: a reduction walks over its input."""
        if self.category[op] != Category.REDUCTION:
            return self.numel[op]
        return max(self.numel[op], self.elements[int(self.graph.operands(op)[0])])

    def _operands(self, op: int) -> list[Operand]:
        out, category, name = [], self.category[op], OPERATORS[self.graph.kind[op]].name
        for position, seen in enumerate(self.graph.operands(op).tolist()):
            base = self.base[seen]
            strided = self.turned[seen] and category != Category.CONTRACTION
            whole = self.elements[seen] == self.elements[base] == self.space(op)
            in_order = category in (Category.ELEMENTWISE, Category.REDUCTION) and whole and not strided
            if category == Category.ELEMENTWISE or (name == "gather" and position == 0):
                reads = float(self.numel[op])
            elif category == Category.CONTRACTION:
                uses = float(self.graph.flops[op]) / 2 / self.elements[base]
                reads = self.elements[base] * max(1.0, uses / 128)
            else:
                reads = float(min(self.elements[seen], self.elements[base]))
            out.append(Operand(int(self.graph.producer[base]), base, max(reads, 1.0), in_order, strided))
        return out

    def _may_inline(self, op: int) -> bool:
        makes_output = any(self.graph.is_output[t] and self.graph.producer[self.base[t]] == op
                           for t in range(self.graph.num_tensors))  # fmt: skip
        readers = self.readers[op]
        if self.category[op] == Category.OPAQUE or makes_output or not readers:
            return False
        if any(self.category[r] == Category.OPAQUE for r in readers):
            return False
        return op not in self.heavy or all(self._feeds_from_registers(op, reader) for reader in readers)

    def _feeds_from_registers(self, op: int, reader: int) -> bool:
        """A reduction or contraction goes only into elementwise work on its result; a reduction also on its input."""
        if self.category[reader] != Category.ELEMENTWISE:
            return False
        if self.category[op] == Category.CONTRACTION:
            return all(o.in_order for o in self.operands[reader] if o.maker == op)
        return self.numel[reader] in (self.numel[op], self.space(op))

    # ---- kernels of a state

    def stored(self, inline: Inline) -> list[int]:
        return [op for op in self.operands if op not in inline]

    def members(self, root: int, inline: Inline) -> set[int]:
        found, todo = {root}, [root]
        while todo:
            makers = {o.maker for o in self.operands[todo.pop()]} & inline - found
            found |= makers
            todo += makers
        return found

    def inputs(self, root: int, inline: Inline) -> set[int]:
        return {o.tensor for op in self.members(root, inline) for o in self.operands[op] if o.maker not in inline}

    def roots(self, op: int, inline: Inline) -> set[int]:
        """Kernels in which an inlined op is computed."""
        out: set[int] = set()
        for reader in self.readers[op]:
            out |= self.roots(reader, inline) if reader in inline else {reader}
        return out

    def faults(self, root: int, inline: Inline, limits: KernelLimits) -> list[str]:
        """What is illegal about one kernel."""
        members, wrong = self.members(root, inline), []
        inner = members - {root}
        if len(members) > limits.max_ops:
            wrong.append("ops")
        if inner and len(self.inputs(root, inline)) > limits.max_inputs:
            wrong.append("inputs")
        if len(members & self.heavy) > 1:
            wrong.append("heavy")
        for op in inner:
            if op not in self.may_inline:
                wrong.append("not inlinable")
            if len(self.roots(op, inline)) > (1 if op in self.heavy else limits.max_duplicates):
                wrong.append("duplicates")
            spaces = {self.numel[op]} | ({self.space(op)} if self.category[op] == Category.REDUCTION else set())
            if op in self.heavy and (self.category[root] != Category.ELEMENTWISE or self.numel[root] not in spaces):
                wrong.append("space")
        return wrong

    def decode(self, requests: Iterable[int], limits: KernelLimits) -> Inline:
        """From the last op to the first, an op is inlined on request if every kernel that it joins stays legal."""
        inline: Inline = frozenset()
        wishes = list(requests)
        for op in sorted(self.may_inline, reverse=True):
            joined = self.roots(op, inline)
            if not wishes[op] or (wishes[op] == 2 and len(joined) > 1):
                continue
            full = any(len(self.inputs(root, inline)) > limits.max_inputs for root in joined)
            if not full and not any(self.faults(root, inline | {op}, limits) for root in joined):
                inline |= {op}
        return inline

    def decode_by_priority(self, levels: Iterable[int], limits: KernelLimits) -> Inline:
        """The highest level first, later ops first among equals, level 0 never."""
        inline: Inline = frozenset()
        ranked = sorted(((-level, -op) for op, level in enumerate(levels) if level > 0))
        for op in (-minus for _, minus in ranked):
            trial = inline | {op}
            if op in self.may_inline and not any(self.faults(r, trial, limits) for r in self.roots(op, trial)):
                inline = trial
        return inline

    # ---- prices

    def shares(self, root: int, inline: Inline) -> dict[int, float]:
        """How many times each member is computed in full. In-order readers share one evaluation, others pay their own;
        reductions and contractions are computed once."""
        members, out = self.members(root, inline), {root: 1.0}
        for op in sorted(members - {root}, reverse=True):
            once, more, _ = self._demand(members, out, lambda o, op=op: o.maker == op)
            out[op] = 1.0 if op in self.heavy else (once + more) / self.numel[op]
        return out

    def _demand(self, members: set[int], shares: dict[int, float], of) -> tuple[float, float, list[tuple[int, bool]]]:
        """(reads in order, other reads, [(reader, strided)]) of a tensor or op, by members whose shares are known."""
        found = [(op, o, o.reads * shares[op]) for op in members if op in shares for o in self.operands[op] if of(o)]
        once = max((reads for _, o, reads in found if o.in_order), default=0.0)
        return once, sum(reads for _, o, reads in found if not o.in_order), [(op, o.strided) for op, o, _ in found]

    def strided(self, root: int, inline: Inline) -> set[int]:
        """Members that are reached through a transposition."""
        members, out = self.members(root, inline), set()
        for op in sorted(members - {root}, reverse=True):
            if any(o.strided or r in out for r in members for o in self.operands[r] if o.maker == op):
                out.add(op)
        return out

    def reads(self, root: int, inline: Inline) -> dict[int, tuple[float, bool]]:
        """Input tensor -> (elements read, whether any of it is read strided)."""
        members, shares, strided = self.members(root, inline), self.shares(root, inline), self.strided(root, inline)
        out = {}
        for tensor in self.inputs(root, inline):
            once, more, readers = self._demand(members, shares, lambda o, t=tensor: o.tensor == t)
            out[tensor] = (once + more, any(turned or reader in strided for reader, turned in readers))
        return out

    def seconds(self, root: int, inline: Inline, device: Device) -> float:
        """Roofline of one kernel."""
        members, shares, reads = self.members(root, inline), self.shares(root, inline), self.reads(root, inline)
        flops = {op: float(self.graph.flops[op]) * shares[op] for op in members}
        products = {op for op in members if self.category[op] == Category.CONTRACTION}
        prologue = any(o.maker in inline for op in products for o in self.operands[op])
        written = float(sum(self.graph.tensor_bytes[t] for t in self.graph.results(root)))
        paid = touched = written
        busy = float(self.numel[root])
        for tensor, (count, strided) in reads.items():
            size = float(self.graph.tensor_bytes[tensor]) / self.elements[tensor]
            first = min(count, self.elements[tensor])
            paid += size * first * (device.strided_factor if strided else 1.0)
            paid += size * (count - first) * device.reread_factor
            touched += size * first
            busy = max(busy, first)
        memory = paid / (device.bandwidth * (device.cache_speedup if touched <= device.cache_bytes else 1.0))
        memory *= 1.0 + device.spill_factor * max(0, len(reads) - device.spill_inputs)
        arithmetic = sum(f for op, f in flops.items() if op not in products) / device.vector_flops
        product = sum(f for op, f in flops.items() if op in products) / device.contraction_flops
        arithmetic += product * (device.prologue_factor if prologue else 1.0)
        return device.launch + max(arithmetic, memory) / min(1.0, busy / device.saturation)
