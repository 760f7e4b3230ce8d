"""`calibration`: how well cost models rank measured plans of fusion, graph by graph. `learned` is fitted to the plans
of the other graphs each time. Knobs are left out, since simulators know nothing of them; plans of one code count once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.config.construct import construct
from graphopt.core.graph import F64, Graph
from graphopt.errors import UserError
from graphopt.measure.price_table import NAME, PriceTable, tables_below
from graphopt.problems.cost_model import CostModel
from graphopt.ranking.code_time import distinct, fitted
from graphopt.ranking.measured_plans import (
    LEAST,
    MeasuredGraph,
    MeasuredPlan,
    agreement,
    measured_again,
    measured_graphs,
    needed,
    recall,
    spearman,
)
from graphopt.ranking.requests import graph_key, plans_of
from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.replay import decision_of
from graphopt.reporting.stored_case import open_case
from graphopt.reporting.tables.statistics import bootstrap
from graphopt.utils import registry

GAIN = 0.02  # of the best plan, from which there is something to be found
SIMULATORS = ("simulator", "calibrated")  # those that are options here
Score = Callable[[F64, F64], float]


def figures_in(place: Path, rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Of each model and graph `spearman`, over all masks, `spearman_near`, over those that ask for little, and
    `top5_recall`; `again` is the same between two measurements, as their noise says, `over` the number of masks.
    `evals_to_90`: what measuring in the order of learned times needs over the order of the sample (geometric mean over
    graphs), and of each graph both numbers."""
    tables = tables_below(place)
    if not tables:
        raise UserError(f"{place} has no {NAME}: bring the table there that its prices were measured into")
    measured = measured_graphs(PriceTable(tables[0]))
    graphs = {str(row["graph"]): open_case(decision_of(row)).graph for row in rows}
    known = {name: measured[graph_key(graph)] for name, graph in graphs.items() if graph_key(graph) in measured}
    found: list[Figure] = []
    found += _of_policy(known, {str(row["graph"]): str(row["family"]) for row in rows})
    for name, one in sorted(known.items()):
        masks = [plan for plan in distinct(one) if not plan.request.knobs]
        predicted = dict(_predicted(graphs[name], one, masks, [*known.values()], str(rows[0]["machine"])))
        found += _of_graph(name, one, masks, predicted)
    return found


def _predicted(graph: Graph, one: MeasuredGraph, masks: Sequence[MeasuredPlan], known: Sequence[MeasuredGraph],
               machine: str) -> Iterator[tuple[str, F64]]:  # fmt: skip
    """Model -> its times of the masks."""
    others = [other for other in known if other is not one]
    if others:
        model = fitted(others)
        yield "learned", np.array([model.of(plan.features) for plan in masks])
    yield "count_bytes", np.array([plan.features.get("bytes", 0.0) for plan in masks])
    plans = plans_of(graph, [plan.request for plan in masks])
    for name in SIMULATORS:
        if name in registry.options("cost"):
            cost = _simulator(name, machine)
            read = {head: array for head, array in plans.choices.items() if head in cost.reads}
            yield name, cost.price(replace(plans, choices=read)).cost


def _simulator(name: str, machine: str) -> CostModel:
    around: dict[str, Any] = {"machine": construct(registry.option("machine", machine), "machine")}
    around["task"] = construct(registry.option("task", "fusion"), "task", around)
    cost: CostModel = construct(registry.option("cost", name), "cost", around)
    return cost


def _of_graph(name: str, one: MeasuredGraph, masks: Sequence[MeasuredPlan],
              predicted: Mapping[str, F64]) -> Iterator[Figure]:  # fmt: skip
    ratio, noise = (np.array([getattr(plan, field) for plan in masks]) for field in ("ratio", "noise"))
    near = np.array([one.near(plan) for plan in masks], np.bool_)
    every = np.ones(len(masks), np.bool_)
    scores: list[tuple[str, Score, Any]] = [("spearman", spearman, every), ("spearman_near", spearman, near),
                                            ("top5_recall", recall, every)]  # fmt: skip
    for kind, score, of in scores:
        if of.sum() < LEAST:
            continue
        for model, times in predicted.items():
            yield Figure(f"{kind}/{model}/{name}", *agreement(score, times[of], ratio[of]))
        best = measured_again(score, ratio[of], noise[of])
        yield Figure(f"{kind}/again/{name}", best, best, best)
        yield Figure(f"{kind}/over/{name}", *[float(of.sum())] * 3)


def _of_policy(known: Mapping[str, MeasuredGraph], family_of: Mapping[str, str]) -> list[Figure]:
    """Among knobs, and what asks for little: knobs first, then in the order of the sample."""
    found, logs = list[Figure](), dict[str, float]()
    for name, one in sorted(known.items()):
        others = [other for other in known.values() if other is not one]
        plans = [plan for plan in distinct(one) if plan.request.knobs or one.near(plan)]
        plans.sort(key=lambda plan: not plan.request.knobs)
        ratio = np.array([plan.ratio for plan in plans])
        if others and len(ratio) and ratio.min() <= 1 - GAIN:
            model = fitted(others)
            by_time = np.argsort([model.of(plan.features) for plan in plans], kind="stable")
            counts = needed(by_time, ratio), needed(np.arange(len(ratio)), ratio)
            logs[name] = float(np.log(counts[0] / counts[1]))
            found += [Figure(f"evals_to_90/{order}/{name}", *[float(count)] * 3)
                      for order, count in zip(("learned", "in_order"), counts, strict=True)]  # fmt: skip
    if not logs:
        return []
    mean = bootstrap(np.array([*logs.values()])[:, None], [family_of[name] for name in logs]).exp()
    return [figure("evals_to_90", mean), *found]
