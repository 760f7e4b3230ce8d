"""An independent oracle: is a plan valid? Plain Python; shares no code with the tasks that make plans.

It returns one sentence for each error; an empty list means valid. It is not fast.
"""

import math

import numpy as np

from graphopt.core.auto_sharding.sharding_oracle import check_strategies
from graphopt.core.compiler import compiler_choice
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.operators import Category
from graphopt.core.plan import Plans


def check(plan: Plans, machine: Machine) -> list[str]:
    """The errors of a plan (a batch of one)."""
    graph, name = plan.graph, plan.graph.op_names
    wrong = [f"op {name[n]} is on device {d} of {machine.num_devices}" for n, d in enumerate(plan.device[0].tolist())
             if not 0 <= d < machine.num_devices]  # fmt: skip
    first: dict[int, int] = {}  # of the ops that share a device the first that is a kernel; others have none
    for n, leader in enumerate(graph.together.tolist()):
        other = n if plan.inline[0, n] else first.setdefault(leader, n)
        if plan.device[0, n] != plan.device[0, other]:
            wrong.append(f"op {name[n]} is not on the device of op {name[other]}, with which it has to be")
    wrong += [f"op {name[n]} has priority {p}" for n, p in enumerate(plan.priority[0].tolist()) if not math.isfinite(p)]
    if plan.transfer is not None and not np.isfinite(plan.transfer).all():
        wrong.append("a transfer priority is not finite")
    return wrong + _check_inline(graph, plan.inline[0].tolist()) + check_strategies(plan)


def kernels(graph: Graph, inline: list[bool]) -> dict[int, tuple[list[int], list[int]]]:
    """Root op -> (ops computed in its kernel, views left out; distinct tensors that it reads), in op order."""
    base = bases(graph)
    out = {}
    for root in range(graph.num_ops):
        if inline[root]:
            continue
        members, reads, todo = [root], [], [root]
        while todo:
            for tensor in (base[t] for t in graph.operands(todo.pop()).tolist()):
                maker = int(graph.producer[tensor])
                if maker < 0 or not inline[maker]:
                    reads += [] if tensor in reads else [tensor]
                elif maker not in members:
                    members.append(maker)
                    todo.append(maker)
        out[root] = (members, reads)
    return out


def bases(graph: Graph) -> list[int]:
    """The tensor whose bytes each tensor is: views are their first operand."""
    base = list(range(graph.num_tensors))
    for op in range(graph.num_ops):
        if graph.category[op] == Category.VIEW:
            for tensor in graph.results(op) if len(graph.operands(op)) else ():
                base[tensor] = base[int(graph.operands(op)[0])]
    return base


def _check_inline(graph: Graph, inline: list[bool]) -> list[str]:
    asked = compiler_choice(graph)
    if asked is not None:  # the compiler sees to what kernels may hold
        extra = np.flatnonzero(np.array(inline) & ~asked.free & (graph.category != Category.VIEW))
        return [f"op {graph.op_names[op]}, about which the compiler has no choice, is inlined" for op in extra.tolist()]
    wrong, base, name, category = [], bases(graph), graph.op_names, graph.category
    needed = {int(graph.producer[base[t]]) for t in np.flatnonzero(graph.is_output).tolist()}
    found = kernels(graph, inline)
    computed = {member for members, _ in found.values() for member in members}
    for op in range(graph.num_ops):
        if category[op] == Category.VIEW and not inline[op]:
            wrong.append(f"view {name[op]} is stored")
        if inline[op] and category[op] == Category.OPAQUE:
            wrong.append(f"opaque op {name[op]} is inlined")
        if inline[op] and op in needed:
            wrong.append(f"op {name[op]} makes a graph output and is inlined")
        if inline[op] and category[op] != Category.VIEW and op not in computed:
            wrong.append(f"op {name[op]} is inlined and computed in no kernel")
    for root, (members, reads) in found.items():
        heavy = [m for m in members if category[m] in (Category.REDUCTION, Category.CONTRACTION)]
        if len(heavy) > 1:
            wrong.append(f"the kernel of {name[root]} holds {len(heavy)} reductions and contractions")
        if category[root] == Category.OPAQUE and len(members) > 1:
            wrong.append(f"something is inlined into opaque op {name[root]}")
        if any(graph.producer[t] >= root for t in reads):
            wrong.append(f"the kernel of {name[root]} reads a later result")
    return wrong
