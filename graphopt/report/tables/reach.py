"""Tables in LAF's form: the gain of a search over the default, and after how many evaluations (paper, Table 1).

Per graph and seed, a method's samples are the evaluations after which its trace first is as good as the reference's
last with the same seed; for the reference itself, when it got there. The share of samples is their ratio; a method that
never gets there counts with its whole budget, which flatters it, and is marked with >. Traces are those of the decision
files, which hold every improvement.

The reference is a method, or `best_unlearned`: of each graph the method without parameters that ends lowest, in the
mean over seeds. Among equals it is the one with the fewest evaluations to its best.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from graphopt.report.tables.improvement import settings_of
from graphopt.report.tables.read_rows import Collected, Entry, Setting
from graphopt.report.tables.render import budget_label, setting_title
from graphopt.report.tables.statistics import Interval, tabled
from graphopt.report.tables.table import Table, as_csv, changes
from graphopt.run.records.answer_file import load
from graphopt.run.records.packed import is_there

NOTE = (
    "improvement: median over seeds of (default - found) / default, least and most in brackets. samples: median over "
    "seeds of the evaluations after which a method is as good as {over} ends with the same seed. share: geometric mean "
    "over seeds of samples / those of {over}, least and most in brackets; in the last table over graphs and seeds, "
    "with 95 % intervals that resample families and seeds. "
    "> : some seeds did not get there (as many as in brackets) and count with the whole budget."
)
ALL, BEST_UNLEARNED = "all graphs", "best_unlearned"


@dataclass(frozen=True, slots=True)
class Reach:
    """One method on one graph, or on all, at one budget."""

    budget: float
    graph: str
    ops: int
    method: str
    seeds: int
    improvement: float  # %, median over seeds
    least: float
    most: float
    samples: float  # median over seeds
    share: Interval  # of the reference's samples, geometric mean; an interval over several graphs only
    share_least: float
    share_most: float
    missed: int  # solves that never got as far as the reference ...
    solves: int  # ... of so many


@dataclass(frozen=True, slots=True)
class _Solve:
    entry: Entry
    samples: float
    share: float
    missed: bool


def reaches(entries: Sequence[Entry], over: str) -> list[Reach]:
    """Lines of one setting: per budget, graphs by number of ops, methods by rising share; then all graphs."""
    lines = []
    for budget in sorted({e.budget for e in entries if over in (e.method, BEST_UNLEARNED)}):
        solves = _solves([e for e in entries if e.budget == budget], over)
        graphs: dict[str, list[_Solve]] = defaultdict(list)
        for solve in solves:
            graphs[solve.entry.graph].append(solve)
        for part in sorted(graphs.values(), key=lambda part: part[0].entry.ops):
            lines += _lines(part, budget, part[0].entry.graph_name)
        lines += _lines(solves, budget, ALL) if len(graphs) > 1 else []
    return lines


def _solves(entries: Sequence[Entry], over: str) -> list[_Solve]:
    """Those with a reference of the same graph and seed, which found something better than the default."""
    entries = sorted(entries, key=lambda e: e.graph)  # a pack keeps the answers to a graph together
    goals = {(e.graph, e.seed): e for e in _references(entries, over) if e.searched < _start(e)}
    own = {key: _samples(goal, goal.searched) for key, goal in goals.items()}
    found = []
    for entry in entries:
        key = entry.graph, entry.seed
        if key not in goals or entry.budget <= 0:
            continue
        goal, reference = goals[key], own[key]
        if not reference:  # of damaged rows: nothing is reached with no samples at all, or its trace does not reach it
            continue
        samples = reference if entry is goal else _samples(entry, goal.searched)
        found.append(_Solve(entry, samples or entry.budget, (samples or entry.budget) / reference, samples is None))
    return found


def _references(entries: Sequence[Entry], over: str) -> list[Entry]:
    """Those of the method, or of each graph's best unlearned one."""
    if over != BEST_UNLEARNED:
        return [e for e in entries if e.method == over]
    groups: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        if not entry.learned:
            groups[entry.graph][entry.method].append(entry)
    return [entry for methods in groups.values() for entry in min(methods.values(), key=_rank)]


def _rank(part: Sequence[Entry]) -> tuple[float, float]:
    """(mean of the ends, mean evaluations to them)."""
    return float(np.mean([e.searched for e in part])), float(np.mean([e.trace[-1][0] if e.trace else 0 for e in part]))


def _start(entry: Entry) -> float:
    return entry.trace[0][1] if entry.trace else entry.initial


def _samples(entry: Entry, goal: float) -> float | None:
    """Evaluations after which the trace is at the goal or below; None when it never is."""
    return next((evals for evals, cost in trace_of(entry) if cost <= goal * (1 + 1e-12)), None)


def trace_of(entry: Entry) -> Iterable[tuple[float, float]]:
    """Every improvement, from the decision file; those of the row where there is none."""
    if entry.decision is None or not is_there(entry.decision):
        return entry.trace
    return [(float(evals), float(cost)) for evals, _, cost in load(entry.decision).trace]


def _lines(solves: Sequence[_Solve], budget: float, graph: str) -> list[Reach]:
    methods: dict[str, list[_Solve]] = defaultdict(list)
    for solve in solves:
        methods[solve.entry.method].append(solve)
    lines = []
    for method, part in methods.items():
        gains = [100 * (1 - s.entry.judged / s.entry.initial) for s in part]
        logs = tabled((s.entry.graph, s.entry.sampled, s.entry.seed, float(np.log(s.share))) for s in part)
        lines.append(Reach(
            budget, graph, part[0].entry.ops, method, len({s.entry.seed for s in part}), float(np.median(gains)),
            min(gains), max(gains), float(np.median([s.samples for s in part])), logs.interval.of(np.exp),
            min(s.share for s in part), max(s.share for s in part), sum(s.missed for s in part), len(part),
        ))  # fmt: skip
    return sorted(lines, key=lambda line: line.share.mean)


def reach_lines(found: Collected, over: str) -> dict[Setting, list[Reach]]:
    """`reaches` of every setting that has the reference; reads every decision file once."""
    return {setting: reaches(entries, over) for setting, entries in _settings(found, over).items()}


def _settings(found: Collected, over: str) -> Mapping[Setting, Sequence[Entry]]:
    return found.by_setting() if over == BEST_UNLEARNED else settings_of(found, over)


def reach_tables(found: Collected, lines_of: Mapping[Setting, Sequence[Reach]], over: str) -> list[Table]:
    """Per setting and budget: one table over graphs and methods, one over all graphs."""
    result = []
    for setting, entries in _settings(found, over).items():
        tables: dict[tuple[float, bool], list[Reach]] = defaultdict(list)
        for line in lines_of[setting]:
            tables[line.budget, line.graph == ALL].append(line)
        for (budget, whole), lines in tables.items():
            title = f"{setting_title(setting, entries)}: samples to reach {over} at {budget_label(budget)} evaluations"
            result.append(_whole(lines, over) if whole else _by_graph(title, lines, over))
    return result


def _by_graph(title: str, lines: Sequence[Reach], over: str) -> Table:
    columns = ["graph", "ops", "method", "improvement % [least, most]", "samples", "share [least, most]"]
    breaks = changes([line.graph for line in lines])
    rows = [[
        *((line.graph, f"{line.ops:,}") if i == 0 or i - 1 in breaks else ("", "")), line.method,
        f"{line.improvement:.2f} [{line.least:.2f}, {line.most:.2f}]", _marked(line, f"{line.samples:,.0f}"),
        f"{line.share.mean:.2f} [{line.share_least:.2f}, {line.share_most:.2f}]",
    ] for i, line in enumerate(lines)]  # fmt: skip
    return Table(title, columns, rows, breaks=breaks, note=NOTE.format(over=over))


def _whole(lines: Sequence[Reach], over: str) -> Table:
    columns = ["method", "seeds", "share of samples [95 %]", "solves that did not get there"]
    rows = [[line.method, str(line.seeds), _marked(line, line.share.text(".2f")), str(line.missed)] for line in lines]
    return Table(f"all graphs: share of the samples of {over}, geometric mean", columns, rows)


def _marked(line: Reach, text: str) -> str:
    return f"> {text} ({line.missed})" if line.missed else text


def reach_csv(lines_of: Mapping[Setting, Sequence[Reach]]) -> str:
    """Every line with its numbers."""
    return as_csv({**dict(setting), **asdict(line)} for setting, lines in lines_of.items() for line in lines)
