"""`Inductor`: the time that a program takes as TorchInductor compiles it, measured on this machine.

What is stored, inlined or kept apart otherwise than by default is asked of the compiler, its knobs are set, the source
that comes of it is compiled and timed by turns with that of the default. A price is that
ratio times the default's time.

Shape legend: B plans.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from graphopt import cache_dir
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.plan import Plans
from graphopt.costs.tables import Environment, TableFile
from graphopt.errors import ConfigError, Unmeasured
from graphopt.measure.build_pipeline import BuildPipeline, Evaluated, Skipped
from graphopt.measure.builds import Builds, Built
from graphopt.measure.service import Service
from graphopt.measure.subject import Comparing, Failure, Measured, Subject, Timing
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.ranking.asked import ASSUMED, READS, Asked, asked_of
from graphopt.ranking.lowered_requests import LoweredRequests
from graphopt.ranking.screen import Screen, keep_of
from graphopt.utils.ranges import Between, Positive

TABLE = Path("measured") / "inductor.jsonl"
Table = Annotated[str | None, TableFile(usual=TABLE)]
SEED = 0  # of a program's inputs
NOTHING = Asked({}, {})


class Inductor(CostModel):
    """table: file of what was measured; null: measured/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt. environment:
    null: this machine's; else only the table's lines of that one count, and nothing is compiled or measured.
    fresh_processes: 0: a process that stays measures, for searching; else a price is a race with the default in so many
    fresh processes, for judging. builders: processes that lower and compile; build_seconds: for one of them to answer.
    filter: which of the plans that are priced together are worth compiling, by predicted time; null: all.

    A plan that does not compile, crashes or hangs costs inf, and so does one that the filter leaves out: it counts as
    an evaluation, and among `Prices.left_out`.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    deterministic = False
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, table: Table, environment: Environment,
                 fresh_processes: Annotated[int, Between(0, 64)], builders: Annotated[int, Between(1, 256)],
                 build_seconds: Positive, filter: Screen | None, measuring: Comparing) -> None:  # fmt: skip
        if measuring.device != "cpu":
            raise ConfigError(f"cost={name} compiles for CPUs only: set measuring.device=cpu")
        if filter is not None and fresh_processes:
            raise ConfigError(f"cost={name}: a filter is for searching: set filter=null where fresh_processes is not 0")
        self.name = name
        self.service = Service(measuring, table=cache_dir() / TABLE if table is None else Path(table), name=name,
                               environment=environment, libraries=("torch",), processes=fresh_processes)  # fmt: skip
        self.builds = Builds(builders, build_seconds)
        self.lowered = LoweredRequests(self.service.memo, self.service.environment, self.builds)
        keep = None if filter is None else keep_of(filter)
        self._pipeline = BuildPipeline(self.builds, self.service, subject_of, keep)
        self._defaults: WeakKeyDictionary[Graph, Subject] = WeakKeyDictionary()

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.service.environment}

    def price(self, plans: Plans) -> Prices:
        found = self.measured(plans.graph, [asked_of(plans, b) for b in range(len(plans))])
        timings = [one if isinstance(one, Timing) else None for one in found]
        return Prices(
            np.array([np.inf if t is None else t.seconds for t in timings]),
            np.array([float(isinstance(one, Failure)) for one in found]),
            np.array([0.0 if t is None else t.noise for t in timings]),
            np.array([0 if t is None else t.rounds for t in timings]),
            np.array([isinstance(one, Skipped) for one in found]),
        )

    def measured(self, graph: Graph, asked: Sequence[Asked]) -> list[Measured | Skipped]:
        """A timing for each, or why there is none. Raises Unmeasured where the default itself cannot be run, and
        UserError where the table lacks one and nothing may be measured: before anything is lowered."""
        default = self.default(graph)
        known: list[Measured | Skipped | None] = [self._known(graph, default, one) for one in asked]
        fresh = [i for i, answer in enumerate(known) if answer is None]
        if fresh and not self.service.measures:
            raise self.lowered.unknown(graph)
        if fresh:
            evaluated = self._pipeline.evaluate(default, [self.lowered.request(graph, asked[i]) for i in fresh])
            for i, one in zip(fresh, evaluated, strict=True):
                self._remember(graph, asked[i], one)
                known[i] = one.measured
        return [answer for answer in known if answer is not None]

    def _remember(self, graph: Graph, asked: Asked, one: Evaluated) -> None:
        made = one.measured if one.lowered is None else one.lowered
        if isinstance(made, dict | Failure):
            self.lowered.remember(graph, asked, made)

    def _known(self, graph: Graph, default: Subject, asked: Asked) -> Measured | None:
        line = self.lowered.line(graph, asked)
        if line is None:
            return None
        if "failure" in line:
            return Failure(line["failure"], lasting=True)
        if line["digest"] == default.digest:
            return self.service.reference(default)
        return self.service.known(default, Subject("inductor", line["digest"], {}))

    def default(self, graph: Graph) -> Subject:
        """What the graph's own time is measured of. Raises Unmeasured where it cannot be compiled."""
        if graph not in self._defaults:
            self._defaults[graph] = self._made_default(graph)
        return self._defaults[graph]

    def _made_default(self, graph: Graph) -> Subject:
        line = self.lowered.line(graph, NOTHING)
        if not self.service.measures:
            if line is None or "failure" in line:
                raise self.lowered.unknown(graph)
            return Subject("inductor", line["digest"], {})
        (lowered,) = self._pipeline.lower([self.lowered.request(graph, NOTHING)])
        compiled = lowered if isinstance(lowered, Failure) else self.builds.ask("compile", lowered).result()
        if isinstance(lowered, Failure) or isinstance(compiled, Failure):
            why = lowered if isinstance(lowered, Failure) else compiled
            raise Unmeasured(f"{graph.name} cannot be compiled: {why.reason if isinstance(why, Failure) else why}")
        self.lowered.remember(graph, NOTHING, lowered)
        return subject_of({**lowered, "program": str(self.lowered.file(graph))})


def subject_of(built: Built) -> Subject:
    """What is timed, of what was lowered."""
    payload = {"source": built["source"], "digest": built["key"], "program": built["program"], "seed": SEED}
    return Subject("inductor", built["digest"], payload)
