"""Measured plans, as the table of `cost=inductor` keeps them, and how well predicted times rank them.

Shape legend: P plans, R draws.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from graphopt.core.compiler import KNOBS
from graphopt.core.graph import F64, I64
from graphopt.hardware.measure.price_table import Line, PriceTable
from graphopt.hardware.ranking.requests import WORDS, CompilerRequest

DRAWS = 300
MOST = 0.9
LEAST = 5  # plans from which there is a correlation
NEAR_OPS, NEAR_SHARE = 3, 0.1  # so many ops, or this share of those that any plan asks about, is near the default


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
