"""Requests of plans to a compiler beside its default, plans of such requests, and their lowered code.

Shape legend: B plans, N ops.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from graphopt import cache_dir
from graphopt.core.compiler import KNOBS, Device, compiler_choice
from graphopt.core.errors import ConfigError, UserError, writing
from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph, GraphError
from graphopt.core.plan import Plans, Role
from graphopt.core.utils.whole import whole_file
from graphopt.hardware.measure.builds import Builds, Built
from graphopt.hardware.measure.price_table import Line, PriceTable
from graphopt.hardware.measure.target import Failure

CUT = "cut"
WORDS = ("store", "inline", CUT)
ASSUMED = frozenset({CUT, *(knob.name for knob in KNOBS)})  # choices of plans that may be missing
READS: frozenset[Role | str] = frozenset({Role.FUSION, *ASSUMED})  # parts of a plan that count


class CompilerRequest(NamedTuple):
    """A plan's requests to the compiler. requests: op -> store, inline or cut; knobs: name -> which of its values."""

    requests: dict[str, str]
    knobs: dict[str, int]

    def key(self, graph: Graph) -> str:
        """Equal for equal requests of equal programs."""
        text = json.dumps([graph_key(graph), sorted(self.requests.items()), sorted(self.knobs.items())])
        return sha256(text.encode()).hexdigest()[:24]


def request_of(plans: Plans, b: int) -> CompilerRequest:
    """The request of a plan of the batch: its differences from the compiler's default."""
    graph, names = plans.graph, plans.graph.op_names
    own = compiler_choice(graph)
    inline = plans.inline[b]
    changed = np.zeros(0, np.int64) if own is None else np.flatnonzero(own.free & (inline != own.inline))
    requests = {names[op]: "inline" if inline[op] else "store" for op in changed.tolist()}
    if CUT in plans.choices:
        requests |= {names[op]: "cut" for op in np.flatnonzero(plans.choices[CUT][b]).tolist()}
    settings = {knob.name: int(plans.choices[knob.name][b].flat[0]) for knob in KNOBS if knob.name in plans.choices}
    return CompilerRequest(requests, {name: choice for name, choice in settings.items() if choice})


MEASURED = "take cost=inductor and algo=compiler_search"  # in place of cost models of code for CPUs
_DEVICES: "WeakKeyDictionary[Graph, Device]" = WeakKeyDictionary()


def check_device(graph: Graph, device: Device, name: str, instead: str) -> None:
    """Raises ConfigError unless the graph's program, if any, runs there. name: of the cost model; instead: remedy."""
    if graph not in _DEVICES:
        from graphopt.graphs.readers.pytorch.program_file import program_device

        _DEVICES[graph] = program_device(graph.program, graph.name) if isinstance(graph.program, bytes) else device
    if (there := _DEVICES[graph]) != device:
        raise ConfigError(f"{graph.name} runs on {there}, and {name} prices code for {device}; {instead}, or capture "
                          f"it with dataset.device={device}")  # fmt: skip


_KEYS: "WeakKeyDictionary[Graph, str]" = WeakKeyDictionary()


def graph_key(graph: Graph) -> str:
    """Equal for graphs of the same program: names of ops and their attributes count."""
    if graph not in _KEYS:
        text = json.dumps([graph.hash, graph.op_names, [dict(of) for of in graph.attributes]], sort_keys=True)
        _KEYS[graph] = sha256(text.encode()).hexdigest()[:16]
    return _KEYS[graph]


def plans_of(graph: Graph, requests: Sequence[CompilerRequest]) -> Plans:
    """Plans of these requests, every op on device 0. Raises KeyError for an op that the graph does not have."""
    own, place = compiler_choice(graph), {name: op for op, name in enumerate(graph.op_names)}
    default = view_inline(graph) if own is None else own.inline | view_inline(graph)
    shape = len(requests), graph.num_ops
    inline, cut = default[None].repeat(len(requests), 0), np.zeros(shape, np.int16)
    knobs = {knob.name: np.zeros(shape, np.int16) for knob in KNOBS}
    for b, one in enumerate(requests):
        for name, word in one.requests.items():
            if word == CUT:
                cut[b, place[name]] = 1
            else:
                inline[b, place[name]] = word == "inline"
        for name, choice in one.knobs.items():
            knobs[name][b, 0] = choice
    return Plans(graph, np.zeros(shape, np.int16), np.zeros(shape), inline, choices={CUT: cut, **knobs})


def least_of_other_bits(table: PriceTable, graph: Graph) -> float:
    """The least measured time over the default's of a graph's code that gives other bits; 1 where none is below."""
    own = {line["digest"] for line in table.requests() if line.get("program") == graph_key(graph) and "digest" in line}
    found = (line["ratio"] for line in table.comparisons() if line["digest"] in own and not line.get("equal", True))
    return min(found, default=1.0)


class LoweredRequests:
    """The lines of requests of a table of prices, in one environment; beside them, graphs' programs as files that
    processes read. builds: the processes that lower."""

    def __init__(self, table: PriceTable, environment: str, builds: Builds) -> None:
        self.table, self.environment, self.builds = table, environment, builds
        self._files: WeakKeyDictionary[Graph, Path] = WeakKeyDictionary()

    def line(self, graph: Graph, request: CompilerRequest) -> Line | None:
        """Its result; None where there is none yet."""
        return self.table.lowered(request.key(graph), self.environment)

    def lines(self, graph: Graph, requests: Sequence[CompilerRequest], *, lowers: bool) -> list[Line]:
        """Of each, those of failures that do not last included. Lowers unknown requests; raises UserError where it may
        not."""
        fresh = {one.key(graph): one for one in requests if self.line(graph, one) is None}
        if fresh and not lowers:
            raise self.unknown(graph)
        with self.builds.batch():
            asking = {key: self.builds.ask("lower", self.request(graph, one)) for key, one in fresh.items()}
            made = {key: self.remember(graph, fresh[key], answer.result()) for key, answer in asking.items()}
        return [self.line(graph, one) or made[one.key(graph)] for one in requests]

    def unknown(self, graph: Graph) -> UserError:
        """The error of a request without a line, where nothing may be lowered."""
        return UserError(f"{self.table.path} has no line of a plan of {graph.name} in the environment "
                         f"{self.environment!r}; set environment=null to lower it here")  # fmt: skip

    def request(self, graph: Graph, request: CompilerRequest) -> dict[str, Any]:
        """As build processes take it."""
        return {"program": str(self.file(graph)), "requests": request.requests, "knobs": request.knobs}

    def file(self, graph: Graph) -> Path:
        """The graph's program. Raises GraphError where it has none."""
        if not isinstance(graph.program, bytes):
            raise GraphError(f"{graph.name} comes without the program that is to be lowered; use dataset=lowered")
        if graph not in self._files:
            path = cache_dir() / "programs" / f"{graph_key(graph)}.program.json.gz"
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(path) as file:
                    file.write(graph.program)
            self._files[graph] = path
        return self._files[graph]

    def remember(self, graph: Graph, request: CompilerRequest, made: Built | Failure) -> Line:
        """Stores a request and its result, unless it failed by chance. Gives its line."""
        line = {"request": request.key(graph), "environment": self.environment, "program": graph_key(graph),
                **request._asdict()}  # fmt: skip
        if isinstance(made, Failure):
            line |= {"failure": made.reason}
        else:
            line |= {"digest": made["digest"], "features": made["features"]}
        if self.line(graph, request) is None and not (isinstance(made, Failure) and not made.lasting):
            with self.table.turn():
                self.table.add(line)
        return line
