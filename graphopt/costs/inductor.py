"""`Inductor`: the time that a program takes as TorchInductor compiles it, measured on this machine; and `Learned`, the
same predicted from the code that it is lowered to.

A plan says what is stored, inlined or kept apart otherwise than by default, and sets knobs. The source that comes of it
is compiled and timed by turns with that of the default; a price is that ratio times the default's time.

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
from graphopt.errors import ConfigError, Unmeasured
from graphopt.measure.builds import BuildPipeline, Builds, Built, Evaluation
from graphopt.measure.environment import KEEPS_MEMORY, environment_here
from graphopt.measure.price_table import Environment, Line, PriceTable, TableFile
from graphopt.measure.service import Service
from graphopt.measure.target import Comparing, Failure, Measured, Target, Timing
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.ranking.code_time import load_weights, weights_file
from graphopt.ranking.requests import ASSUMED, READS, CompilerRequest, LoweredRequests, request_of
from graphopt.utils.outside import WeightsFile
from graphopt.utils.ranges import Between, Positive

TABLE = Path("measured") / "inductor.jsonl"
Table = Annotated[str | None, TableFile(usual=TABLE)]
SEED = 0  # of a program's inputs
NOTHING = CompilerRequest({}, {})


class Inductor(CostModel):
    """table: file of what was measured; null: measured/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt. environment:
    null: this machine's; else only the table's lines of that one count, and nothing is compiled or measured.
    fresh_processes: 0: a process that stays measures, for searching; else a price is a race with the default in so many
    fresh processes, for judging. builders: processes that lower and compile; build_seconds: for one of them to answer.

    A plan that does not compile, crashes or hangs costs inf.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    deterministic = False
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, table: Table, environment: Environment,
                 fresh_processes: Annotated[int, Between(0, 64)], builders: Annotated[int, Between(1, 256)],
                 build_seconds: Positive, measuring: Comparing) -> None:  # fmt: skip
        if measuring.device != "cpu":
            raise ConfigError(f"cost={name} compiles for CPUs only: set measuring.device=cpu")
        self.name = name
        self.service = Service(measuring, table=cache_dir() / TABLE if table is None else Path(table), name=name,
                               environment=environment, libraries=("torch",), processes=fresh_processes)  # fmt: skip
        self.builds = Builds(builders, build_seconds)
        self.lowered = LoweredRequests(self.service.memo, self.service.environment, self.builds)
        self._pipeline = BuildPipeline(self.builds, self.service, target_of)
        self._defaults: WeakKeyDictionary[Graph, Target] = WeakKeyDictionary()

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.service.environment}

    def price(self, plans: Plans) -> Prices:
        found = self.measured(plans.graph, [request_of(plans, b) for b in range(len(plans))])
        timings = [one if isinstance(one, Timing) else None for one in found]
        return Prices(
            np.array([np.inf if t is None else t.seconds for t in timings]),
            np.array([float(isinstance(one, Failure)) for one in found]),
            np.array([0.0 if t is None else t.noise for t in timings]),
            np.array([0 if t is None else t.rounds for t in timings]),
        )

    def measured(self, graph: Graph, asked: Sequence[CompilerRequest]) -> list[Measured]:
        """A timing for each, or why there is none. Raises Unmeasured where the default itself cannot be run, and
        UserError where the table lacks one and nothing may be measured: before anything is lowered."""
        default = self.default(graph)
        known: list[Measured | None] = [self._known(graph, default, one) for one in asked]
        fresh = [i for i, answer in enumerate(known) if answer is None]
        if fresh and not self.service.measures:
            raise self.lowered.unknown(graph)
        if fresh:
            evaluated = self._pipeline.evaluate(default, [self.lowered.request(graph, asked[i]) for i in fresh])
            for i, one in zip(fresh, evaluated, strict=True):
                self._remember(graph, asked[i], one)
                known[i] = one.measured
        return [answer for answer in known if answer is not None]

    def _remember(self, graph: Graph, asked: CompilerRequest, one: Evaluation) -> None:
        made = one.measured if one.lowered is None else one.lowered
        if isinstance(made, dict | Failure):
            self.lowered.remember(graph, asked, made)

    def _known(self, graph: Graph, default: Target, asked: CompilerRequest) -> Measured | None:
        line = self.lowered.line(graph, asked)
        if line is None:
            return None
        if "failure" in line:
            return Failure(line["failure"], lasting=True)
        if line["digest"] == default.digest:
            return self.service.reference(default)
        return self.service.known(default, Target("inductor", line["digest"], {}))

    def default(self, graph: Graph) -> Target:
        """What the graph's own time is measured of. Raises Unmeasured where it cannot be compiled."""
        if graph not in self._defaults:
            self._defaults[graph] = self._made_default(graph)
        return self._defaults[graph]

    def _made_default(self, graph: Graph) -> Target:
        line = self.lowered.line(graph, NOTHING)
        if not self.service.measures:
            if line is None or "failure" in line:
                raise self.lowered.unknown(graph)
            return Target("inductor", line["digest"], {})
        (lowered,) = self._pipeline.lower([self.lowered.request(graph, NOTHING)])
        compiled = lowered if isinstance(lowered, Failure) else self.builds.ask("compile", lowered).result()
        if isinstance(lowered, Failure) or isinstance(compiled, Failure):
            why = lowered if isinstance(lowered, Failure) else compiled
            raise Unmeasured(f"{graph.name} cannot be compiled: {why.reason if isinstance(why, Failure) else why}")
        self.lowered.remember(graph, NOTHING, lowered)
        return target_of({**lowered, "program": str(self.lowered.file(graph))})


def target_of(built: Built) -> Target:
    """What is timed, of what was lowered."""
    payload = {"source": built["source"], "digest": built["key"], "program": built["program"], "seed": SEED}
    return Target("inductor", built["digest"], payload)


class Learned(CostModel):
    """Nothing is compiled or run. What the code does (instructions by kind, bytes by how far away they are, loops) is
    weighed by costs that were fitted to measured plans of other graphs (`graphopt.ranking.code_time`).

    weights: `shipped`; null: your own, of `graphopt measure learn_cost`; or a file. table, environment: of what
    was lowered, as those of `cost=inductor`, which may share them. builders, build_seconds: as there.

    A plan that cannot be lowered costs inf.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, weights: WeightsFile, table: Table, environment: Environment,
                 builders: Annotated[int, Between(1, 256)], build_seconds: Positive) -> None:  # fmt: skip
        self.name, self._lowers = name, environment is None
        self.weights = load_weights(weights_file(weights))
        here = environment or f"{environment_here('cpu', 1, ('torch',))}, {KEEPS_MEMORY}"
        memo = PriceTable(cache_dir() / TABLE if table is None else Path(table))
        self.requests = LoweredRequests(memo, here, Builds(builders, build_seconds))

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.requests.environment}

    def price(self, plans: Plans) -> Prices:
        lines = self.lowered(plans.graph, [request_of(plans, b) for b in range(len(plans))])
        failed = np.array(["failure" in line for line in lines])
        cost = [np.inf if "failure" in line else self.weights.model.of(line["features"]) for line in lines]
        return Prices(np.array(cost), failed.astype(np.float64))

    def lowered(self, graph: Graph, asked: Sequence[CompilerRequest]) -> list[Line]:
        """`digest` and `features` of the code of each, or `failure`."""
        return self.requests.lines(graph, asked, lowers=self._lowers)
