"""Tables in REGAL's form: mean improvement over a reference method, mean gap from the best known (paper, section 4).

Per graph, improvement = (reference - cost) / reference, where the reference's cost is the mean of its seeds at the same
budget. Gap = cost / best known - 1, best known over all methods, budgets, seeds and rows of the setting. Means are over
graphs, of means over seeds; intervals resample families x seeds, and take the reference's mean as it is.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from graphopt.core.errors import UserError
from graphopt.report.tables.lines import TIE, best_known, blocks, per_graph
from graphopt.report.tables.read_rows import Collected, Entry, Setting
from graphopt.report.tables.render import budget_label, interval_title, setting_title, training
from graphopt.report.tables.statistics import Interval
from graphopt.report.tables.table import Table, as_csv

OTHER_BUDGET, OTHER_WORK = "†", "‡"
NOTE = (
    "improvement: mean over graphs of (reference - found) / reference, reference: the mean over seeds of {over} at "
    "this budget; gap: mean of found / best known - 1, best known over all rows of the setting; in brackets: 95 % "
    "intervals over families x seeds (of random graphs over graphs x seeds). wins: graphs within 0.1 % of the lowest "
    "mean over seeds of methods without mark. s to best: seconds until the answer was found. Not comparable at equal "
    "budget: † has another budget, ‡ proves bounds by work that evaluations do not count."
)


@dataclass(frozen=True, slots=True)
class Improvement:
    """One method over one block of the graphs of a data set, against the reference at one of its budgets."""

    dataset: str
    kind: str  # all, size, family
    block: str
    over: str
    at: float  # the reference's budget
    method: str
    mark: str  # OTHER_BUDGET, OTHER_WORK: not comparable at equal budget
    budget: float
    graphs: int
    seeds: int
    improvement: Interval  # %
    gap: Interval  # %
    wins: int | None  # None for marked methods
    train_evals: float  # mean prices paid for in training
    best_seconds: float  # mean seconds until the answer was found
    seconds: float  # mean seconds of a solve


def improvements(entries: Sequence[Entry], over: str) -> list[Improvement]:
    """Lines of one setting: per data set, budget of the reference and block, methods by rising improvement."""
    best, lines = best_known(entries).judged, list[Improvement]()
    budgets = {e.budget for e in entries if e.method == over}
    alike = {e.method for e in entries if e.budget in budgets}  # others are taken at any budget
    for dataset in sorted({e.dataset for e in entries}):
        inside = [e for e in entries if e.dataset == dataset]
        for at in sorted({e.budget for e in inside if e.method == over}):
            part = [e for e in inside if e.budget == at or e.method not in alike]
            costs: dict[str, list[float]] = defaultdict(list)
            for entry in part:
                if entry.method == over and entry.budget == at:
                    costs[entry.graph].append(entry.judged)
            reference = {graph: float(np.mean(found)) for graph, found in costs.items()}
            solved = [e for e in part if e.graph in reference]
            proving = {e.method for e in solved if e.bound > 0}
            for kind, parts in blocks(solved).items():
                for block, of in parts.items() if kind != "dataset" else ():
                    lines += _block(of, reference, best, proving, (dataset, kind, block, over, at))
    return lines


def settings_of(found: Collected, over: str) -> dict[Setting, list[Entry]]:
    """The settings in which the reference was run. Raises UserError when there are none."""
    chosen = {setting: part for setting, part in found.by_setting().items() if any(e.method == over for e in part)}
    if not chosen:
        methods = ", ".join(sorted({e.method for e in found.entries}))
        raise UserError(f"no rows of {over!r} to improve on; there are rows of {methods}")
    return chosen


def _block(
    entries: Sequence[Entry], reference: Mapping[str, float], best: Mapping[str, float], proving: set[str],
    where: tuple[str, str, str, str, float],
) -> list[Improvement]:  # fmt: skip
    groups: dict[tuple[str, float], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.method, entry.budget].append(entry)
    marks = {
        (method, budget): OTHER_BUDGET * (budget != where[-1]) + OTHER_WORK * (method in proving)
        for method, budget in groups
    }
    wins = _wins({key: part for key, part in groups.items() if not marks[key]})
    lines = [
        Improvement(
            *where, method, marks[method, budget], budget, len({e.graph for e in part}), len({e.seed for e in part}),
            improvement=per_graph(part, lambda e: 100 * (1 - e.judged / reference[e.graph])).interval,
            gap=per_graph(part, lambda e: 100 * (e.judged / best[e.graph] - 1)).interval,
            wins=wins.get((method, budget)),
            train_evals=float(np.mean([e.train_evals for e in part])),
            best_seconds=float(np.mean([e.best_seconds for e in part])),
            seconds=float(np.mean([e.seconds for e in part])),
        )
        for (method, budget), part in groups.items()
    ]  # fmt: skip
    return sorted(lines, key=lambda line: (line.improvement.mean, line.method, line.budget))


def _wins(groups: Mapping[tuple[str, float], Sequence[Entry]]) -> dict[tuple[str, float], int]:
    """Graphs on which a method's mean over seeds is within 0.1 % of the lowest."""
    means: dict[tuple[str, float], dict[str, float]] = {}
    for key, part in groups.items():
        costs = per_graph(part, lambda e: e.judged)
        means[key] = dict(zip(costs.graphs, np.nanmean(costs.values_GS, 1).tolist()))
    lowest: dict[str, float] = {}
    for found in means.values():
        for graph, cost in found.items():
            lowest[graph] = min(cost, lowest.get(graph, math.inf))
    return {key: sum(c <= lowest[g] * (1 + TIE) for g, c in found.items()) for key, found in means.items()}


def improvement_tables(found: Collected, over: str) -> list[Table]:
    """Per setting, data set and budget: the methods, and the same by size and by family."""
    result = []
    for setting, entries in settings_of(found, over).items():
        tables: dict[tuple[str, float, str], list[Improvement]] = defaultdict(list)
        for line in improvements(entries, over):
            tables[line.dataset, line.at, line.kind].append(line)
        for (dataset, at, kind), lines in tables.items():
            of = setting_title(setting, [e for e in entries if e.dataset == dataset])
            title = f"{of}, {dataset}: improvement over {over} at {budget_label(at)} evaluations"
            order = [_name(line) for line in tables[dataset, at, "all"]]
            result.append(_table(title, lines) if kind == "all" else _block_table(kind, lines, order))
    return result


def _table(title: str, lines: Sequence[Improvement]) -> Table:
    ends = interval_title(line.improvement for line in lines)
    columns = ["method", "graphs", "seeds", f"improvement %{ends}", f"gap %{ends}", "wins", "s to best", "s/graph"]
    rows = [[
        _name(line), str(line.graphs), str(line.seeds), line.improvement.text("+.2f"), line.gap.text(".2f"),
        "-" if line.wins is None else f"{line.wins}/{line.graphs}",
        f"{line.best_seconds:.3g}", f"{line.seconds:.3g}", training(line.train_evals),
    ] for line in lines]  # fmt: skip
    top = max((line.improvement.mean for line in lines if not line.mark), default=math.nan)
    bold = {(i, 3) for i, line in enumerate(lines) if not line.mark and line.improvement.mean == top}
    return Table(title, [*columns, "training evals"], rows, bold, note=NOTE.format(over=lines[0].over))


def _block_table(kind: str, lines: Sequence[Improvement], order: Sequence[str]) -> Table:
    """A line per method in the order of the whole, a column per block."""
    labels = {line.block: line for line in lines if line.method == line.over and line.budget == line.at}
    names = sorted({_name(line) for line in lines}, key=order.index)
    cells = {(_name(line), line.block): line.improvement.text("+.2f") for line in lines}
    columns = ["method", *(f"{label} ({labels[label].graphs})" for label in labels)]
    rows = [[name, *(cells.get((name, label), "") for label in labels)] for name in names]
    ends = interval_title(line.improvement for line in lines)
    return Table(f"by {kind}: improvement %{ends} (graphs)", columns, rows, wide=len(labels) > 4)


def _name(line: Improvement) -> str:
    budget = f" ({budget_label(line.budget)})" if OTHER_BUDGET in line.mark else ""
    return f"{line.method}{budget} {line.mark}".strip()


def improvement_csv(found: Collected, over: str) -> str:
    """Every line with its numbers."""
    return as_csv({**dict(setting), **asdict(line)} for setting, entries in settings_of(found, over).items()
                  for line in improvements(entries, over))  # fmt: skip
