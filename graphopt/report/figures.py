"""Headline figures of stored experiments: `graphopt report DIR --figures`. conf/figures.yaml says which, this file how.

An entry of that file has a `name`, a `kind` (a function or form below) and two sides, `ours` and `over`. A side is the
name of an algorithm, fields of rows with the values they may have, or a list of such, of which any may hold. `over` may
also be `default`, the price that each row began with, or several algorithms. Of these the cheapest counts, case by
case, under `least`; under `best` the one that is hardest to beat in the mean.

A case is what the fields under `by` of an experiment, and the seed, are alike in. An algorithm that was run with seed 0
alone stands for every seed, unless `same_seed` is set; with `gaining` only cases count in which the peer gains. `evals`
names the budgets: a list, `each` or `last`. `for` repeats an entry: a variable stands for the key in `name` and for the
value elsewhere; a field's name in place of a mapping means all its values.

Shape legend: F families, S seeds, G graphs.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import yaml

from graphopt import CONF
from graphopt.core.errors import UserError
from graphopt.problems.cost_model import Price, better
from graphopt.report import calibration
from graphopt.report.replay import decision_of
from graphopt.report.tables.reach import ALL, reaches
from graphopt.report.tables.read_rows import collect, read_rows, row_files
from graphopt.report.tables.statistics import Interval, bootstrap, tabled
from graphopt.run.records.answer_file import load
from graphopt.run.records.packed import is_there

FILE = CONF / "figures.yaml"
ADDITIVE, WHOLE = ("flops", "profiled"), ("torch", "onnxruntime_off", "onnxruntime")  # cost models
SLOWER = 1.0001  # a price over another from which it counts as slower
LEAST_ROOM, MUCH_ROOM = 0.01, 1 - 1 / 1.33  # of the default's price: the least that counts as room, and as much room

Row = Mapping[str, Any]
Spec = Mapping[str, Any]
Case = tuple[Any, ...]
Cases = dict[Case, Row]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that an experiment is about. low, high: its 95 % interval, or extremes over seeds or processes; equal
    to the value where it has none."""

    name: str
    value: float
    low: float
    high: float


def figure(name: str, mean: Interval) -> Figure:
    """Of an interval that may be none."""
    return Figure(name, mean.mean, *((mean.low, mean.high) if mean.known else (mean.mean, mean.mean)))


def exact(name: str, value: float) -> Figure:
    return Figure(name, float(value), float(value), float(value))


def figures_of(place: Path) -> list[Figure]:
    """The figures of the experiment whose rows lie in a folder. Raises UserError where the file says nothing of it."""
    rows = [row for row in read_rows(row_files(place))[0] if row.get("status") == "ok"]
    experiments = yaml.safe_load(FILE.read_text())
    named = {str(row.get("study")) for row in rows} & experiments.keys()
    if len(named) != 1:
        known = ", ".join(sorted(experiments))
        raise UserError(f"{place} holds no experiment with headline figures; those that have are: {known}")
    return figures(experiments[named.pop()], rows, place)


def figures(experiment: Spec, rows: Sequence[Row], place: Path = Path()) -> list[Figure]:
    """The figures of an entry of the file; place: the folder of the rows."""
    common = {key: value for key, value in experiment.items() if key != "figures"} | {"place": place}
    found: list[Figure] = []
    entries = (each for entry in experiment["figures"] for each in _listed(entry))
    for entry in entries:
        for spec in _repeated({**common, **entry}, rows):
            chosen = select(rows, spec.get("where", {}))
            if "published" in spec:
                chosen = [row for row in chosen if row["graph"] in published(spec)]
            kind = spec.get("kind", "faster")
            found += paired(spec, chosen) if kind in FORMS else KINDS[kind](spec, chosen)
    return found


def _repeated(entry: Spec, rows: Sequence[Row]) -> Iterator[Spec]:
    """One for every choice of its variables."""
    choices = []
    for variable, values in entry.get("for", {}).items():
        if isinstance(values, str):
            values = sorted({row[values] for row in rows})
        keys = values.items() if isinstance(values, Mapping) else zip(values, values)
        choices.append([(variable, key, value) for key, value in keys])
    for chosen in product(*choices):
        spec = _filled({key: value for key, value in entry.items() if key not in ("for", "name")},
                       {variable: value for variable, _, value in chosen})  # fmt: skip
        yield {**spec, "name": _filled(entry.get("name", ""), {variable: key for variable, key, _ in chosen})}


def _filled(node: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(node, Mapping):
        return {key: _filled(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, variables) for value in node]
    if not isinstance(node, str):
        return node
    if (whole := re.fullmatch(r"\{(\w+)\}", node)) and whole[1] in variables:
        return variables[whole[1]]
    return re.sub(r"\{(\w+)\}", lambda found: str(variables.get(found[1], found[0])), node)


# ---- rows and cases


def select(rows: Sequence[Row], side: Any) -> list[Row]:
    """The rows of a side."""
    if isinstance(side, list):
        return [row for each in side for row in select(rows, each)]
    wanted = {"algo": side} if isinstance(side, str) else side
    found = list(rows)
    for field, value in wanted.items():
        values = _listed(value)
        found = [row for row in found if row.get(field) in values]
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def cases(spec: Spec, rows: Iterable[Row]) -> Cases:
    fields = (*spec.get("by", ["graph"]), "seed")
    return {tuple(row.get(field) for field in fields): row for row in rows}


def everywhere(theirs: Cases, ours: Cases) -> Cases:
    """The rows of a peer for the cases of ours."""
    found = {case: theirs.get(case, theirs.get((*case[:-1], 0))) for case in ours}
    return {case: row for case, row in found.items() if row is not None}


def sides(spec: Spec, rows: Sequence[Row]) -> Iterator[tuple[str, Cases, dict[str, Cases]]]:
    """(name, ours, rows of every peer) at each budget that is asked for and that both sides have."""
    ours, over = select(rows, spec["ours"]), spec.get("over")
    if over == spec["ours"]:
        return  # an algorithm is not compared with itself
    several = next(iter(over.values())) if isinstance(over, Mapping) and {*over} & {"least", "best"} else [over]
    peers = {} if over in (None, "default") else {str(peer): select(rows, peer) for peer in several}
    budgets = {row["evals_cap"] for row in ours if "evals_cap" in row}
    if peers:
        budgets &= {row.get("evals_cap") for of in peers.values() for row in of}
    asked, known = spec.get("evals"), sorted(budgets)
    wanted = known if asked == "each" else known[-1:] if asked == "last" else asked or [None]
    for budget in wanted:
        at = {} if budget is None else {"evals_cap": budget}
        own = cases(spec, select(ours, at))
        theirs = {peer: cases(spec, select(of, at)) for peer, of in peers.items()}
        if not spec.get("same_seed"):
            theirs = {peer: everywhere(of, own) for peer, of in theirs.items()}
        if spec.get("gaining"):
            theirs = {peer: {case: row for case, row in of.items() if row["judged"] < row["initial"]}
                      for peer, of in theirs.items()}  # fmt: skip
        yield spec["name"].replace("{evals}", str(budget)), own, {peer: of for peer, of in theirs.items() if of}


# ---- a number of each case, and their mean


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of figure that is a mean over cases: value of a case from our price and theirs, and the mean in words."""

    value: Callable[[float, float], float]
    said: Callable[[float], float]


FORMS = {
    "faster": Form(lambda own, other: math.log(other / own), lambda mean: 100 * math.expm1(mean)),  # %
    "speed_up": Form(lambda own, other: math.log(other / own), math.exp),
    "ratio": Form(lambda own, other: math.log(own / other), math.exp),
    "slower": Form(lambda own, other: float(own > SLOWER * other), lambda mean: 100 * mean),  # % of the cases
    "percent": Form(lambda own, other: own, lambda mean: 100 * mean),
    "times": Form(lambda own, other: own / other, lambda mean: mean),
}


def price(spec: Spec, row: Row) -> float:
    """The compared price of a row: by the judge, or as the entry says under `price`."""
    what = spec.get("price", "judged")
    if what == "relative":
        return float(row["judged"] / row["initial"])
    if what == "saved":
        return float(1 - row["judged"] / row["initial"])
    if what == "trace":  # the best after so many evaluations
        file = decision_of(row) if row.get("decision") else None
        steps = _trace(file) if file and is_there(file) else [(evals, cost) for evals, *_, cost in row["trace"]]
        return min(cost for evals, cost in steps if evals <= spec["at"])
    return float(row[what])


@lru_cache(maxsize=512)
def _trace(decision: Path) -> list[tuple[float, float]]:
    return [(float(evals), float(cost)) for evals, _, cost in load(decision).trace]


def paired(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """Nothing where the sides share no case."""
    form, over = FORMS[spec.get("kind", "faster")], spec.get("over")
    for name, ours, peers in sides(spec, rows):
        own = {case: price(spec, row) for case, row in ours.items()}
        theirs = [{case: price(spec, row) for case, row in of.items()} for of in peers.values()]
        if over == "default":
            theirs = [{case: float(row["initial"]) for case, row in ours.items()}]
        elif over is None:  # the number says it alone: a share, or a price over the default's
            theirs = [dict.fromkeys(ours, 1.0)]

        def mean(of: Mapping[Case, float], own: Mapping[Case, float] = own, ours: Cases = ours) -> Interval | None:
            values = {case: form.value(own[case], of[case]) for case in own if of.get(case, 0) > 0}
            return over_families(spec, values, ours)

        if isinstance(over, Mapping) and "best" in over:
            theirs = sorted((of for of in theirs if mean(of)), key=lambda of: mean(of).mean)[:1]  # type: ignore[union-attr]
        shared = set.intersection(*(set(of) for of in theirs)) if theirs else set()
        least = {case: min(of[case] for of in theirs) for case in own if case in shared}
        if found := mean(least):
            yield figure(name, found.of(form.said))


def over_families(spec: Spec, values: Mapping[Case, float], of: Cases) -> Interval | None:
    """The mean of a number of each case; None of no case. By `mean`: `families`, of the means of a family's cases, of
    each seed; families and seeds are drawn anew. `pooled`: likewise, over all seeds. `graphs`: of graphs."""
    if not values:
        return None
    family = {case: str(of[case][spec.get("family", "family")]) for case in values}
    how = spec.get("mean", "families")
    if how == "graphs":
        return tabled((str(case[:-1]), family[case], case[-1], value) for case, value in values.items()).interval
    places: dict[tuple[str, Any], list[float]] = {}
    for case in values:
        places.setdefault((family[case], 0 if how == "pooled" else case[-1]), []).append(values[case])
    families, seeds = list(dict.fromkeys(name for name, _ in places)), sorted({seed for _, seed in places})
    names = families if how == "pooled" else sorted(families)
    values_FS = np.full((len(names), len(seeds)), np.nan)
    for (name, seed), each in places.items():
        values_FS[names.index(name), seeds.index(seed)] = np.mean(each)
    return bootstrap(values_FS, range(len(names)))


# ---- kinds that are no mean over cases


def counts(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """In how many cases all of `shown` hold: `A < B` of `ours`, `over` and their defaults, beyond noise."""
    for name, ours, peers in sides(spec, rows):
        over = next(iter(peers.values()), {})
        shared = [case for case in ours if case in over or "over" not in spec]
        if shared:
            yield exact(name, sum(all(_shown(test, ours[case], over.get(case)) for test in spec["shown"])
                                  for case in shared))  # fmt: skip


def _shown(test: str, ours: Row, over: Row | None) -> bool:
    prices = {}
    for side, row in (("ours", ours), ("over", over or ours)):
        prices[side] = Price(row["judged"], row.get("noise", 0.0))
        prices[f"{side}_default"] = Price(row["initial"])
    lower, _, higher = test.split()
    return better(prices[lower], prices[higher])


def share_of_gain(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """Of the logarithm of a peer's gain; the mean, the least and the most of the seeds."""
    for name, ours, peers in sides(spec, rows):
        over, shares = next(iter(peers.values()), {}), []
        for seed in sorted({case[-1] for case in ours}):
            both = [case for case in ours if case in over and case[-1] == seed]
            mine, theirs = (sum(math.log(of[case]["initial"] / of[case]["judged"]) for case in both)
                            for of in (ours, over))  # fmt: skip
            shares += [mine / theirs] if theirs > 0 else []
        if shares:
            yield Figure(name, fmean(shares), min(shares), max(shares))


def room(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """Of cases of which `algo=lower_bound` has proved a bound: `room/NAME`, how far it is below the default, in
    percent; `share_of_room/NAME`, how much of that was taken, where it is at least a hundredth of the default's price.
    Of cases where the bound is 1.33 times as fast or more: `over_default_with_much_room/NAME`, and
    `best_with_much_room/NAME`, the same of the best of all rows."""
    proved = cases(spec, [row for row in rows if row["algo"] == "lower_bound" and row["bound"]])
    best: dict[tuple[Any, float], float] = {}
    for row in rows:
        place = cases(spec, [row]).popitem()[0][:-1], float(row["initial"])
        best[place] = min(best.get(place, math.inf), float(row["judged"]))
    for name, ours, _ in sides(spec, rows):
        bound = everywhere(proved, ours)
        found = {case: ours[case] for case in ours if case in bound}
        left = {case: 1 - bound[case]["bound"] / row["initial"] for case, row in found.items()}
        taken = {case: (1 - row["judged"] / row["initial"]) / left[case]
                 for case, row in found.items() if left[case] >= LEAST_ROOM}  # fmt: skip
        much = {case: row for case, row in found.items() if left[case] >= MUCH_ROOM}
        for title, values in (("share_of_room", taken), ("room", left)):
            if mean := over_families(spec, values, found):
                yield figure(f"{title}/{name}", mean.of(lambda share: 100 * share))
        for title, prices in (
            ("over_default_with_much_room", {case: float(row["judged"]) for case, row in much.items()}),
            ("best_with_much_room", {case: best[case[:-1], float(row["initial"])] for case, row in much.items()}),
        ):
            logs = {case: math.log(much[case]["initial"] / cost) for case, cost in prices.items()}
            if mean := over_families(spec, logs, much):
                yield figure(f"{title}/{name}", mean.of(FORMS["faster"].said))


def evaluations_to(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """Evaluations to `share` of the gain of the peer's answer, over those that the peer needs; cases that never get
    there count with the larger budget. `gain`: of the peer's price in the end, which was measured anew (`raced`, no
    more than prices of the search show), or of the lowest of its trace (`lowest`). NAME/solves: cases; NAME/missed: of
    which never."""
    for name, ours, peers in sides(spec, rows):
        peer, logs, missed = next(iter(peers.values()), {}), {}, 0
        for case in (case for case in ours if case in peer):
            mine, theirs = ours[case], peer[case]
            gain = 1 - min(cost for *_, cost in theirs["trace"]) / theirs["trace"][0][2]
            if spec["gain"] == "raced":
                gain = min(gain, 1 - theirs["judged"] / theirs["initial"])
            needed = [_needed(row, spec["share"] * gain) for row in (mine, theirs)]
            missed += needed[0] is None
            cap = max(mine["evals_cap"], theirs["evals_cap"])
            own, other = (float(cap if evals is None else evals) for evals in needed)
            logs[case] = math.log(other / own if spec.get("inverse") else own / other)
        if mean := over_families(spec, logs, ours):
            yield figure(name, mean.of(np.exp))
            yield exact(f"{name}/solves", len(logs))
            yield exact(f"{name}/missed", missed)


def _needed(row: Row, gain: float) -> int | None:
    """Evaluations until so much was gained, at least one."""
    reached = (evals for evals, _, cost in row["trace"] if cost <= (1 - gain + 1e-12) * row["trace"][0][2])
    found = next(reached, None)
    return None if found is None else max(1, int(found))


def samples(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """The last table of `report --reach`, of learned methods: NAME/METHOD is its share of samples."""
    entries = [entry for entry in collect(spec["place"]).entries if dict(entry.setting)["split"] == "test"]
    learned = {entry.method for entry in entries if entry.learned}
    for line in reaches(entries, spec["over"]):
        if line.graph == ALL and line.method in learned:
            yield figure(f"{spec['name']}/{line.method}", line.share)


def published(spec: Spec) -> dict[str, float]:
    """Graph -> cost of others: of the file, or of a file of third parties. Raises UserError where that is not here."""
    if isinstance(spec["published"], Mapping):
        return {graph: float(cost) for graph, cost in spec["published"].items()}
    file = Path(os.environ.get("GRAPHOPT_CHECK_DATA", "../shared/data")) / spec["published"]
    if not file.is_file():
        raise UserError(f"no file {file}: set GRAPHOPT_CHECK_DATA to the folder with the published costs")
    return {graph: float(known["published_cost"]) for graph, known in json.loads(file.read_text()).items()}


def points(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """Published cost over ours, at most 1, of medians over seeds, the mean over graphs; low, high: of each the worst
    and the best seed. `each`: a name under which ours over the published cost stands of every graph."""
    known, costs = published(spec), _costs(spec, rows)
    if costs:
        yield Figure(spec["name"], *(fmean(min(1.0, known[graph] / of(each)) for graph, each in costs.items())
                                     for of in (median, max, min)))  # fmt: skip
    for graph, each in sorted(costs.items()) if "each" in spec else ():
        yield Figure(f"{spec['each']}/{graph}", *(of(each) / known[graph] for of in (median, min, max)))


def at_published(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """Of how many graphs the median of the seeds is at the published cost or below, and `below`, which are whole
    numbers; low, high: of the worst and the best seeds. `valid`: both evaluators accept every seed's answer. `proved`:
    an answer under `proofs` costs no more than the bound that it proves."""
    known, costs, name = published(spec), _costs(spec, rows), spec["name"]
    if not costs:
        return
    for title, margin in (("at_or_below", 0.5), ("below", -0.5)):
        counts = [sum(sorted(each)[place(len(each))] <= known[graph] + margin for graph, each in costs.items())
                  for place in (lambda many: many // 2, lambda many: many - 1, lambda _: 0)]  # fmt: skip
        yield Figure(f"{name}/{title}", *map(float, counts))
    refused = {row["graph"] for row in select(rows, spec["ours"]) if not row["valid"]}
    yield exact(f"{name}/valid", len(costs.keys() - refused))
    proofs = [row for row in select(rows, spec["proofs"]) if 0 < row["judged"] <= row["bound"]]
    yield exact(f"{name}/proved", len({row["graph"] for row in proofs}))


def _costs(spec: Spec, rows: Sequence[Row]) -> dict[str, list[float]]:
    """Graph -> costs of its seeds."""
    found: dict[str, list[float]] = {}
    for row in select(rows, spec["ours"]):
        found.setdefault(row["graph"], []).append(float(row["judged"]))
    return found


def measured_field(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """A number that rows hold, with its ends: NAME/GRAPH."""
    for row in select(rows, spec["ours"]):
        yield Figure(f"{spec['name']}/{row['graph']}", *(float(row[field]) for field in spec["fields"]))


def largest(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """The largest number under a field."""
    yield exact(spec["name"], max(float(row[spec["field"]]) for row in select(rows, spec["ours"])))


def rises(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """How often the peak of memory rises when the budget falls, over all graphs."""
    peaks: dict[str, list[int]] = {}
    for row in sorted(select(rows, spec["ours"]), key=lambda row: -row["budget"]):
        peaks.setdefault(row["graph"], []).append(row["peak_bytes"])
    yield exact(spec["name"], sum(after > before for each in peaks.values() for before, after in pairwise(each)))


def discrepancy(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """X-RLflow's Table 1: by how much sums over ops are off, |predicted / measured - 1|, the mean over models
    as they are. Each row has the judge's price, and under `searched_initial` that of the search's cost model. Raises
    UserError where no whole program was measured."""
    prices: dict[str, dict[str, float]] = {}  # of each graph, by cost model
    for row in rows:
        known = prices.setdefault(row["graph"], {})
        known |= {row["judge"]: row["initial"], row["cost"]: row["searched_initial"]}
    if not any(known.keys() & {*WHOLE} for known in prices.values()):
        raise UserError("no row was judged by a whole program; run experiment=cost_discrepancy first")
    for measured, predicted in product(WHOLE, ADDITIVE):
        both = [known for known in prices.values() if predicted in known and measured in known]
        if both:
            off = np.array([[abs(known[predicted] / known[measured] - 1.0)] for known in both])
            yield figure(f"{predicted} to {measured}", bootstrap(off, range(len(off))))


def ranked(spec: Spec, rows: Sequence[Row]) -> Iterator[Figure]:
    """How well cost models rank measured plans."""
    yield from (Figure(name, *ends) for name, ends in calibration.scores(spec["place"], rows))


KINDS: Mapping[str, Callable[[Spec, Sequence[Row]], Iterator[Figure]]] = {
    "counts": counts, "share_of_gain": share_of_gain, "room": room, "evaluations_to": evaluations_to,
    "samples": samples, "points": points, "at_published": at_published, "measured_field": measured_field,
    "largest": largest, "rises": rises, "discrepancy": discrepancy, "ranked": ranked,
}  # fmt: skip
