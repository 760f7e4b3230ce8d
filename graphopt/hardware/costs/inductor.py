"""`Inductor`: the time that a program takes as TorchInductor compiles it, measured on this machine; and
`GeneratedCode`, the same predicted from the code that it is lowered to.

A plan names the values that are stored, inlined or kept apart otherwise than by default, and sets knobs. Its source is
compiled and timed by turns with that of the default; a price is the ratio times the default's time.

Shape legend: B plans.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from graphopt import cache_dir
from graphopt.core.compiler import KNOBS
from graphopt.core.errors import Unmeasured
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans, Role
from graphopt.core.utils.marks import Between, Positive
from graphopt.hardware.code_time import CodeTime
from graphopt.hardware.costs.calibrated import preset_named
from graphopt.hardware.measure.builds import BuildPipeline, Built, shared_builds
from graphopt.hardware.measure.environment import USERS_MALLOC, environment_here
from graphopt.hardware.measure.price_table import Environment, Line, PriceTable, TableFile
from graphopt.hardware.measure.rounds import timings_of_race
from graphopt.hardware.measure.service import Service, fresh_rounds
from graphopt.hardware.measure.target import Comparing, Failure, Measured, Target, Timing
from graphopt.hardware.requests import (
    ASSUMED,
    MEASURED,
    READS,
    CompilerRequest,
    LoweredRequests,
    check_device,
    request_of,
)
from graphopt.problems.cost_model import CostModel, Prices

TABLE = Path("measured") / "inductor.jsonl"
Table = Annotated[str | None, TableFile(usual=TABLE)]
SEED = 0  # of a program's inputs
NOTHING = CompilerRequest({}, {})
Allocator = Literal["user", "keep"]


class Inductor(CostModel):
    """table: file of measured times; null: measured/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt. environment: null:
    this machine's; else only the table's lines of that one count, and nothing is compiled or measured. fresh_processes:
    0: a process that stays measures, for searching; else a price is a race with the default in so many fresh processes,
    for judging. allocator: of processes that measure: `user`, they allocate as a user's process does, `keep`, they keep
    freed memory. builders: processes that lower and compile; build_seconds: for one of them to answer.

    A plan that does not compile, crashes or hangs costs inf. So does one that gives other bits than the default, unless
    it decides about knobs that change rounding.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    deterministic = False
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, table: Table, environment: Environment,
                 fresh_processes: Annotated[int, Between(0, 64)], allocator: Allocator,
                 builders: Annotated[int, Between(1, 256)], build_seconds: Positive,
                 measuring: Comparing) -> None:  # fmt: skip
        self.name, self.device = name, measuring.device
        self.service = Service(measuring, table=cache_dir() / TABLE if table is None else Path(table), name=name,
                               environment=environment, libraries=("torch",), kind="inductor",
                               processes=fresh_processes, keeps_memory=allocator == "keep")  # fmt: skip
        self.builds = shared_builds(builders, build_seconds)
        self.lowered = LoweredRequests(self.service.table, self.service.environment, self.builds)
        self._pipeline = BuildPipeline(self.builds, self.service, target_of)
        self._defaults: WeakKeyDictionary[Graph, Target] = WeakKeyDictionary()

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.service.environment}

    def price(self, plans: Plans) -> Prices:
        found = self.measured(plans.graph, [request_of(plans, b) for b in range(len(plans))])
        close = any(knob.numerics == "close" and knob.name in plans.choices for knob in KNOBS)
        timings = [one if isinstance(one, Timing) and (one.equal or close) else None for one in found]
        return Prices(
            np.array([np.inf if t is None else t.seconds for t in timings]),
            np.array([float(t is None) for t in timings]),
            np.array([0.0 if t is None else t.noise for t in timings]),
            np.array([0 if t is None else t.rounds for t in timings]),
        )

    def measured(self, graph: Graph, requests: Sequence[CompilerRequest]) -> list[Measured]:
        """A timing for each, or why there is none. Raises Unmeasured where the default itself cannot be run, and
        UserError where the table lacks one and nothing may be measured: before anything is lowered."""
        default = self.default(graph)
        known = [self._known(graph, default, request) for request in requests]
        fresh = [i for i, answer in enumerate(known) if answer is None]
        if fresh and not self.service.measures:
            raise self.lowered.unknown(graph)
        if fresh:
            evaluated = self._pipeline.evaluate(default, [self.lowered.request(graph, requests[i]) for i in fresh])
            for i, one in zip(fresh, evaluated, strict=True):
                made = one.measured if one.lowered is None else one.lowered
                if not isinstance(made, Timing):
                    self.lowered.remember(graph, requests[i], made)
                known[i] = one.measured
        return [answer for answer in known if answer is not None]

    def _known(self, graph: Graph, default: Target, request: CompilerRequest) -> Measured | None:
        line = self.lowered.line(graph, request)
        if line is None:
            return None
        if "failure" in line:
            return Failure(line["failure"], lasting=True)
        if line["digest"] == default.digest:
            return self.service.reference(default)
        return self.service.known(default, Target("inductor", line["digest"], {}))

    def kept_and_not(self, graph: Graph) -> tuple[float, float]:
        """Seconds of the default in fresh processes that keep memory, and in such with the user's malloc."""
        default, service, found = self.default(graph), self.service, list[float]()
        for keeps in (True, False):
            taken = fresh_rounds(default, [default], service.how, service.processes or 3, keeps_memory=keeps)  # type: ignore[arg-type]
            if isinstance(taken, Failure):
                raise Unmeasured(f"{graph.name}: {taken.reason}")
            found.append(timings_of_race(taken)[0].seconds)
        return found[0], found[1]

    def flushed(self, graph: Graph, request: CompilerRequest) -> float:
        """The time of a graph's code on a CPU with denormal numbers flushed to zero, over its time without. 1 where it
        cannot be run."""
        found = self.builds.ask("flush", self.lowered.request(graph, request)).result()
        return 1.0 if isinstance(found, Failure) else float(found["ratio"])

    def default(self, graph: Graph) -> Target:
        """The program as the compiler makes it by itself. Raises Unmeasured where it cannot be compiled."""
        if graph in self._defaults:
            return self._defaults[graph]
        check_device(graph, self.device, self.name, "set cost.measuring.device to where it runs")
        if not self.service.measures:
            line = self.lowered.line(graph, NOTHING)
            if line is None or "failure" in line:
                raise self.lowered.unknown(graph)
            self._defaults[graph] = Target("inductor", line["digest"], {})
            return self._defaults[graph]
        if self.lowered.line(graph, NOTHING) is None and not self.service.processes:
            self.service.pool.begin()  # while the default is being built: its time is not known
        (lowered,) = self._pipeline.lower([self.lowered.request(graph, NOTHING)])
        compiled = lowered if isinstance(lowered, Failure) else self.builds.ask("compile", lowered).result()
        if isinstance(compiled, Failure):
            raise Unmeasured(f"{graph.name} cannot be compiled: {compiled.reason}")
        assert not isinstance(lowered, Failure)
        self.lowered.remember(graph, NOTHING, lowered)
        self._defaults[graph] = target_of({**lowered, "program": str(self.lowered.file(graph))})
        return self._defaults[graph]


def target_of(built: Built) -> Target:
    """A lowered program, as it is timed."""
    payload = {"source": built["source"], "digest": built["key"], "program": built["program"], "seed": SEED}
    return Target("inductor", built["digest"], payload)


class GeneratedCode(CostModel):
    """Nothing is compiled or run. The work of the code (instructions by kind, bytes by distance, loops) is weighed by
    the costs that `graphopt measure calibrate` measured (`graphopt.hardware.code_time`).

    preset: as of `cost=calibrated`. table, environment: of lowered code, as those of `cost=inductor`, which may share
    them. builders, build_seconds: as there.

    A plan that cannot be lowered costs inf.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, preset: str | None, table: Table, environment: Environment,
                 builders: Annotated[int, Between(1, 256)], build_seconds: Positive) -> None:  # fmt: skip
        self.name, self._lowers = name, environment is None
        self.time = CodeTime.of_preset(preset_named(preset))
        here = environment or f"{environment_here('cpu', 1, ('torch',))}, {USERS_MALLOC}"
        prices = PriceTable(cache_dir() / TABLE if table is None else Path(table))
        self.requests = LoweredRequests(prices, here, shared_builds(builders, build_seconds))

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.requests.environment}

    def price(self, plans: Plans) -> Prices:
        lines = self.lowered(plans.graph, [request_of(plans, b) for b in range(len(plans))])
        failed = np.array(["failure" in line for line in lines])
        cost = [np.inf if "failure" in line else self.time.of(line["features"]) for line in lines]
        return Prices(np.array(cost), failed.astype(np.float64))

    def lowered(self, graph: Graph, requests: Sequence[CompilerRequest]) -> list[Line]:
        """`digest` and `features` of the code of each, or `failure`."""
        check_device(graph, "cpu", self.name, MEASURED)
        return self.requests.lines(graph, requests, lowers=self._lowers)
