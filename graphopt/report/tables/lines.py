"""Rows -> lines of a table: the result of each method at each budget, and against each other."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphopt.problems.cost_model import SURE
from graphopt.report.tables.read_rows import Entry
from graphopt.report.tables.statistics import GraphValues, Interval, tabled

SIZES: tuple[tuple[str, int, float], ...] = (
    ("<300 ops", 0, 300),
    ("300-1,000 ops", 300, 1_000),
    ("1,000-5,000 ops", 1_000, 5_000),
    (">=5,000 ops", 5_000, math.inf),
)
TIE = 1e-3  # a method wins on a graph when it is within this share of the best at its budget
REACH = 0.9  # share of the best known improvement whose cost in evaluations is reported


@dataclass(frozen=True, slots=True)
class Line:
    """One method at one budget over one block of graphs."""

    block: str
    method: str
    budget: float
    graphs: int
    seeds: int
    speedup: Interval  # geometric mean of initial / judged
    improvement: float  # mean of (initial - judged) / initial, %
    wins: int  # graphs on which it is within 0.1 % of the best at this budget
    losses: int  # solved graphs that ended slower than their default
    gap: float  # mean of (judged - best known) / best known, %
    proved_gap: float  # mean of (judged - best bound) / best bound, %, of graphs with a bound; NaN where none has
    reach: float  # median of evaluations to 90 % of the best known improvement; inf when less than half reach it
    reached: float  # share of solved graphs that reach it; NaN when no graph can be improved
    train_evals: float  # mean prices paid for in training
    best_seconds: float  # mean seconds until the answer was found
    seconds: float  # mean seconds of a solve


@dataclass(frozen=True, slots=True)
class Difference:
    """A method against another one at the same budget, paired by graph and seed."""

    method: str
    against: str
    budget: float
    graphs: int
    ratio: Interval  # geometric mean of the other's cost / this one's; above 1: this one is better


@dataclass(frozen=True)
class Best:
    """Best known costs of the graphs of one setting, over all methods, budgets and seeds."""

    judged: dict[str, float]
    searched: dict[str, float]
    bound: dict[str, float]  # the highest proved bound, if any, on the judge's price


def best_known(entries: Iterable[Entry]) -> Best:
    judged: dict[str, float] = {}
    searched: dict[str, float] = {}
    bound: dict[str, float] = {}
    for entry in entries:
        setting = dict(entry.setting)
        if entry.bound > 0 and setting["judge"] in (setting["cost"], "None"):
            bound[entry.graph] = max(entry.bound, bound.get(entry.graph, 0.0))
        judged[entry.graph] = min(entry.judged, entry.initial, judged.get(entry.graph, math.inf))
        searched[entry.graph] = min(entry.searched, searched.get(entry.graph, math.inf))
    return Best(judged, searched, bound)


def group(entries: Iterable[Entry]) -> dict[tuple[float, str], list[Entry]]:
    """(budget, method) -> entries, by rising budget; methods by name, the default first."""
    groups: dict[tuple[float, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.budget, entry.method].append(entry)
    return dict(sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] != "default", item[0][1])))


def summarise(entries: Sequence[Entry], block: str, best: Best) -> list[Line]:
    """One line per (budget, method) of one block of one setting."""
    groups = group(entries)
    wins = count_wins(groups)
    return [_line(block, method, budget, part, wins[budget, method], best) for (budget, method), part in groups.items()]


def _line(block: str, method: str, budget: float, part: list[Entry], wins: int, best: Best) -> Line:
    bounded = [entry for entry in part if entry.graph in best.bound]
    reaches = [r for r in (evals_to_reach(entry, best.searched[entry.graph]) for entry in part) if r is not None]
    return Line(
        block, method, budget, len({entry.graph for entry in part}), len({entry.seed for entry in part}),
        speedup=per_graph(part, lambda e: math.log(e.speedup)).interval.of(np.exp),
        improvement=_mean(part, lambda e: 100 * (e.initial - e.judged) / e.initial),
        wins=wins,
        losses=sum(entry.lost for entry in part),
        gap=_mean(part, lambda e: 100 * (e.judged / best.judged[e.graph] - 1)),
        proved_gap=_mean(bounded, lambda e: 100 * (e.judged / best.bound[e.graph] - 1)) if bounded else math.nan,
        reach=float(np.median(reaches)) if reaches else math.nan,
        reached=sum(math.isfinite(r) for r in reaches) / len(reaches) if reaches else math.nan,
        train_evals=_mean(part, lambda e: e.train_evals),
        best_seconds=_mean(part, lambda e: e.best_seconds),
        seconds=_mean(part, lambda e: e.seconds),
    )  # fmt: skip


def per_graph(part: Iterable[Entry], value: Callable[[Entry], float]) -> GraphValues:
    """A number of each entry, by graph and seed."""
    return tabled((entry.graph, entry.sampled, entry.seed, value(entry)) for entry in part)


def _mean(part: Iterable[Entry], value: Callable[[Entry], float]) -> float:
    return float(np.nanmean(np.nanmean(per_graph(part, value).values_GS, 1)))


def count_wins(groups: dict[tuple[float, str], list[Entry]]) -> dict[tuple[float, str], int]:
    """Graphs on which a method's geometric mean over seeds is within 0.1 % of the best at the same budget, or more
    where measured prices are noisier."""
    cost: dict[tuple[float, str], dict[str, float]] = {}
    for key, part in groups.items():
        logs = per_graph(part, lambda e: math.log(e.judged))
        cost[key] = dict(zip(logs.graphs, np.nanmean(logs.values_GS, 1).tolist()))
    noise: dict[str, float] = {}
    for entry in (entry for part in groups.values() for entry in part):
        noise[entry.graph] = max(entry.noise, noise.get(entry.graph, 0.0))
    lowest: dict[tuple[float, str], float] = {}
    for (budget, _), costs in cost.items():
        for graph, log in costs.items():
            lowest[budget, graph] = min(log, lowest.get((budget, graph), math.inf))
    slack = {graph: math.log1p(max(TIE, SURE * math.sqrt(2) * error)) for graph, error in noise.items()}
    return {(b, m): sum(log <= lowest[b, g] + slack[g] for g, log in c.items()) for (b, m), c in cost.items()}


def evals_to_reach(entry: Entry, best_searched: float) -> float | None:
    """Evaluations until the search had 90 % of the best known improvement; inf if never, None where there is none."""
    if not entry.trace:
        return None
    start = entry.trace[0][1]
    if best_searched >= start * (1 - 1e-9):
        return None
    target = start - REACH * (start - best_searched)
    if entry.budget == 0 and entry.searched <= target * (1 + 1e-12):  # an answer without evaluations leaves no trace
        return 0.0
    return next((evals for evals, cost in entry.trace if cost <= target * (1 + 1e-12)), math.inf)


def blocks(entries: Sequence[Entry]) -> dict[str, dict[str, list[Entry]]]:
    """{"all" | "size" | "family" | "dataset": {block: entries}}; kinds with a single block are left out."""
    found: dict[str, dict[str, list[Entry]]] = {"all": {"all": list(entries)}}
    sizes = {label: [e for e in entries if low <= e.ops < high] for label, low, high in SIZES}
    kinds = {"size": {label: part for label, part in sizes.items() if part}}
    for kind in ("family", "dataset"):
        kinds[kind] = {
            b: [e for e in entries if getattr(e, kind) == b] for b in sorted({getattr(e, kind) for e in entries})
        }
    return found | {kind: parts for kind, parts in kinds.items() if len(parts) > 1}


def differences(entries: Sequence[Entry], against: str) -> list[Difference]:
    """Every other method against one, at every budget that both were run at, on the graphs that both solved."""
    groups = group(entries)
    lines = []
    for (budget, method), part in groups.items():
        other = groups.get((budget, against))
        if other is None or method == against:
            continue
        logs = paired_logs(part, other)
        if logs.graphs:
            lines.append(Difference(method, against, budget, len(logs.graphs), logs.interval.of(np.exp)))
    return lines


def paired_logs(part: Sequence[Entry], other: Sequence[Entry]) -> GraphValues:
    """log(other's cost / this one's). Paired by seed, or with the other's mean over its seeds."""
    theirs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in other:
        theirs[entry.graph][entry.seed].append(math.log(entry.judged))
    cells = []
    for entry in part:
        seeds = theirs.get(entry.graph)
        if seeds:
            logs = seeds.get(entry.seed) or [log for values in seeds.values() for log in values]
            cells.append((entry.graph, entry.sampled, entry.seed, float(np.mean(logs)) - math.log(entry.judged)))
    return tabled(cells)


def repeated(entries: Iterable[Entry]) -> int:
    """Groups of rows equal in setting, method, budget, graph and seed with different prices: several were pooled."""
    prices: dict[tuple[object, ...], set[float]] = defaultdict(set)
    for e in entries:
        prices[e.setting, e.method, e.budget, e.graph, e.seed].add(e.judged)
    return sum(len(found) > 1 for found in prices.values())


def telling(entries: Sequence[Entry]) -> list[Entry]:
    """Without repetitions of the default: the default at further budgets, and searches that had no evaluations."""
    lowest = min((e.budget for e in entries if e.method == "default"), default=math.inf)
    groups = group(entries)
    idle = {
        key for key, part in groups.items()
        if key[0] == 0 and key[1] != "default" and not any(e.learned or e.judged != e.initial for e in part)
    }  # fmt: skip
    again = {key for key in groups if key[1] == "default" and key[0] > lowest}
    return [e for e in entries if (e.budget, e.method) not in idle | again]
