"""What can be told of generated code before it is compiled: work, traffic and structure of its kernels."""

import re
from collections import Counter
from math import prod
from typing import Any

from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import SchedulerNode

_LOOP = re.compile(r"^( *)for\(", re.MULTILINE)
_KERNEL = re.compile(r"async_compile\.cpp_pybinding\(.*?^'''\)", re.MULTILINE | re.DOTALL)


def features(graph: GraphLowering, source: str) -> dict[str, float]:
    """`ops.NAME`: evaluations of Inductor's operation NAME in loops, per run; `bytes`: read and written by kernels;
    `kernels`, `nests` (outermost loops) and `scalar_loops` (innermost loops that are not vectorised) in the source;
    `calls`: of functions of libraries; `steps`: parts of kernels before fusion."""
    leaves = [leaf for node in graph.scheduler.nodes for leaf in node.get_nodes()]
    loops = [leaf for leaf in leaves if isinstance(leaf, SchedulerNode)]
    kernels = _KERNEL.findall(source)
    found = {
        "bytes": float(graph.count_bytes()[0]),
        "calls": float(sum(leaf.is_extern() for leaf in leaves)),
        "steps": float(len(loops)),
        "kernels": float(len(kernels)),
        "nests": float(sum(_nests(kernel) for kernel in kernels)),
        "vectors": float(source.count("Vectorized<") > 0),
    }
    return found | {f"ops.{name}": count for name, count in sorted(_evaluations(loops).items())}


def _evaluations(loops: list[Any]) -> Counter[str]:
    made: Counter[str] = Counter()
    for loop in loops:
        points = float(prod(int(size) for group in loop.get_ranges() for size in group))
        for name, count in loop._body.op_counts.items():
            made[name] += count * points
    return made


def _nests(kernel: str) -> int:
    """Loops that are in no other."""
    depths = [len(indent) for indent in _LOOP.findall(kernel)]
    nests, outer = 0, -1
    for depth in depths:
        if outer < 0 or depth <= outer:
            nests, outer = nests + 1, depth
    return nests
