"""`calibration`: how well cost models rank measured plans of fusion, graph by graph.

Knobs are left out, since simulators know nothing of them; plans of one code count once.

Shape legend: P plans.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from graphopt.core.compiler import KNOBS
from graphopt.core.errors import UserError
from graphopt.core.graph import F64, I64, Graph
from graphopt.core.utils import registry
from graphopt.hardware.code_time import CodeTime
from graphopt.hardware.costs.calibrated import Calibrated
from graphopt.hardware.measure.price_table import NAME, Line, PriceTable, tables_below
from graphopt.hardware.requests import WORDS, CompilerRequest, graph_key, plans_of
from graphopt.problems.cost_model import CostModel
from graphopt.report.answer import Answer
from graphopt.report.replay import decision_of
from graphopt.report.tables.statistics import bootstrap
from graphopt.run.config.construct import construct

GAIN = 0.02  # of the best plan, from which there is something to be found
NEAR_OPS, NEAR_SHARE = 3, 0.1  # so many ops, or this share of those that any plan asks about, is near the default
LEAST = 5  # plans from which there is a correlation
DRAWS = 300
MOST = 0.9  # of the best plan's gain
Score = tuple[str, tuple[float, float, float]]  # a name, and a value with its 95 % interval


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
    """program: key of the graph (`graph_key`). default: the compiler's own; plans: the others that run, those of one
    code once for each request."""

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
    """The mean score between two measurements of the same plans: no model can be seen to do better. noise: [P] relative
    standard errors; measured values stand for the true ones."""
    rng = np.random.default_rng(0)
    return float(np.mean([score(measured * np.exp(rng.normal(0, noise)), measured) for _ in range(DRAWS)]))


def needed(order: I64, ratio: F64) -> int:
    """Evaluations in an order [P] until `MOST` of the best plan's gain over the default is reached. ratio: [P] measured
    times over the default's, of which one is below 1."""
    best = np.minimum.accumulate(np.minimum(ratio[order], 1.0))
    return int(np.argmax(best <= 1.0 - MOST * (1.0 - ratio.min()) + 1e-12)) + 1


def scores(place: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[Score]:
    """Of each model and graph `spearman`, over all masks, and `spearman_near`, over those with few requests; `again` is
    the same between two measurements, as their noise says, `over` the number of masks. `evals_to_90`: what measuring in
    the order of predicted times needs over the order of the sample (geometric mean over graphs), and of each graph both
    numbers. Raises UserError where the table of prices is missing."""
    tables = tables_below(place)
    if not tables:
        raise UserError(f"{place} has no {NAME}: bring the table there that its prices were measured into")
    measured = measured_graphs(PriceTable(tables[0]))
    graphs = {str(row["graph"]): Answer.load(decision_of(row)).graph for row in rows}
    known = {name: measured[graph_key(graph)] for name, graph in graphs.items() if graph_key(graph) in measured}
    time = _code_time()
    yield from _orders(known, time, {str(row["graph"]): str(row["family"]) for row in rows})
    for name, one in sorted(known.items()):
        masks = [plan for plan in distinct(one) if not plan.request.knobs]
        predicted = dict(_predicted(graphs[name], masks, time, str(rows[0]["machine"])))
        yield from _correlations(name, one, masks, predicted)


def _predicted(graph: Graph, masks: Sequence[MeasuredPlan], time: CodeTime,
               machine: str) -> Iterator[tuple[str, F64]]:  # fmt: skip
    """Model -> its times of the masks."""
    yield "generated_code", np.array([time.of(plan.features) for plan in masks])
    yield "count_bytes", np.array([plan.features.get("bytes", 0.0) for plan in masks])
    plans = plans_of(graph, [plan.request for plan in masks])
    around: dict[str, Any] = {"machine": construct(registry.option("machine", machine), "machine")}
    around["task"] = construct(registry.option("task", "fusion"), "task", around)
    for name in ("simulator", "calibrated"):
        cost: CostModel = construct(registry.option("cost", name), "cost", around)
        read = {head: array for head, array in plans.choices.items() if head in cost.reads}
        yield name, cost.price(replace(plans, choices=read)).cost


def _correlations(name: str, one: MeasuredGraph, masks: Sequence[MeasuredPlan],
                  predicted: Mapping[str, F64]) -> Iterator[Score]:  # fmt: skip
    ratio, noise = (np.array([getattr(plan, field) for plan in masks]) for field in ("ratio", "noise"))
    near = np.array([one.near(plan) for plan in masks], np.bool_)
    for kind, of in (("spearman", np.ones(len(masks), np.bool_)), ("spearman_near", near)):
        if of.sum() < LEAST:
            continue
        for model, times in predicted.items():
            yield f"{kind}/{model}/{name}", agreement(spearman, times[of], ratio[of])
        yield f"{kind}/again/{name}", (measured_again(spearman, ratio[of], noise[of]),) * 3
        yield f"{kind}/over/{name}", (float(of.sum()),) * 3


def _code_time() -> CodeTime:
    """By the preset of `cost=calibrated`."""
    cost = construct(registry.option("cost", "calibrated"), "cost")
    assert isinstance(cost, Calibrated)
    return CodeTime.of_preset(cost.preset)


def _orders(known: Mapping[str, MeasuredGraph], time: CodeTime, family_of: Mapping[str, str]) -> Iterator[Score]:
    """Among knobs, and what asks for little: knobs first, then in the order of the sample."""
    logs, found = dict[str, float](), list[Score]()
    for name, one in sorted(known.items()):
        plans = [plan for plan in distinct(one) if plan.request.knobs or one.near(plan)]
        plans.sort(key=lambda plan: not plan.request.knobs)
        ratio = np.array([plan.ratio for plan in plans])
        if len(ratio) and ratio.min() <= 1 - GAIN:
            by_time = np.argsort([time.of(plan.features) for plan in plans], kind="stable")
            counts = {"generated_code": needed(by_time, ratio), "in_order": needed(np.arange(len(ratio)), ratio)}
            logs[name] = float(np.log(counts["generated_code"] / counts["in_order"]))
            found += [(f"evals_to_90/{order}/{name}", (float(count),) * 3) for order, count in counts.items()]
    if logs:
        mean = bootstrap(np.array([*logs.values()])[:, None], [family_of[name] for name in logs]).of(np.exp)
        yield "evals_to_90", (mean.mean, mean.low, mean.high)
    yield from found
