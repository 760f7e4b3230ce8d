"""What can be told of generated code before it is compiled: work, traffic and structure of its kernels."""

import re
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseSchedulerNode, SchedulerNode

from graphopt.inductor.source_work import source_work

_LOOP = re.compile(r"^( *)for\(", re.MULTILINE)
NEAR, MIDDLE = 1 << 20, 1 << 24  # bytes: in a core's own cache, in one that cores share
_KERNEL = re.compile(r"async_compile\.cpp_pybinding\(.*?^'''\)", re.MULTILINE | re.DOTALL)


def features(graph: GraphLowering, source: str) -> dict[str, float]:
    """`ops.NAME`: evaluations of Inductor's operation NAME in loops, per run; `bytes`: read and written by kernels;
    `kernels`, `nests` (outermost loops) and `scalar_loops` (innermost loops that are not vectorised) in the source;
    `calls`: of functions of libraries, `flops` theirs; `steps`: parts of kernels before fusion; `v.KIND`, `s.KIND` and
    `trips` of `source_work`; `bytes.near`, `bytes.middle`, `bytes.far`: by what was read and written since the same
    bytes were last touched, which says the cache they are in."""
    leaves = [leaf for node in graph.scheduler.nodes for leaf in node.get_nodes()]
    loops = [leaf for leaf in leaves if isinstance(leaf, SchedulerNode)]
    kernels = _KERNEL.findall(source)
    found = {
        "bytes": float(graph.count_bytes()[0]),
        "calls": float(sum(leaf.is_extern() for leaf in leaves)),
        "flops": float(sum(leaf.estimate_flops() or 0 for leaf in leaves if leaf.is_extern())),
        "steps": float(len(loops)),
        "kernels": float(len(kernels)),
        "nests": float(sum(_nests(kernel) for kernel in kernels)),
        "vectors": float(source.count("Vectorized<") > 0),
    }
    work = sum((source_work(kernel) for kernel in kernels), Counter[str]())
    found |= {f"ops.{name}": count for name, count in sorted(_evaluations(loops).items())}
    return found | _traffic(graph.scheduler.nodes) | {kind: float(work[kind]) for kind in sorted(work)}


def _traffic(nodes: list[BaseSchedulerNode]) -> dict[str, float]:
    """Bytes by the distance to their last use, in the order in which kernels run, over and over."""
    touched = [node.get_read_write_buffer_accesses(include_reads=True, include_writes=True) for node in nodes]
    recent: dict[str, int] = {}  # the last is the latest
    found = {"bytes.near": 0.0, "bytes.middle": 0.0, "bytes.far": 0.0}
    for turn in range(2):
        for node in touched:
            for name, size in node.items():
                if turn:
                    found[_level(name, size, recent)] += size
                recent.pop(name, None)
                recent[name] = size
    return found


def _level(name: str, size: int, recent: Mapping[str, int]) -> str:
    distance = size
    for other in reversed([*recent]):
        if other == name:
            break
        distance += recent[other]
    return "bytes.near" if distance <= NEAR else "bytes.middle" if distance <= MIDDLE else "bytes.far"


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
