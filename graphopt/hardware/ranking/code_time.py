"""`CodeTime`: the time of generated code as a sum over what it does, fitted to measured plans; and files of fitted
costs.

A feature (`graphopt.hardware.inductor.code_features`) costs so many seconds a unit. Only ratios to the default of the
same graph
are fitted, by their squared errors and by their order: of two plans of a graph the faster one should be predicted to be
faster (pairwise logistic loss). Costs are positive, so their logarithms are fitted, from a usual processor's on.

Shape legend: P plans, F features.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from graphopt import cache_dir
from graphopt.core.errors import Unreadable, UserError, writing
from graphopt.core.graph import F64
from graphopt.core.utils.limits import MIB, read_json
from graphopt.core.utils.whole import whole_file
from graphopt.hardware.ranking.measured_plans import MeasuredGraph, MeasuredPlan

Features = Mapping[str, float]
# Nanoseconds a unit, before anything is known: instructions by kind, bytes by cache, what is begun. Vectors are of 16.
USUAL = {"v.simple": 0.2, "v.load": 0.3, "v.store": 2.0, "v.div": 3.0, "v.tanh": 40.0, "v.log": 12.0, "v.exp": 4.0,
         "s.simple": 0.5, "s.load": 1.0, "s.store": 1.0, "s.div": 1.5, "s.tanh": 15.0, "s.log": 10.0, "s.exp": 8.0,
         "trips": 0.3, "bytes.near": 0.01, "bytes.middle": 0.03, "bytes.far": 0.08, "flops": 0.02, "nests": 500.0,
         "kernels": 1000.0, "calls": 3000.0}  # fmt: skip
FUNCTION = 5.0  # ns, of other `v.NAME` and `s.NAME`
SURE = 0.02  # relative difference of two times from which their order is taken as known
STEEP = 0.03  # of predicted logarithms: difference at which an order counts as clear
ORDER = 0.1  # weight of the order beside the squared errors
USUALLY = 0.003  # weight of staying at the usual costs


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


FORMAT = "graphopt code time 1"
SHIPPED, SHIPPED_FILE = "shipped", Path(__file__).parents[2] / "learn" / "pretrained" / "code_time.json"
MOST_FEATURES = 10_000


@dataclass(frozen=True)
class Weights:
    """card: machine, versions, graphs, plans, and what else is known of how they came about."""

    model: CodeTime
    card: Mapping[str, Any]


def weights_file(name: str | None) -> Path:
    """`shipped`: what comes with graphopt; null: the user's own; else a file."""
    if name == SHIPPED:
        return SHIPPED_FILE
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
