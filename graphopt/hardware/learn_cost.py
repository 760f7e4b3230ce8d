"""Fits `cost=learned` to plans that were measured on this machine.

`graphopt measure learn_cost outputs/calibration` reads the tables of measurements (`measured.jsonl`) in folders, and
writes the user's own costs, which `cost=learned cost.weights=null` takes. `--without` leaves graphs out, so that they
can be priced by what was learned from others.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import say
from graphopt.hardware.measure.price_table import NAME, PACKED, PriceTable, is_there, tables_below
from graphopt.hardware.ranking.code_time import Weights, distinct, fitted, save_weights, weights_file
from graphopt.hardware.ranking.measured_plans import MeasuredGraph, measured_graphs

LEAST = 10  # plans of a graph


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="graphopt measure learn_cost", description="Fits cost=learned.")
    result.add_argument("places", type=Path, nargs="+", metavar="TABLE", help="measured.jsonl, or folders that hold it")
    result.add_argument("--environment", metavar="TEXT", help="of the tables' lines; else that with most of them")
    result.add_argument("--without", nargs="*", default=[], metavar="PROGRAM", help="keys of graphs to leave out")
    result.add_argument("--out", type=Path, metavar="FILE", help="instead of the user's own costs")
    return result


def learned(tables: Sequence[Path], environment: str | None, without: Sequence[str]) -> Weights:
    """Raises UserError where too little was measured."""
    found: dict[str, MeasuredGraph] = {}
    for table in tables:
        for key, graph in measured_graphs(PriceTable(table), environment).items():
            known = found.get(key)
            found[key] = graph if known is None else replace(known, plans=known.plans + graph.plans)
    graphs = [graph for graph in found.values() if graph.program not in without]
    if len({graph.environment for graph in graphs}) > 1:
        raise UserError("the tables are of several environments; choose one with --environment")
    graphs = [graph for graph in graphs if len(distinct(graph)) >= LEAST]
    if not graphs:
        raise UserError(f"no table has a graph with {LEAST} measured plans; run experiment=calibration first")
    plans = {graph.program: len(distinct(graph)) for graph in graphs}
    return Weights(fitted(graphs), {"environment": graphs[0].environment, "plans": plans})


def tables_in(places: Sequence[Path]) -> list[Path]:
    """Raises UserError where there is none."""
    found = {place: tables_below(place) if place.is_dir() else [place.with_name(place.name.removesuffix(PACKED))]
             for place in places}  # fmt: skip # a user may have named the packed lines
    if missing := [place for place, tables in found.items() if not all(map(is_there, tables or [place]))]:
        raise UserError(f"{missing[0]} is no table of measurements, and holds no {NAME}")
    return [table for tables in found.values() for table in tables]


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
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
