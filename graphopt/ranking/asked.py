"""What plans ask of a compiler otherwise than its default, and plans of what was asked.

Shape legend: B plans, N ops.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from graphopt.core.compiler_choice import compiler_choice
from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.knobs import KNOBS
from graphopt.core.plan import Plans

CUT = "cut"
WORDS = ("store", "inline", CUT)
ASSUMED = frozenset({CUT, *(knob.name for knob in KNOBS)})  # choices of plans that may be missing
READS: frozenset[Role | str] = frozenset({Role.FUSION, *ASSUMED})  # what counts of a plan


class Asked(NamedTuple):
    """What a plan asks of the compiler. requests: op -> store, inline or cut; knobs: name -> which of its values."""

    requests: dict[str, str]
    knobs: dict[str, int]

    def key(self, graph: Graph) -> str:
        """Equal for the same asked of the same program."""
        text = json.dumps([graph_key(graph), sorted(self.requests.items()), sorted(self.knobs.items())])
        return sha256(text.encode()).hexdigest()[:24]


def asked_of(plans: Plans, b: int) -> Asked:
    """What a plan of the batch asks otherwise than the compiler's default."""
    graph, names = plans.graph, plans.graph.op_names
    own = compiler_choice(graph)
    inline = plans.inline[b]
    changed = np.zeros(0, np.int64) if own is None else np.flatnonzero(own.free & (inline != own.inline))
    requests = {names[op]: "inline" if inline[op] else "store" for op in changed.tolist()}
    if CUT in plans.choices:
        requests |= {names[op]: "cut" for op in np.flatnonzero(plans.choices[CUT][b]).tolist()}
    settings = {knob.name: int(plans.choices[knob.name][b].flat[0]) for knob in KNOBS if knob.name in plans.choices}
    return Asked(requests, {name: choice for name, choice in settings.items() if choice})


_KEYS: "WeakKeyDictionary[Graph, str]" = WeakKeyDictionary()


def graph_key(graph: Graph) -> str:
    """Equal for graphs of the same program: names of ops and their attributes count."""
    if graph not in _KEYS:
        text = json.dumps([graph.hash, graph.op_names, [dict(of) for of in graph.attributes]], sort_keys=True)
        _KEYS[graph] = sha256(text.encode()).hexdigest()[:16]
    return _KEYS[graph]


def plans_of(graph: Graph, asked: Sequence[Asked]) -> Plans:
    """Plans that ask for these, every op on device 0. Raises KeyError for an op that the graph does not have."""
    own, place = compiler_choice(graph), {name: op for op, name in enumerate(graph.op_names)}
    default = view_inline(graph) if own is None else own.inline | view_inline(graph)
    shape = len(asked), graph.num_ops
    inline, cut = default[None].repeat(len(asked), 0), np.zeros(shape, np.int16)
    knobs = {knob.name: np.zeros(shape, np.int16) for knob in KNOBS}
    for b, one in enumerate(asked):
        for name, word in one.requests.items():
            if word == CUT:
                cut[b, place[name]] = 1
            else:
                inline[b, place[name]] = word == "inline"
        for name, choice in one.knobs.items():
            knobs[name][b, 0] = choice
    return Plans(graph, np.zeros(shape, np.int16), np.zeros(shape), inline, choices={CUT: cut, **knobs})
