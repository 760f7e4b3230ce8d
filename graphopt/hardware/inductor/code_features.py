"""Features of generated code before it is compiled: work, traffic and structure of its kernels.

The work is read off the text of the C++ source: instructions by kind, as often as their loops make them run. `v.KIND`
is done on vectors, `s.KIND` on one number: `load`, `store`, `div`, functions by their names, and `simple`, all other
arithmetic. Counted beside these are `part_load` and `part_store`, of fewer numbers than a vector has, which go through
a buffer; `wide`, lines on numbers of 64 bits, which take two vectors. Of truth values in memory there are `mask_load`
and `mask_store`, and how many of these are mispredicted (`truth_values`): `missed_load`, `missed_store`. `strided`:
reads and writes that move to another cache line with every iteration. Constants and broadcasts are free.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseSchedulerNode

from graphopt.hardware.inductor.truth_values import missed_share_of

_NUMBER = r"(?:static_cast<\w+>\()?\(?(-?\d+)L?\)*"
_FOR = re.compile(rf"for\s*\(\s*(?:int64_t|long|int)\s+(\w+)\s*=\s*{_NUMBER};\s*\1\s*<\s*{_NUMBER};"
                  rf"\s*\1\s*(?:\+\+|\+=\s*{_NUMBER})")  # fmt: skip
_PART = re.compile(r"C10_(?:UN)?LIKELY\(([^{]*)\)")
_WITHIN = re.compile(rf"(\w+) >= {_NUMBER} && \1 < {_NUMBER}")
_INDEX = re.compile(r"static_cast<int64_t>\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_POINTER = re.compile(r"\b\w+ \+ i\b")
_TARGET = re.compile(r"^(?:auto|float|double|int64_t|bool)?\s*&?(\w+) = (.*);$")
_WRITTEN = re.compile(r"^\w+\[[^\]]*\] = ")
_WIDE = re.compile(r"Vectorized|VecMask|\.store\(|loadu")
_TWO = re.compile(r"\b(?:int64_t|double), ?2>")
_PLACE = re.compile(r"(?:\w\[|\w \+ )static_cast<int64_t>\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_LINE = 16  # numbers
_BASE = re.compile(r"\b(\w+)(?: \+ |\[)static_cast")
_COUNTED = re.compile(rf"(loadu|store)\(.*, {_NUMBER}")  # the last argument: how many numbers
_VALUE = re.compile(r"\btmp\w*")
_READ = re.compile(r"\w+\[")
_NAME = re.compile(r"(?<![\w:])(?:std::|at::vec::|c10::|\.)?([a-z]\w*)(?:<[^()]*?>)?\(")
_FREE = frozenset({"static_cast", "decltype", "float", "double", "bool", "int", "int64_t", "int32_t", "convert", "cast",
                   "get", "to_float", "all_zero", "template", "if", "for", "loadu", "store", "c", "data", "alignas",
                   "alignof", "size_t"})  # fmt: skip
_NONE = re.compile(r"tmp\d+$|.*helper\d+$|inductor_|unique_ptr$|make_unique$")  # calls that do no work of a loop
_SIMPLE = frozenset({"blendv", "neg", "abs", "maximum", "minimum", "max", "min", "fmadd", "clamp_min", "clamp_max",
                     "max_propagate_nan", "min_propagate_nan", "clamp"})  # fmt: skip
_ARITHMETIC = re.compile(r"(?<=[\w)\]]) [-+*<>&|?^]=? |(?<=[\w)\]]) (?:==|!=|<=|>=|&&|\|\|) |[!~](?=\w)")


class _Loop(NamedTuple):
    begin: int
    end: int
    step: int

    @property
    def trips(self) -> int:
        return max(0, -(-(self.end - self.begin) // self.step))


class _Scope(NamedTuple):
    """A block in braces. runs: how often; loops: by their variables, those around it."""

    runs: float
    loops: Mapping[str, _Loop]


def source_work(kernel: str, missed: Sequence[float] = ()) -> Counter[str]:
    """Instruction -> how often it runs, of the text of one kernel. missed: of each argument the share of truth values
    that are mispredicted."""
    made, vectors = Counter[str](), set[str]()
    arguments = re.findall(r"(\w+)\* *(?:__restrict__ )?(\w+)", kernel[: kernel.find("\n{")])
    masks = {
        name: share for (kind, name), share in zip(arguments, [*missed, *[0.0] * len(arguments)]) if kind == "bool"
    }
    scopes, ahead = [_Scope(1.0, {})], None  # ahead: of the braces, or the statement, that come next
    for text in kernel[kernel.find("\n{") + 1 :].splitlines():
        line, now = text.strip(), ahead or scopes[-1]
        inner = _entered(line, now)
        if inner is not None:
            ahead = inner
        elif not line.startswith(("#", "{", "}")):
            made.update(
                {kind: int(now.runs * count) for kind, count in _statement(line, vectors, masks, now.loops).items()}
            )
            ahead = None
        for brace in re.findall(r"[{}]", line):
            if brace == "{":
                scopes.append(ahead or scopes[-1])
                ahead = None
            elif len(scopes) > 1:
                scopes.pop()
    return made


def _entered(line: str, now: _Scope) -> _Scope | None:
    """The scope that a loop, or a condition on the place in one, opens."""
    if found := _FOR.search(line):
        loop = _Loop(int(found[2]), int(found[3]), int(found[4] or 1))
        return _Scope(now.runs * loop.trips, {**now.loops, found[1]: loop})
    if found := _PART.search(line):
        return _Scope(now.runs * _share(found[1], now.loops), now.loops)
    return None


def _share(condition: str, loops: Mapping[str, _Loop]) -> float:
    """The share of a loop's iterations in which a part of its body runs: the vectors, or the remainder."""
    share = 1.0
    for name, low, high in _WITHIN.findall(condition):
        if name in loops:
            share *= _Loop(int(low), int(high), loops[name].step).trips / max(1, loops[name].trips)
    return min(share, 1.0)


def _statement(line: str, vectors: set[str], masks: Mapping[str, float], loops: Mapping[str, _Loop]) -> Counter[str]:
    """Of one line; adds to the names that hold vectors. masks: of truth values in memory, with shares of
    `missed_shares`."""
    plain = _POINTER.sub("p", _INDEX.sub("i", line))
    named, written = _TARGET.match(plain), _WRITTEN.match(plain)
    value = named[2] if named else plain[written.end() :] if written else plain
    wide = (
        "Vectorized" in value
        or "VecMask" in value
        or ".store(" in value
        or "loadu" in value
        or any(name in vectors for name in re.findall(r"\b(?:tmp|out)\w*", value))
    )
    if named and wide:
        vectors.add(named[1])
    elif named:
        vectors.discard(named[1])
    kinds = _kinds(value) + Counter({"store": int(".store(" in value or written is not None)})
    lanes = max((loop.step for loop in loops.values()), default=1)
    kinds.update(f"part_{verb.removesuffix('u')}" for verb, count in _COUNTED.findall(line) if int(count) < lanes)
    way = "store" if ".store(" in value or written else "load"
    for name in _BASE.findall(line):
        if name in masks:
            kinds.update({f"mask_{way}": 1, f"missed_{way}": masks[name] * (lanes if wide else 1)})
    kinds.update({"wide": int(_TWO.search(line) is not None), "strided": _strided(line, loops)})
    return +Counter({f"{'v' if wide else 's'}.{kind}": count for kind, count in kinds.items()})


def _strided(line: str, loops: Mapping[str, _Loop]) -> int:
    """Places in memory that move by a cache line or more in the innermost loop."""
    moving = next((name for name, loop in [*loops.items()][::-1] if loop.trips > 1), "")
    steps = [re.search(rf"\b(\d+)L\*{moving}\b", place) for place in _PLACE.findall(line) if moving]
    return sum(step is not None and int(step[1]) >= _LINE for step in steps)


def _kinds(value: str) -> Counter[str]:
    found = Counter(name for name in _NAME.findall(value) if name not in _FREE and not _NONE.match(name))
    simple = sum(found.pop(name, 0) for name in _SIMPLE) + len(_ARITHMETIC.findall(value))
    loads = value.count("loadu") + len(_READ.findall(value))
    division = len(re.findall(r" / |\)/\(", value))
    return +Counter({**found, "simple": simple, "load": loads, "div": division})


_LOOP = re.compile(r"^( *)for\(", re.MULTILINE)
_CALL = re.compile(r"^ +(\w+)\((.*)\)$", re.MULTILINE)
NEAR, MIDDLE = 1 << 20, 1 << 24  # bytes: in a core's own cache, in one that cores share
_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\((.*?)^'''\)", re.MULTILINE | re.DOTALL)


def features(graph: GraphLowering, source: str, missed: Mapping[str, float]) -> dict[str, float]:
    """`bytes`: read and written by kernels; `kernels` and `nests` (outermost loops) in the source; `calls`: of
    functions of libraries, `flops` theirs; of C++ only `v.KIND` and `s.KIND` of `source_work`; `bytes.near`,
    `bytes.middle`, `bytes.far`: by the bytes that were touched since their last use, so by their cache. missed: nodes
    of truth values -> the share of them that is mispredicted."""
    calls = [leaf for node in graph.scheduler.nodes for leaf in node.get_nodes() if leaf.is_extern()]
    kernels = _KERNEL.findall(source)
    given = {name: arguments.split(", ") for name, arguments in _CALL.findall(source)}
    shares = {name: [missed_share_of(graph, buffer, missed) for buffer in given.get(name, [])] for name, _ in kernels}
    work = sum((source_work(kernel, shares[name]) for name, kernel in kernels), Counter[str]())
    found = {
        "bytes": float(graph.count_bytes()[0]),
        "calls": float(len(calls)),
        "flops": float(sum(leaf.estimate_flops() or 0 for leaf in calls)),
        "kernels": float(len(kernels) or source.count("async_compile.triton(")),
        "nests": float(sum(_nests(kernel) for _, kernel in kernels)),
    }
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
                    distance = size
                    for other in reversed([*recent]):
                        if other == name:
                            break
                        distance += recent[other]
                    found[f"bytes.{'near' if distance <= NEAR else 'middle' if distance <= MIDDLE else 'far'}"] += size
                recent.pop(name, None)
                recent[name] = size
    return found


def _nests(kernel: str) -> int:
    """Loops that are in no other."""
    depths = [len(indent) for indent in _LOOP.findall(kernel)]
    nests, outer = 0, -1
    for depth in depths:
        if outer < 0 or depth <= outer:
            nests, outer = nests + 1, depth
    return nests
