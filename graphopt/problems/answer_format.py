"""The format of stored answers, checked before anything is computed from them.

A header and arrays come from a file, so every field is checked: its type, its size, its range. An error is one
sentence; the rest of the program relies on the checks.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable
from graphopt.core.plan import CHOICE
from graphopt.core.utils.limits import MIB, parse_json
from graphopt.core.utils.plain_json import places_of_nan, refuse_nan

Arrays = dict[str, NDArray[Any]]
FILE_BYTES = 256 * MIB  # of all arrays: an op takes tens of bytes
HEADER_BYTES = 16 * MIB
TEXT_BYTES = 64 * MIB  # of op names, or of a program
CHOICES = 2**15 - 1  # of a head: choices are int16
PRICES = ("initial", "searched", "judged", "noise")
PLAN_ARRAYS = frozenset({"device", "priority", "inline", "transfer"})


def json_bytes(value: Any) -> NDArray[np.uint8]:
    """JSON as an array of bytes. Raises ValueError where a number is NaN."""
    refuse_nan(value)
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def read_text(arrays: Arrays, name: str) -> Any:
    """The JSON value that an array of bytes holds. Raises Unreadable."""
    return parse_json(part(arrays, name).tobytes(), f"its {name}", TEXT_BYTES)


def check_header(header: Any) -> None:
    """Fields of every format: graph, prices, configuration, row, versions. Raises Unreadable."""
    _must(isinstance(header, dict), "its header is no object")
    graph = _object(header, "graph")
    _must(all(isinstance(graph.get(key), str) for key in ("name", "family", "hash")), "its graph has no name or hash")
    _must(re.fullmatch("[0-9a-f]{1,64}", graph["hash"]), "the hash of its graph is none")
    _must(_whole(graph.get("ops"), 1, 2**31), "the number of ops of its graph is none")
    prices = _object(header, "prices")
    _must(all(_number(prices.get(key)) for key in PRICES), f"its prices are not the numbers {', '.join(PRICES)}")
    _must(0 <= prices["noise"] < math.inf, "the noise of its prices is no share")
    for key in ("config", "row", "versions"):
        _object(header, key)
    sources = header.get("sources", {})
    _must(isinstance(sources, dict) and all(_texts(found) and len(found) == 2 for found in sources.values()),
          "its sources are no pairs of a module and a line")  # fmt: skip
    unknown = next(places_of_nan(header), None)
    _must(unknown is None, f"{unknown} of its header is no number (NaN)")


def check_heads(header: Mapping[str, Any]) -> None:
    """The heads of a decision and their fields. Raises Unreadable."""
    heads = header.get("heads")
    fine = isinstance(heads, list) and all(
        isinstance(head, list) and len(head) == 2 and isinstance(head[0], str) and _whole(head[1], 1, CHOICES)
        for head in heads
    )
    _must(fine and heads, f"its heads are no pairs of a name and a number of choices, at most {CHOICES:,}")
    names = [name for name, _ in header["heads"]]
    _must(len({*names}) == len(names), "two of its heads have one name")
    _must(_texts(header.get("described", [])) and {*header.get("described", [])} <= {*names}, "it describes no heads")
    _must(_texts(header.get("edits", [])), "its edits are no texts")


def op_names(arrays: Arrays) -> tuple[str, ...]:
    """[N] distinct names. Raises Unreadable."""
    names = read_text(arrays, "op_names")
    _must(_texts(names) and len({*names}) == len(names), "its op names are no list of distinct texts")
    return tuple(names)


def choices(arrays: Arrays, name: str, ops: int, counts: Sequence[int]) -> NDArray[np.int16]:
    """[N, H] choices, each below its head's number. Raises Unreadable."""
    found = part(arrays, name)
    _must(found.shape == (ops, len(counts)), f"its arrays disagree with its {ops:,} op names: {name} is {found.shape}")
    _must(found.dtype.kind in "iu", f"its {name} are no whole numbers")
    wrong = np.argwhere((found < 0) | (found >= np.array(counts)))
    if len(wrong):
        op, head = wrong[0].tolist()
        raise Unreadable(f"op {op} has the choice {found[op, head]} in {name}, of {counts[head]}")
    return found.astype(np.int16)


def trace(arrays: Arrays) -> NDArray[np.float64]:
    """[S, 3] evaluations, seconds, best cost. Raises Unreadable."""
    found = part(arrays, "trace")
    _must(found.ndim == 2 and found.shape[1] == 3 and found.dtype.kind in "iuf", "its trace is no [S, 3] numbers")
    _must(not np.isnan(found).any(), "its trace holds what is no number")
    return found.astype(np.float64)


def plan(arrays: Arrays, ops: int, heads: Mapping[str, int]) -> Arrays:
    """The arrays of a stored plan; none when the choices are the answer. Raises Unreadable."""
    found = {name.removeprefix("plan_"): array for name, array in arrays.items() if name.startswith("plan_")}
    if not found:
        return {}
    chosen = {name for name in found if name.startswith(CHOICE)}
    _must(found.keys() - chosen | {"transfer"} == PLAN_ARRAYS, f"its plan has {', '.join(sorted(found))}")
    for name in found.keys() - chosen:
        fits = found[name].ndim == 2 if name == "transfer" else found[name].shape == (ops,)
        _must(fits and np.isfinite(found[name]).all(), f"{name} of its plan is no array of numbers, one for each op")
    for name in chosen:
        count = heads.get(name.removeprefix(CHOICE), 0)
        whole = found[name].dtype.kind in "iu" and ((found[name] >= 0) & (found[name] < count)).all()
        _must(whole, f"{name[:80]} of its plan is no array of choices, each below its head's number")
    _must(found["device"].dtype.kind in "iu" and found["inline"].dtype.kind in "biu", "its plan is of other types")
    _must(found["device"].min() >= 0 and found["device"].max() < CHOICES, "its plan uses devices that cannot be")
    return found


def check_rewriting(header: Mapping[str, Any]) -> None:
    """The rules that made a rewritten program, and the ops that it replaces. Raises Unreadable."""
    _must(_texts(header.get("rules")), "its rules are no texts")
    _must(_texts(header.get("replaced", [])), "the ops that it replaces are no texts")


def part(arrays: Arrays, name: str) -> NDArray[Any]:
    _must(name in arrays, f"it has no {name}")
    return arrays[name]


def _object(header: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = header.get(key)
    if not isinstance(value, dict):
        raise Unreadable(f"its {key} is no object")
    return value


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: Any) -> bool:
    """A number that a float can hold, infinite ones too (infeasible plans cost inf)."""
    return (isinstance(value, float) and not math.isnan(value)) or _whole(value, -(2**1023), 2**1023)


def _must(fine: Any, otherwise: str) -> None:
    if not fine:
        raise Unreadable(otherwise)
