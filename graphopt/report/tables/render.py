"""The tables of a report, and their numbers as CSV, from the same lines; rows that have no ratio are counted apart."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from graphopt.report.tables.lines import Line, best_known, blocks, differences, group, repeated, summarise, telling
from graphopt.report.tables.read_rows import Collected, Entry, Setting, number
from graphopt.report.tables.statistics import Interval
from graphopt.report.tables.table import Table, as_csv, changes, highest

NO_PLAN = "no plan found fits the devices' memory"
FITS = "found a plan that fits, where the default does not: no ratio"
Reason = tuple[str, str, str, str]  # status, task, algo, reason


def tables(found: Collected, against: str, own: str | None = None) -> list[Table]:
    """All tables of a report, in order. The last ones: how far each method is ahead of `against`, or with `own` how far
    that method is ahead of each."""
    result: list[Table] = []
    for setting, entries in found.by_setting().items():
        best, shown = best_known(entries), telling(entries)
        kept = {(e.budget, e.method) for e in shown}
        kinds = blocks(shown)
        lines = [line for line in summarise(entries, "all", best) if (line.budget, line.method) in kept]
        result.append(_overall(setting, entries, lines))
        if "size" in kinds:
            result.append(_by_size(kinds["size"], ratio_name(setting)))
        for kind in ("family", "dataset"):
            result += _by_kind(kind, kinds.get(kind, {}), ratio_name(setting))
        result += _ahead(entries, own) if own else _paired(shown, against)
    return result + apart(found)


def _overall(setting: Setting, entries: Sequence[Entry], lines: Sequence[Line]) -> Table:
    ratio = ratio_name(setting)
    found = f"{ratio}{interval_title(line.speedup for line in lines)}"
    columns = ["budget", "method", found, "wins", "losses", "gap %", "evals to 90 %", "improved %"]
    columns += ["s to best", "s/graph"]
    rows = [
        [
            *(budget_label(line.budget), line.method, line.speedup.text(".3f"), f"{line.wins}/{line.graphs}"),
            *(str(line.losses), f"{line.gap:.2f}", _reach(line), f"{line.improvement:.2f}"),
            *(_seconds(line.best_seconds), _seconds(line.seconds)),
        ]
        for line in lines
    ]
    proved = any(not math.isnan(line.proved_gap) for line in lines)
    if proved:
        columns.insert(6, "proved gap %")
        for row, line in zip(rows, lines):
            row.insert(6, "-" if math.isnan(line.proved_gap) else f"{line.proved_gap:.2f}")
    if any(line.train_evals for line in lines):
        columns.append("training evals")
        for row, line in zip(rows, lines):
            row.append(training(line.train_evals))
    bold = highest((line.budget, (i, 2), line.speedup.mean) for i, line in enumerate(lines))
    breaks = changes([line.budget for line in lines])
    noise = max(entry.noise for entry in entries)
    note = (
        f"{ratio}: geometric mean of default / found by the judge; 95 % intervals over families x seeds (of random "
        "graphs over graphs x seeds). wins: graphs within 0.1 % of the best at this budget. losses: solves slower than "
        "the default. gap: over the best known of all rows. s to best: seconds until the answer was found. "
        f"{'proved gap: over the highest bound proved, of graphs that have one. ' if proved else ''}"
        "evals to 90 %: median to 90 % of the best known improvement (share that reaches it)."
        f"{f' The judge measures: its prices have standard errors of up to {100 * noise:.2g} %.' if noise else ''}"
    )
    return Table(setting_title(setting, entries), columns, rows, bold, breaks, left=2, note=note)


def ratio_name(setting: Setting) -> str:
    """The name of default / found."""
    return "memory ratio" if dict(setting)["objective"] == "peak_memory" else "speed-up"


def setting_title(setting: Setting, entries: Sequence[Entry]) -> str:
    """The comparison, in one line."""
    fields = dict(setting)
    judge = fields["judge"]
    price = fields["cost"] if judge in (fields["cost"], "None") else f"{fields['cost']}, judged by {judge}"
    graphs, seeds = len({e.graph for e in entries}), len({e.seed for e in entries})
    counts = f"{graphs} graph{'s' * (graphs != 1)}, {seeds} seed{'s' * (seeds != 1)}"
    split = "" if fields["split"] in ("None", "test") else f", {fields['split']} split"
    study = "" if fields["study"] == "None" else f"{fields['study']}: "
    return f"{study}{fields['task']} on {fields['machine']}, {fields['objective']} by {price}{split} ({counts})"


def _by_size(parts: dict[str, list[Entry]], ratio: str) -> Table:
    columns = ["budget", "method", *(f"{label} ({len({e.graph for e in part})})" for label, part in parts.items())]
    keys = list(group(e for part in parts.values() for e in part))
    cells = {label: _speedups(part) for label, part in parts.items()}
    rows = [[budget_label(key[0]), key[1], *(cell[key].text(".3f") if key in cell else "" for cell in cells.values())]
            for key in keys]  # fmt: skip
    ends = interval_title(interval for part in cells.values() for interval in part.values())
    bold = highest(((column, key[0]), (keys.index(key), column), value.mean)
                   for column, label in enumerate(parts, start=2) for key, value in cells[label].items())  # fmt: skip
    return Table(f"by graph size: {ratio}{ends} (graphs)", columns, rows, bold, changes([b for b, _ in keys]), left=2)


def _by_kind(kind: str, parts: dict[str, list[Entry]], ratio: str) -> list[Table]:
    """One table per budget, blocks down and methods across; on the terminal the largest budget with most methods."""
    if not parts:
        return []
    keys = list(group(e for part in parts.values() for e in part))
    methods_at = Counter(budget for budget, _ in keys)
    shown = max(methods_at, key=lambda budget: (methods_at[budget], budget))
    result = []
    for budget in methods_at:
        methods = [m for b, m in keys if b == budget]
        cells = {label: _speedups([e for e in part if e.budget == budget]) for label, part in parts.items()}
        labels = [label for label in parts if cells[label]]
        means = {(i, j): cells[label][budget, m].mean for i, label in enumerate(labels)
                 for j, m in enumerate(methods, start=2) if (budget, m) in cells[label]}  # fmt: skip
        rows = [
            [label, str(len({e.graph for e in parts[label]})),
             *(f"{means[i, j]:.3f}" if (i, j) in means else "" for j in range(2, 2 + len(methods)))]
            for i, label in enumerate(labels)
        ]  # fmt: skip
        title = f"by {kind}: {ratio} at {budget_label(budget)} evaluations"
        bold = highest((place[0], place, mean) for place, mean in means.items())
        result.append(Table(title, [kind, "graphs", *methods], rows, bold, wide=budget != shown))
    return result


def interval_title(intervals: Iterable[Interval]) -> str:
    """A column title's words on brackets, where there are any."""
    return " [95 %]" if any(interval.known for interval in intervals) else ""


def _speedups(part: Sequence[Entry]) -> dict[tuple[float, str], Interval]:
    return {(line.budget, line.method): line.speedup for line in summarise(part, "", best_known(part))}


def _paired(entries: Sequence[Entry], against: str) -> list[Table]:
    lines = differences(entries, against)
    if not lines:
        return []
    rows = [
        [budget_label(d.budget), d.method, f"{100 * (d.ratio.mean - 1):+.2f}", *_verdict(d.ratio), str(d.graphs)]
        for d in lines
    ]
    columns = ["budget", "method", "% faster", "95 %", "verdict", "graphs"]
    breaks = changes([line.budget for line in lines])
    note = "" if all(d.ratio.known for d in lines) else "No interval and no verdict from a single family."
    title = f"paired with {against} at equal budget, by graph and seed"
    return [Table(title, columns, rows, breaks=breaks, left=2, note=note)]


def _ahead(entries: Sequence[Entry], own: str) -> list[Table]:
    if all(entry.method != "default" for entry in entries):  # every row has its price
        default = [replace(entry, method="default", judged=entry.initial) for entry in entries if entry.method == own]
        entries = [*entries, *default]
    methods = dict.fromkeys(entry.method for entry in sorted(entries, key=lambda e: (e.method != "default", e.method)))
    lines = [(d.budget, d) for other in methods for d in differences(entries, other) if d.method == own]
    rows = [[budget_label(budget), d.against, d.ratio.text(".3f"), _verdict(d.ratio)[1], str(d.graphs)]
            for budget, d in sorted(lines, key=lambda line: line[0])]  # fmt: skip
    columns = ["budget", "over", f"{own}{interval_title(d.ratio for _, d in lines)}", "verdict", "graphs"]
    note = f"{own}: geometric mean of the other's price / its own; 95 % intervals over families x seeds."
    return [Table(f"{own} over the others at equal budget", columns, rows, left=2, note=note)] if rows else []


def _verdict(ratio: Interval) -> tuple[str, str]:
    """(95 % interval, its meaning in words); nothing where there is none."""
    if not ratio.known:
        return "-", "-"
    low, high = (100 * (end - 1) for end in (ratio.low, ratio.high))
    said = "better" if ratio.low > 1 else "worse" if ratio.high < 1 else "no difference shown"
    return f"[{low:+.2f}, {high:+.2f}]", said


def budget_label(budget: float) -> str:
    return f"{int(budget):,}" if math.isfinite(budget) else "time"


def _reach(line: Line) -> str:
    if math.isnan(line.reach) or (line.budget == 0 and line.reached == 0):
        return "-"
    share = f"({100 * line.reached:.0f} %)"
    return f"{line.reach:,.0f} {share}" if math.isfinite(line.reach) else f"> {budget_label(line.budget)} {share}"


def training(evals: float) -> str:
    """Prices paid for in training: `44.1 M`, `14,160`; nothing of methods that do not train."""
    return "-" if not evals else f"{evals:,.0f}" if evals < 1e6 else f"{evals / 1e6:.3g} M"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 1000 else f"{seconds:,.0f}"


def numbers(found: Collected) -> str:
    """Every line of every block with its numbers, one line each, as CSV."""
    return as_csv(
        {**dict(setting), "kind": kind, **asdict(line)}
        for setting, entries in found.by_setting().items()
        for best in [best_known(entries)]
        for kind, parts in blocks(entries).items()
        for label, part in parts.items()
        for line in summarise(part, label, best)
    )


# ---- rows without a ratio


def apart(found: Collected) -> list[Table]:
    """Infeasible, failed and illegal rows, rows without prices, pooled configurations, broken lines."""
    counts: Counter[Reason] = Counter(
        _reason_key(row, str(row.get("status")), str(row.get("reason") or "no reason given")) for row in found.refused
    )
    counts.update(_reason_key(row, "ok, no ratio", _why_unpriced(row)) for row in found.unpriced)
    counts.update(_infeasible(found.infeasible))
    if found.broken_lines:
        counts["unreadable", "", "", "half-written or damaged lines of rows.jsonl, left out"] = found.broken_lines
    pooled = repeated(found.entries)
    if pooled:
        several = "rows equal in method, budget, graph and seed come from several configurations"
        counts["pooled", "", "", several] = pooled
    if not counts:
        return []
    rows = [[status, task, algo, str(count), reason] for (status, task, algo, reason), count in sorted(counts.items())]
    return [Table("rows apart from the table", ["status", "task", "algo", "rows", "reason"], rows, left=3, prose=True)]


def _reason_key(row: dict[str, Any], status: str, reason: str) -> Reason:
    return status, str(row.get("task")), str(row.get("algo")), reason


def _infeasible(rows: list[dict[str, Any]]) -> Counter[Reason]:
    """One line per task and algorithm: the reasons differ in their numbers, so the first stands for all."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[str(row.get("task")), str(row.get("algo"))].append(row)
    counts: Counter[Reason] = Counter()
    for part in groups.values():
        first = f"{part[0].get('graph')}: {part[0].get('reason') or NO_PLAN}"
        counts[_reason_key(part[0], "infeasible", first if len(part) == 1 else f"the first, {first}")] = len(part)
    return counts


def _why_unpriced(row: dict[str, Any]) -> str:
    initial, judged = number(row, "initial"), number(row, "judged")
    if initial == math.inf and math.isfinite(judged):
        return FITS
    missing = [field for field, price in (("initial", initial), ("judged", judged)) if not math.isfinite(price)]
    return f"without a price: {', '.join(missing)}" if missing else "a price that is not positive"
