"""`calibration`: how well cost models rank measured plans of fusion, graph by graph. `learned` is fitted to the plans
of the other graphs each time. Knobs are left out, since simulators know nothing of them; plans of one code count once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.errors import UserError
from graphopt.core.graph import F64, Graph
from graphopt.core.utils import registry
from graphopt.hardware.code_time import (
    LEAST,
    MeasuredGraph,
    MeasuredPlan,
    agreement,
    distinct,
    fitted,
    measured_again,
    measured_graphs,
    needed,
    spearman,
)
from graphopt.hardware.measure.price_table import NAME, PriceTable, tables_below
from graphopt.hardware.requests import graph_key, plans_of
from graphopt.problems.cost_model import CostModel
from graphopt.report.answer import Answer
from graphopt.report.replay import decision_of
from graphopt.report.tables.statistics import bootstrap
from graphopt.run.config.construct import construct

GAIN = 0.02  # of the best plan, from which there is something to be found
SIMULATORS = ("simulator", "calibrated")  # those that are options here
Score = tuple[str, tuple[float, float, float]]  # a name, and a value with its 95 % interval


def scores(place: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[Score]:
    """Of each model and graph `spearman`, over all masks, and `spearman_near`, over those that ask for little; `again`
    is the same between two measurements, as their noise says, `over` the number of masks. `evals_to_90`: what measuring
    in the order of learned times needs over the order of the sample (geometric mean over graphs), and of each graph
    both numbers. Raises UserError where the table of prices is missing."""
    tables = tables_below(place)
    if not tables:
        raise UserError(f"{place} has no {NAME}: bring the table there that its prices were measured into")
    measured = measured_graphs(PriceTable(tables[0]))
    graphs = {str(row["graph"]): Answer.load(decision_of(row)).graph for row in rows}
    known = {name: measured[graph_key(graph)] for name, graph in graphs.items() if graph_key(graph) in measured}
    yield from _orders(known, {str(row["graph"]): str(row["family"]) for row in rows})
    for name, one in sorted(known.items()):
        masks = [plan for plan in distinct(one) if not plan.request.knobs]
        predicted = dict(_predicted(graphs[name], one, masks, [*known.values()], str(rows[0]["machine"])))
        yield from _correlations(name, one, masks, predicted)


def _predicted(graph: Graph, one: MeasuredGraph, masks: Sequence[MeasuredPlan], known: Sequence[MeasuredGraph],
               machine: str) -> Iterator[tuple[str, F64]]:  # fmt: skip
    """Model -> its times of the masks."""
    others = [other for other in known if other is not one]
    if others:
        model = fitted(others)
        yield "learned", np.array([model.of(plan.features) for plan in masks])
    yield "count_bytes", np.array([plan.features.get("bytes", 0.0) for plan in masks])
    plans = plans_of(graph, [plan.request for plan in masks])
    around: dict[str, Any] = {"machine": construct(registry.option("machine", machine), "machine")}
    around["task"] = construct(registry.option("task", "fusion"), "task", around)
    for name in SIMULATORS:
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


def _orders(known: Mapping[str, MeasuredGraph], family_of: Mapping[str, str]) -> Iterator[Score]:
    """Among knobs, and what asks for little: knobs first, then in the order of the sample."""
    logs, found = dict[str, float](), list[Score]()
    for name, one in sorted(known.items()):
        others = [other for other in known.values() if other is not one]
        plans = [plan for plan in distinct(one) if plan.request.knobs or one.near(plan)]
        plans.sort(key=lambda plan: not plan.request.knobs)
        ratio = np.array([plan.ratio for plan in plans])
        if others and len(ratio) and ratio.min() <= 1 - GAIN:
            model = fitted(others)
            by_time = np.argsort([model.of(plan.features) for plan in plans], kind="stable")
            counts = {"learned": needed(by_time, ratio), "in_order": needed(np.arange(len(ratio)), ratio)}
            logs[name] = float(np.log(counts["learned"] / counts["in_order"]))
            found += [(f"evals_to_90/{order}/{name}", (float(count),) * 3) for order, count in counts.items()]
    if logs:
        mean = bootstrap(np.array([*logs.values()])[:, None], [family_of[name] for name in logs]).of(np.exp)
        yield "evals_to_90", (mean.mean, mean.low, mean.high)
    yield from found
