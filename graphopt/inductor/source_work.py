"""What the kernels of a generated C++ source do per run, read off its text: instructions by kind, as often as their
loops make them run.

`v.KIND` is done on whole vectors, `s.KIND` on one number: `load`, `store`, `div`, functions by their names, and
`simple`, all other arithmetic. `trips`: iterations of loops. Constants and broadcasts are free.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

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
_VALUE = re.compile(r"\btmp\w*")
_READ = re.compile(r"\w+\[")
_NAME = re.compile(r"(?<![\w:])(?:std::|at::vec::|c10::|\.)?([a-z]\w*)(?:<[^()]*?>)?\(")
_FREE = frozenset({"static_cast", "decltype", "float", "double", "bool", "int", "int64_t", "int32_t", "convert", "cast",
                   "get", "to_float", "all_zero", "template", "if", "for", "loadu", "store", "c", "data"})  # fmt: skip
_NONE = re.compile(
    r"tmp\d+$|.*helper\d+$|inductor_|unique_ptr$|make_unique$"
)  # what is called, but does no work of a loop
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
    """What stands in braces. runs: how often; loops: by their variables, those around it."""

    runs: float
    loops: Mapping[str, _Loop]


def source_work(kernel: str) -> Counter[str]:
    """Instruction -> how often it runs, of the text of one kernel."""
    made, vectors = Counter[str](), set[str]()
    scopes, ahead = [_Scope(1.0, {})], None  # ahead: of the braces, or the statement, that come next
    for text in kernel[kernel.find("\n{") + 1 :].splitlines():
        line, now = text.strip(), ahead or scopes[-1]
        inner = _entered(line, now)
        if inner is not None:
            ahead = inner
            made["trips"] += int(inner.runs) * (len(inner.loops) > len(now.loops))
        elif not line.startswith(("#", "{", "}")):
            made.update({kind: int(now.runs * count) for kind, count in _statement(line, vectors).items()})
            ahead = None
        for brace in re.findall(r"[{}]", line):
            if brace == "{":
                scopes.append(ahead or scopes[-1])
                ahead = None
            elif len(scopes) > 1:
                scopes.pop()
    return made


def _entered(line: str, now: _Scope) -> _Scope | None:
    """What a loop, or a condition on the place in one, opens."""
    if found := _FOR.search(line):
        loop = _Loop(int(found[2]), int(found[3]), int(found[4] or 1))
        return _Scope(now.runs * loop.trips, {**now.loops, found[1]: loop})
    if found := _PART.search(line):
        return _Scope(now.runs * _share(found[1], now.loops), now.loops)
    return None


def _share(condition: str, loops: Mapping[str, _Loop]) -> float:
    """Of a loop's iterations, those in which a part of its body runs: the vectors, or what is left over."""
    share = 1.0
    for name, low, high in _WITHIN.findall(condition):
        if name in loops:
            share *= _Loop(int(low), int(high), loops[name].step).trips / max(1, loops[name].trips)
    return min(share, 1.0)


def _statement(line: str, vectors: set[str]) -> Counter[str]:
    """Of one line; adds to the names that hold vectors."""
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
    return Counter({f"{'v' if wide else 's'}.{kind}": count for kind, count in kinds.items()})


def _kinds(value: str) -> Counter[str]:
    found = Counter(name for name in _NAME.findall(value) if name not in _FREE and not _NONE.match(name))
    simple = sum(found.pop(name, 0) for name in _SIMPLE) + len(_ARITHMETIC.findall(value))
    loads = value.count("loadu") + len(_READ.findall(value))
    division = len(re.findall(r" / |\)/\(", value))
    return +Counter({**found, "simple": simple, "load": loads, "div": division})
