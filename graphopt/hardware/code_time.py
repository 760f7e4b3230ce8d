"""`CodeTime`: the time of generated code as a sum over what it does, fitted to measured plans; how well predicted times
rank these; files of fitted costs; and `graphopt measure learn_cost`.

A feature (`graphopt.hardware.inductor.code_features`) costs so many seconds a unit. Only ratios to the default of the
same graph are fitted, by their squared errors and by their order. Of two plans of a graph the faster one should be
predicted to be faster (pairwise logistic loss). Costs are positive, so their logarithms are fitted, from a usual
processor's on.

`graphopt measure learn_cost outputs/calibration` reads the tables of measurements (`measured.jsonl`) in folders, and
writes the user's own costs, which `cost=learned cost.weights=null` takes. `--without` leaves graphs out, so that they
can be priced by what was learned from others.

Shape legend: P plans, F features, R draws.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.stats import rankdata

from graphopt import cache_dir
from graphopt.core.compiler import KNOBS
from graphopt.core.errors import Unreadable, UserError, writing
from graphopt.core.graph import F64, I64
from graphopt.core.utils.limits import MIB, read_json
from graphopt.core.utils.terminal import say
from graphopt.core.utils.whole import whole_file
from graphopt.hardware.measure.price_table import NAME, PACKED, Line, PriceTable, is_there, tables_below
from graphopt.hardware.requests import WORDS, CompilerRequest

Features = Mapping[str, float]
# Nanoseconds a unit, before anything is fitted: instructions by kind, bytes by cache, what is begun. Most are of probes
# (`graphopt measure calibrate`) on an AMD EPYC of family 26, by vectors of 16 numbers.
USUAL = {"v.simple": 0.15, "v.load": 0.18, "v.store": 0.27, "v.div": 0.39, "v.sqrt": 0.83, "v.rsqrt": 1.64,
         "v.exp": 2.7, "v.log": 4.3, "v.log1p": 7.7, "v.tanh": 15.6, "v.erf": 4.7, "v.sin": 2.4, "v.cos": 2.6,
         "v.pow": 25.6, "v.fma": 0.15, "v.isnan": 0.1, "v.is_masked": 0.3, "v.to": 0.3, "v.div_floor_integer": 0.3,
         "v.cascade_sum_combine": 1.0, "v.part_load": 0.96, "v.part_store": 5.2, "v.wide": 0.37, "v.strided": 2.0,
         "v.mask_load": 9.0, "v.mask_store": 70.0, "v.missed_load": 5.1, "v.missed_store": 7.9,
         "s.simple": 0.118, "s.load": 0.117, "s.store": 0.122, "s.div": 0.38, "s.sqrt": 0.86, "s.rsqrt": 1.65,
         "s.exp": 1.2, "s.log": 1.3, "s.log1p": 5.9, "s.tanh": 8.9, "s.erf": 9.8, "s.sin": 2.4, "s.cos": 2.45,
         "s.pow": 2.95, "s.fma": 0.1, "s.isnan": 0.1, "s.div_floor_integer": 0.2, "s.strided": 1.0,
         "s.mask_load": 0.15, "s.mask_store": 0.2, "s.missed_load": 2.0, "s.missed_store": 0.01,
         "trips": 0.3, "bytes.near": 0.001, "bytes.middle": 0.0044, "bytes.far": 0.012,
         "flops": 0.02, "nests": 500.0, "kernels": 1000.0, "calls": 3000.0}  # fmt: skip
FUNCTION = 5.0  # ns, of other `v.NAME` and `s.NAME`
SURE = 0.02  # relative difference of two times from which their order is taken as known
STEEP = 0.03  # of predicted logarithms: difference at which an order counts as clear
ORDER = 0.1  # weight of the order beside the squared errors
USUALLY = 0.1  # weight of staying at the usual costs
DRAWS = 300
MOST = 0.9
LEAST_LEARNED = 8  # plans of a graph that costs are fitted to
LEAST = 5  # plans from which there is a correlation
NEAR_OPS, NEAR_SHARE = 3, 0.1  # so many ops, or this share of those that any plan asks about, is near the default
FORMAT = "graphopt code time 1"
PRETRAINED = Path(__file__).parents[1] / "learn" / "pretrained" / "code_time.json"
SHIPPED = "shipped"
MOST_FEATURES = 10_000


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """features: of the code (`graphopt.hardware.inductor.code_features`). ratio: time over the default's, noise its
    relative standard error; seconds: ratio times the default's time."""

    request: CompilerRequest
    digest: str
    features: Mapping[str, float]
    ratio: float
    noise: float
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredGraph:
    """program: key of the graph (`graph_key`). default: what the compiler does unasked; plans: the others that run,
    those of one code once for each thing asked."""

    program: str
    environment: str
    default: MeasuredPlan
    plans: tuple[MeasuredPlan, ...]

    def near(self, plan: MeasuredPlan) -> bool:
        """Whether it asks for little: about few ops, or only about knobs."""
        ops = {name for other in self.plans for name in other.request.requests}
        return len(plan.request.requests) <= max(NEAR_OPS, NEAR_SHARE * len(ops))


def measured_graphs(table: PriceTable, environment: str | None = None) -> dict[str, MeasuredGraph]:
    """Program -> its measured plans, where its default is among them. environment: one of the table's; None: that with
    most requests."""
    lines = [line for line in table.requests() if _is_whole(line)]
    environments = [line["environment"] for line in lines]
    here = environment or max(environments, key=environments.count, default="")
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line["environment"] == here:
            found.setdefault(line["program"], []).append(line)
    graphs = {}
    for program, own in found.items():
        default = next((line for line in own if not line["requests"] and not line["knobs"]), None)
        if default is None:
            continue
        plans = [_plan(table, line, default["digest"]) for line in (default, *(x for x in own if x is not default))]
        if plans[0] is not None:
            others = tuple(plan for plan in plans[1:] if plan is not None)
            graphs[program] = MeasuredGraph(program, here, plans[0], others)
    return graphs


def _plan(table: PriceTable, line: Line, default: str) -> MeasuredPlan | None:
    timed = table.find(line["digest"], line["environment"], default)
    if timed is None or "failure" in timed:
        return None
    request = CompilerRequest(dict(line["requests"]), dict(line["knobs"]))
    return MeasuredPlan(request, line["digest"], line["features"], timed["ratio"], timed["noise"], timed["seconds"])


def _is_whole(line: Mapping[str, Any]) -> bool:
    """Whether a line, which may come from anybody, holds a request of which code came."""
    requests, knobs, counts = line.get("requests"), line.get("knobs"), {k.name: len(k.values) for k in KNOBS}
    return ("digest" in line and isinstance(line.get("program"), str)
            and isinstance(requests, dict) and all(word in WORDS for word in requests.values())
            and isinstance(knobs, dict)
            and all(type(choice) is int and 0 <= choice < counts.get(k, 0) for k, choice in knobs.items()))  # fmt: skip


@dataclass(frozen=True)
class CodeTime:
    """seconds: a unit of each feature; one that is not among them has its usual cost."""

    seconds: Mapping[str, float]

    def of(self, features: Features) -> float:
        """The predicted time of code, in seconds."""
        known = ((name, count) for name, count in features.items() if counts(name))
        return sum(self.seconds.get(name, usual(name) * 1e-9) * count for name, count in known)

    def ratio(self, features: Features, default: Features) -> float:
        """The predicted time over that of the default of the same graph."""
        return self.of(features) / self.of(default)


class SameTime(CodeTime):
    """Of everything the same time."""

    def of(self, features: Features) -> float:
        return 1.0


def counts(name: str) -> bool:
    """Whether a feature has a cost: others hold the same in other units."""
    return name in USUAL or name.startswith(("v.", "s."))


def usual(name: str) -> float:
    """Nanoseconds a unit."""
    return USUAL.get(name, FUNCTION)


def fitted(graphs: Sequence[MeasuredGraph]) -> CodeTime:
    """Fitted to the plans of some graphs, each graph with the same weight. The same data gives the same costs."""
    names = sorted({name for graph in graphs for plan in (graph.default, *graph.plans) for name in plan.features
                    if counts(name)})  # fmt: skip
    parts = [_Part.of(graph, names) for graph in graphs if graph.plans]
    start = np.log([usual(name) for name in names])

    def loss(costs: F64) -> tuple[float, F64]:
        away = costs - start
        total, slope = USUALLY * float(away @ away), 2 * USUALLY * away
        for part in parts:
            value, change = part.loss(costs)
            total, slope = total + value / len(parts), slope + change / len(parts)
        return total, slope

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    seconds = dict(zip(names, np.exp(found).tolist(), strict=True))
    return CodeTime({name: cost * _scale(CodeTime(seconds), graphs) for name, cost in seconds.items()})


def _scale(model: CodeTime, graphs: Sequence[MeasuredGraph]) -> float:
    """What makes its times those of the defaults, in the geometric mean."""
    logs = [math.log(graph.default.seconds / model.of(graph.default.features)) for graph in graphs]
    return math.exp(sum(logs) / max(1, len(logs)))


@dataclass(frozen=True)
class _Part:
    """A graph's share of the loss. work: [P + 1, F], the default last; truth: [P] logarithms of measured ratios."""

    work: F64
    truth: F64
    sure: F64  # [P, P] which of two is slower: 1, -1, 0 where it is not known

    @classmethod
    def of(cls, graph: MeasuredGraph, names: Sequence[str]) -> "_Part":
        plans: list[MeasuredPlan] = [*distinct(graph), graph.default]
        work = np.array([[plan.features.get(name, 0.0) for name in names] for plan in plans])
        truth = np.log([plan.ratio for plan in plans[:-1]])
        apart = truth[:, None] - truth[None, :]
        return cls(work, truth, np.where(np.abs(apart) > SURE, np.sign(apart), 0.0))

    def loss(self, costs: F64) -> tuple[float, F64]:
        """And its slope by the logarithms of costs [F]."""
        spent = self.work * np.exp(costs)
        times = spent.sum(1)
        shares = spent / times[:, None]  # the slopes of log(times)
        error = np.log(times[:-1] / times[-1]) - self.truth
        margin = self.sure * (error + self.truth)[:, None] - self.sure * (error + self.truth)[None, :]
        pairs = max(1.0, np.abs(self.sure).sum())
        wrong = -ORDER * self.sure / (1 + np.exp(np.clip(margin / STEEP, -500, 500))) / STEEP / pairs
        scale = float(self.truth.std()) or 1.0
        by_plan = 2 * error / scale**2 / len(error) + wrong.sum(1) - wrong.sum(0)
        misorder = ORDER * (np.abs(self.sure) * np.logaddexp(0, -margin / STEEP)).sum() / pairs
        return float((error**2).mean() / scale**2 + misorder), by_plan @ (shares[:-1] - shares[-1])


def distinct(graph: MeasuredGraph) -> list[MeasuredPlan]:
    """Its plans, one of each code."""
    return [*{plan.digest: plan for plan in graph.plans}.values()]


class Correlation(NamedTuple):
    """low, high: the 95 % interval of drawing plans anew."""

    value: float
    low: float
    high: float


def spearman(predicted: F64, measured: F64) -> float:
    """Rank correlation, ties at their mean rank; 0 where one side says the same of all."""
    a, b = (rankdata(values) - (len(values) + 1) / 2 for values in (predicted, measured))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0


def agreement(score: Callable[[F64, F64], float], predicted: F64, measured: F64) -> Correlation:
    """A score [P, P -> one number], with its interval."""
    rng, count = np.random.default_rng(0), len(measured)
    draws = (rng.integers(0, count, count) for _ in range(DRAWS))
    drawn = [score(predicted[of], measured[of]) for of in draws]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Correlation(score(predicted, measured), float(low), float(high))


def measured_again(score: Callable[[F64, F64], float], measured: F64, noise: F64) -> float:
    """What a score comes to in the mean between two measurements of the same plans: no model can be seen to do better.
    noise: [P] relative standard errors; those of the true values are taken to be what was measured."""
    rng = np.random.default_rng(0)
    return float(np.mean([score(measured * np.exp(rng.normal(0, noise)), measured) for _ in range(DRAWS)]))


def needed(order: I64, ratio: F64) -> int:
    """Evaluations in an order [P] until `MOST` of what the best plan gains over the default is gained. ratio: [P]
    measured times over the default's, of which one is below 1."""
    best = np.minimum.accumulate(np.minimum(ratio[order], 1.0))
    return int(np.argmax(best <= 1.0 - MOST * (1.0 - ratio.min()) + 1e-12)) + 1


@dataclass(frozen=True)
class Weights:
    """card: machine, versions, graphs, plans, and what else is known of how they came about."""

    model: CodeTime
    card: Mapping[str, Any]


def weights_named(name: str | None) -> Weights:
    """As `weights_file`; besides `usual`: costs before anything is fitted; `none`: all code takes the same time."""
    free = {"usual": CodeTime({}), "none": SameTime({})}
    return Weights(free[name], {}) if name in free else load_weights(weights_file(name))


def weights_file(name: str | None) -> Path:
    """`shipped`: what comes with graphopt; null: the user's own; else a file."""
    if name == SHIPPED:
        return PRETRAINED
    return cache_dir() / "measured" / "code_time.json" if name is None else Path(name)


def load_weights(path: Path) -> Weights:
    """Raises UserError where there are none, Unreadable where the file holds something else."""
    if not path.is_file():
        raise UserError(f"there are no fitted costs at {path}: measure plans with experiment=calibration, then fit "
                        "them with `graphopt measure learn_cost`, or set weights=shipped")  # fmt: skip
    content = read_json(path, MIB)
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("card"), dict):
        raise Unreadable(f"{path} holds no fitted costs ({FORMAT})")
    seconds = content.get("seconds")
    if not isinstance(seconds, dict) or len(seconds) > MOST_FEATURES or not all(map(_is_cost, seconds.values())):
        raise Unreadable(f"{path}: its costs are no positive numbers of seconds")
    return Weights(CodeTime({name: float(cost) for name, cost in seconds.items()}), content["card"])


def save_weights(path: Path, weights: Weights) -> None:
    """Raises UserError where it cannot be written."""
    content = {"format": FORMAT, "card": dict(weights.card), "seconds": dict(sorted(weights.model.seconds.items()))}
    with writing(path), whole_file(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def _is_cost(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1 and math.isfinite(value)


def learned(tables: Sequence[Path], environment: str | None, without: Sequence[str]) -> Weights:
    """Of all environments, unless one is named: only ratios to the default are fitted. Raises UserError where too
    little was measured."""
    found: dict[tuple[str, str], MeasuredGraph] = {}
    for table in map(PriceTable, tables):
        for here in [environment] if environment else table.environments():
            for graph in measured_graphs(table, here).values():
                key = (graph.program, here)
                found[key] = replace(graph, plans=found[key].plans + graph.plans) if key in found else graph
    graphs = [graph for graph in found.values() if graph.program not in without]
    graphs = [graph for graph in graphs if len(distinct(graph)) >= LEAST_LEARNED]
    if not graphs:
        raise UserError(f"no table has a graph with {LEAST_LEARNED} measured plans; run experiment=calibration first")
    plans = Counter[str]()
    for graph in graphs:
        plans[graph.program] += len(distinct(graph))
    return Weights(fitted(graphs), {"environments": sorted({graph.environment for graph in graphs}), "plans": plans})


def tables_in(places: Sequence[Path]) -> list[Path]:
    """Raises UserError where there is none."""
    found = {place: tables_below(place) if place.is_dir() else [place.with_name(place.name.removesuffix(PACKED))]
             for place in places}  # fmt: skip # a user may have named the packed lines
    if missing := [place for place, tables in found.items() if not all(map(is_there, tables or [place]))]:
        raise UserError(f"{missing[0]} is no table of measurements, and holds no {NAME}")
    return [table for tables in found.values() for table in tables]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt measure learn_cost", description="Fits cost=learned.")
    parser.add_argument("places", type=Path, nargs="+", metavar="TABLE", help="measured.jsonl, or folders that hold it")
    parser.add_argument("--environment", metavar="TEXT", help="of the tables' lines; else all of them")
    parser.add_argument("--without", nargs="*", default=[], metavar="PROGRAM", help="keys of graphs to leave out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="instead of the user's own costs")
    args = parser.parse_args(arguments)
    try:
        found = learned(tables_in(args.places), args.environment, args.without)
        file = args.out or weights_file(None)
        save_weights(file, found)
    except UserError as error:
        say(error, sys.stderr)
        return 1
    plans = found.card["plans"]
    say(f"wrote {file}: {sum(plans.values()):,} plans of {len(plans)} graphs")
    return 0
