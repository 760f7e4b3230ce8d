"""Measured plans, as the table of `cost=inductor` keeps them, and how well predicted times rank them.

Shape legend: P plans, R draws.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from graphopt.core.graph import F64, I64
from graphopt.core.knobs import KNOBS
from graphopt.measure.price_table import Line, PriceTable
from graphopt.ranking.requests import WORDS, CompilerRequest

NEAR_OPS, NEAR_SHARE = 3, 0.1  # so many ops, or this share of those that any plan asks about, is near the default


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """features: of the code (`graphopt.inductor.code_features`). ratio: time over the default's, noise its relative
    standard error; seconds: ratio times the default's time."""

    asked: CompilerRequest
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
        ops = {name for other in self.plans for name in other.asked.requests}
        return len(plan.asked.requests) <= max(NEAR_OPS, NEAR_SHARE * len(ops))


def measured_graphs(memo: PriceTable, environment: str | None = None) -> dict[str, MeasuredGraph]:
    """Program -> what was measured of it. environment: one of the memo's; None: that with most requests."""
    lines = [line for line in memo.requests() if _whole(line)]
    here = environment or _most([line["environment"] for line in lines])
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line["environment"] == here:
            found.setdefault(line["program"], []).append(line)
    graphs = (_graph(memo, program, here, of) for program, of in found.items())
    return {graph.program: graph for graph in graphs if graph is not None}


def _graph(memo: PriceTable, program: str, environment: str, lines: list[Line]) -> MeasuredGraph | None:
    default = next((line for line in lines if not line["requests"] and not line["knobs"]), None)
    if default is None:
        return None
    own = _plan(memo, default, default["digest"])
    plans = (_plan(memo, line, default["digest"]) for line in lines if line is not default)
    return None if own is None else MeasuredGraph(program, environment, own, tuple(p for p in plans if p is not None))


def _plan(memo: PriceTable, line: Line, default: str) -> MeasuredPlan | None:
    timed = memo.find(line["digest"], line["environment"], default)
    if timed is None or "failure" in timed:
        return None
    asked = CompilerRequest(dict(line["requests"]), dict(line["knobs"]))
    return MeasuredPlan(asked, line["digest"], line["features"], timed["ratio"], timed["noise"], timed["seconds"])


def _most(environments: list[str]) -> str:
    return max(environments, key=environments.count, default="")


def _whole(line: Mapping[str, Any]) -> bool:
    """Whether a line, which may come from anybody, says what was asked, and code came of it."""
    requests, knobs = line.get("requests"), line.get("knobs")
    return ("digest" in line and isinstance(line.get("program"), str)
            and isinstance(requests, dict) and all(word in WORDS for word in requests.values())
            and isinstance(knobs, dict) and all(_setting(name, choice) for name, choice in knobs.items()))  # fmt: skip


def _setting(name: str, choice: object) -> bool:
    counts = {knob.name: len(knob.values) for knob in KNOBS}
    return type(choice) is int and 0 <= choice < counts.get(name, 0)


DRAWS = 300
FASTEST = 5
MOST = 0.9
LEAST = 5  # plans from which there is a correlation


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


def recall(predicted: F64, measured: F64) -> float:
    """Share of the measured `FASTEST` plans that are among as many predicted ones."""
    first, wanted = (set(np.argsort(values, kind="stable")[:FASTEST].tolist()) for values in (predicted, measured))
    return len(first & wanted) / max(1, len(wanted))


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
