"""How few of the plans that were measured anyway a learned order needs, on families of programs that it has not seen.

`python benchmarks/plan_order.py [--rows results/hardware_fusion] [--seeds 3] [--weights FOLDER] [--quick]` fits
`cost=learned` to the measured plans of all other families (each seed draws those graphs anew, with replacement), orders
a graph's measured plans as `algo=compiler_policy` does (the mean of learned and simulated logarithms, each code once),
and counts plans until nine tenths of what `compiler_search` gains in the end are there, beside the evaluations that the
search needed. `raced`: of the gain that its answer has in the race, as far as its prices show it; `lowest`: of its
lowest price. `--weights` writes the fitted costs, FAMILY-SEED.json, which `algo.weights` takes. Nothing is measured.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lines import say

from graphopt import load as load_answer
from graphopt.core.compiler import knobs
from graphopt.core.graph import Graph
from graphopt.core.utils.registry import option
from graphopt.hardware.code_time import (
    MOST,
    CodeTime,
    MeasuredGraph,
    Weights,
    distinct,
    fitted,
    measured_graphs,
    save_weights,
)
from graphopt.hardware.costs.calibrated import Calibrated
from graphopt.hardware.measure.price_table import PriceTable, tables_below
from graphopt.hardware.requests import graph_key, plans_of
from graphopt.report.replay import decision_of
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.report.tables.statistics import bootstrap
from graphopt.run.config.construct import construct

ALIKE = {"edge_messages": "gnn"}  # written after the same layer
LEAST = 10  # plans of a graph that is learned from


class Known(NamedTuple):
    """A graph whose plans were measured. simulated: logarithm of time over the default's, of each of its plans."""

    name: str
    family: str
    measured: MeasuredGraph
    simulated: Mapping[int, float]


def known_graphs(place: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Known]:
    """By name; of the environment that most was lowered in."""
    (table,) = tables_below(place)
    measured, sketch = measured_graphs(PriceTable(table)), construct(option("cost", "calibrated"), "cost")
    found: dict[str, Known] = {}
    for row in rows:
        name, family, case = str(row["graph"]), str(row["family"]), load_answer(decision_of(row))
        one = measured.get(graph_key(case.graph))
        where = case.decided.header["config"]["cost"]["environment"]
        if name not in found and one is not None and where == one.environment:
            found[name] = Known(name, ALIKE.get(family, family), one, simulated(sketch, case.graph, one))
    return found


def simulated(sketch: Calibrated, graph: Graph, one: MeasuredGraph) -> dict[int, float]:
    asked = [one.default.request, *(plan.request for plan in one.plans)]
    logs = np.log(sketch.price(plans_of(graph, asked)).cost)
    return dict(enumerate((logs[1:] - logs[0]).tolist()))


def drawn_fit(known: Sequence[Known], family: str, seed: int) -> Weights:
    """To graphs of other families, drawn with replacement."""
    others = sorted({k.measured.program: k for k in known if k.family != family}.values(), key=lambda k: k.name)
    others = [k for k in others if len(distinct(k.measured)) >= LEAST]
    rng = np.random.default_rng(seed)
    drawn = [others[i].measured for i in sorted(rng.integers(0, len(others), len(others)))]
    card = {"environment": drawn[0].environment, "plans": {g.program: len(distinct(g)) for g in drawn}}
    return Weights(fitted(drawn), card)


def ratios_in_order(known: Known, model: CodeTime, numerics: str) -> list[float]:
    """Measured times over the default's, the plan that is predicted to be fastest first."""
    allowed, default = {knob.name for knob in knobs(numerics)}, known.measured.default  # type: ignore[arg-type]
    codes: dict[str, tuple[float, int, float]] = {}
    for i, plan in enumerate(known.measured.plans):
        if set(plan.request.knobs) <= allowed and plan.digest != default.digest:
            score = math.log(model.ratio(plan.features, default.features)) + known.simulated[i]
            codes.setdefault(plan.digest, (score, i, plan.ratio))
    return [ratio for _, _, ratio in sorted(codes.values())]


def needed(ratios: Sequence[float], gain: float) -> int | None:
    return next((n for n, ratio in enumerate(ratios, 1) if ratio <= 1 - MOST * gain + 1e-12), None)


def solves(rows: Sequence[Mapping[str, Any]], word: str) -> Iterator[tuple[Mapping[str, Any], float, int]]:
    """Of the search where the race shows a gain: row, the gain that counts, evaluations until nine tenths of it."""
    for row in rows:
        if row["algo"] == "compiler_search" and row["judged"] < row["initial"]:
            ratios = [cost / row["trace"][0][2] for *_, cost in row["trace"]]
            gain = 1 - max(min(ratios), row["judged"] / row["initial"] if word == "raced" else 0.0)
            step = needed(ratios, gain) or len(ratios)
            yield row, gain, max(1, int(row["trace"][step - 1][0]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=Path, default=Path("results/hardware_fusion"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    rows = [row for row in read_rows(row_files(args.rows))[0] if row.get("status") == "ok"]
    known = known_graphs(args.rows, rows)
    families, seeds = sorted({k.family for k in known.values()}), range(1 if args.quick else args.seeds)
    fits = {(f, s): drawn_fit([*known.values()], f, s) for f in families[: 2 if args.quick else None] for s in seeds}
    if args.weights:
        for (family, seed), weights in fits.items():
            save_weights(args.weights / f"{family}-{seed}.json", weights)
    for word in ("raced", "lowest"):
        logs: dict[str, list[float]] = {}
        for row, gain, its in solves(rows, word):
            one = known.get(str(row["graph"]))
            if one is None or (one.family, 0) not in fits:
                continue
            numerics = str(row["task"]).removeprefix("fusion_")
            told = [ratios_in_order(one, fits[one.family, seed].model, numerics) for seed in seeds]
            counts = [float(needed(ratios, gain) or row["evals_cap"]) for ratios in told]
            say(
                f"plans_to_90/{word}/{one.name}/{numerics}",
                counts,
                "evaluations",
                {"search": its, "plans": len(told[0])},
            )
            logs.setdefault(one.family, []).append(math.log(float(np.mean(counts)) / its))
        means = np.array([np.mean(of) for of in logs.values()])
        over = bootstrap(means[:, None], range(len(means))).of(math.exp)
        details = {"low": over.low, "high": over.high, "families": len(means), "solves": sum(map(len, logs.values()))}
        say(f"plans_to_90/{word}/over_search", [over.mean], "ratio", details)


if __name__ == "__main__":
    main()
