"""The results of a run on one model: facts, decisions, gains, the changes that matter, and files. One graph is no
sample, so there are no means and no intervals."""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from graphopt.core.graph import F64, I64
from graphopt.core.operators import OPERATORS, Category
from graphopt.core.utils.terminal import printable
from graphopt.problems.cost_model import better
from graphopt.problems.problem import Decided
from graphopt.report.answer import Answer
from graphopt.report.changes import BETTER, heaviest
from graphopt.report.price_words import as_price, gain, in_bytes, noise_words, price
from graphopt.report.tables.table import BOLD, DIM, Table, print_table, screen
from graphopt.run.records.rows import DONE, Row

SHOWN = 5  # changes and rules


def single_model(rows: Sequence[Row]) -> bool:
    """Whether all that was solved is one graph with one seed, and something fits."""
    solved = [row for row in rows if row.get("status") in DONE]
    one = len({(row.get("graph_hash"), row.get("seed")) for row in solved}) == 1
    return one and any(row["status"] == "ok" and row.get("decision") for row in solved)


def print_model(folder: Path, rows: Sequence[Row], own: str) -> None:
    """Prints the view of a finished cell with one graph. own: its algorithm, which comes first among equals."""
    solved = [row for row in rows if row.get("status") in DONE]
    fitting = [row for row in solved if row["status"] == "ok"]
    row = winner(fitting, own)
    file = folder / row["decision"]
    answer = Answer.load(file)
    console = screen()
    console.print(Text(f"{printable(_title(answer, row))}\n", BOLD))
    facts = RichTable.grid(padding=(0, 2))
    facts.add_column(min_width=9)
    for label, text in _facts(answer, row):
        facts.add_row(label, Text(printable(text), overflow="fold"))
    console.print(facts)
    for table in _tables(answer, solved, own):
        console.print()
        print_table(console, table)
    console.print()
    lines = [Text(f"decision  {file}"), *([Text(f"model     {folder / row['model']}")] if row.get("model") else [])]
    lines += [Text(f"graphopt answer {verb} {shlex.quote(str(file))}", DIM) for verb in ("draw", "replay")]
    for line in lines:
        console.print(line, soft_wrap=True)  # to be copied


def winner(fitting: Sequence[Row], own: str) -> Row:
    """The row with the lowest price; of those that none is shown to be better than, the own algorithm's."""
    lowest = min(fitting, key=lambda r: r["judged"])
    equals = [row for row in fitting if not better(as_price(lowest), as_price(row))]
    return min(equals, key=lambda r: (r["algo"] != own, r["judged"], -r["evals_cap"]))


def _title(answer: Answer, row: Row) -> str:
    opaque = int((answer.graph.category == Category.OPAQUE).sum())
    what = f"{answer.graph.num_ops:,} ops" + (f", {opaque:,} of them opaque" if opaque else "")
    return f"{answer.graph.name} ({what}): task={row['task']} on machine={row['machine']}"


def _facts(answer: Answer, row: Row) -> Iterator[tuple[str, str]]:
    yield ("memory" if in_bytes(row) else "time"), gain(row)
    before, after, devices = answer.solution.default_plans, answer.solution.plans, answer.machine.devices
    given, stored = int((~before.inline).sum()), ~after.inline[0]  # a stored op has a kernel of its own
    found = int(stored.sum())
    yield "kernels", f"{given:,}" + (f" -> {found:,}" if found != given else ", as many as by default")
    if len(devices) > 1:
        count = np.bincount(after.device[0][stored], minlength=len(devices))
        used = [f"{device.name}: {kernels:,} kernels" for device, kernels in zip(devices, count) if kernels]
        yield "devices", f"{', '.join(used)} ({len(used)} of {len(devices)} devices used)"
    yield from answer.decided.facts()
    yield "method", f"{row['algo']}, {row['evals']:,} of {row['evals_cap']:,} evaluations, {row['seconds']:.3g} s"


def _tables(answer: Answer, solved: Sequence[Row], own: str) -> Iterator[Table]:
    yield from rule_tables(answer.decided, SHOWN)
    if answer.decided.described:
        yield _changes(answer)
    if len(solved) > 1:
        yield _methods(solved, own)


def rule_tables(decision: Decided, shown: int | None = None) -> Iterator[Table]:
    """The changes by rewriting, if any: the rules (the first `shown`), and changed operators."""
    rules = Counter(decision.rules).most_common()
    if rules:
        rest = len(rules[shown:]) if shown else 0
        more = f"... and {rest} further rules" if rest else ""
        rows = [[name, str(count)] for name, count in rules[:shown]]
        yield Table("rules applied", ["rule", "times"], rows, note=more)
        before, after = decision.operators()
        names = sorted(name for name in {*before, *after} if before[name] != after[name])
        if names:
            yield Table("ops of each operator", ["operator", "original", "rewritten"],
                        [[name, str(before[name]), str(after[name])] for name in names])  # fmt: skip


def _changes(answer: Answer) -> Table:
    """The changes that matter most: those whose way back alone costs most. Where prices are measured, none goes back:
    each would have to be compiled and timed."""
    ops = answer.decided.changed()
    if not answer.judge.deterministic:
        return Table(f"{len(ops):,} ops differ from the default", [], [])
    priced, change = costs_of_going_back(answer, ops)
    order = [i for i in np.argsort(-change, kind="stable") if change[i] > BETTER][:SHOWN]
    rows = [[answer.decided.op_names[priced[i]], OPERATORS[answer.graph.kind[priced[i]]].name,
             answer.change_in_words(priced[i]), "no fit" if np.isinf(change[i]) else f"+{100 * change[i]:.3g} %"]
            for i in order]  # fmt: skip
    matter = "; none matters alone" if len(ops) else ""
    if rows:
        matter = "; those that matter most, by the price when one goes back alone"
    title = f"{len(ops):,} ops differ from the default{matter}"
    gaining = int((change < -BETTER).sum())
    notes = [f"Of {len(ops):,}, the {len(priced):,} that compute most were tried."] if len(priced) < len(ops) else []
    notes += [f"{gaining:,} would gain by going back alone: see bisect."] if gaining else []
    columns = ["op", "operator", "change", "price"] if rows else []
    return Table(title, columns, rows, left=3 if rows else 0, note=" ".join(notes))


def costs_of_going_back(answer: Answer, ops: I64) -> tuple[I64, F64]:
    """Of those of the ops that compute most, and by which share the price grows when each of them alone goes back."""
    priced = heaviest(answer.graph, ops)
    judged = float(answer.price_choices(answer.choices.choices[None])[0])
    return priced, answer.reverted_prices(priced) / judged - 1


def _methods(solved: Sequence[Row], own: str) -> Table:
    """ratio: over the default; the last column: the row's price over the own algorithm's at the same budget."""

    def ratio(before: float, after: float) -> str:
        return f"{before / after:.3f}" if 0 < after < math.inf and before < math.inf else "-"

    mine = {row["evals_cap"]: row["judged"] for row in solved if row["algo"] == own}
    order = sorted(solved, key=lambda r: (r["evals_cap"], r["judged"], r["algo"]))
    rows = [[r["algo"], f"{r['evals_cap']:,}", f"{r['evals']:,}", price(r, r["judged"]) + noise_words(r),
             ratio(r["initial"], r["judged"]), f"{r['seconds']:.3g}", ratio(r["judged"], mine.get(r["evals_cap"], 0.0))]
            for r in order]  # fmt: skip
    columns = ["method", "budget", "evaluations", "found", "ratio", "s", f"{own} over it"]
    return Table("all methods and budgets", columns, rows)
