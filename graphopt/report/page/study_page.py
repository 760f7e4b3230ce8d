"""The page of a study: the verdict, the tables with their intervals, best cost against evaluations, commands."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import Bar, printable
from graphopt.report.answer import Answer
from graphopt.report.changes import BETTER
from graphopt.report.model_view import costs_of_going_back
from graphopt.report.page.page import GREY, Part, bokeh, plain, write_page
from graphopt.report.pictures.curves import longest, seed_curves
from graphopt.report.pictures.style import method_colours
from graphopt.report.price_words import price
from graphopt.report.tables.read_rows import Collected, Entry, Setting, collect
from graphopt.report.tables.render import setting_title, tables
from graphopt.report.tables.table import Table
from graphopt.report.tables.verdict import verdict
from graphopt.run.records.packed import is_there

MOST_ROWS = 2_000  # of a table
MATTERING = 3  # choices of an answer that are named


def study_page(place: Path, target: Path, against: str = "local", answers: str | None = None) -> Path:
    """Writes the page of a study's or a run's folder. answers: of that method a line for each graph. Raises UserError
    without rows, ConfigError without Bokeh."""
    found = collect(place)
    made = [table for table in tables(found, against) if table.columns]
    shown = [Part(printable(table.title), table=table, note=printable(table.note), filter=len(table.rows) > 12)
             for table in made if len(table.rows) <= MOST_ROWS]  # fmt: skip
    commands = Part("Commands", code="\n".join(_commands(place, found.entries)))
    lines = [] if answers is None else [Part(f"Answers of {answers}", table=answer_table(found, answers), filter=True)]
    parts = [*shown[:1], *_curves(found), *lines, *shown[1:], commands]
    return write_page(target, printable(f"graphopt: {place.resolve().name}"), printable(verdict(found)), parts)


def _commands(place: Path, entries: Sequence[Entry]) -> Iterator[str]:
    folder = shlex.quote(str(place))
    yield f"graphopt report {folder}            # all tables"
    yield f"graphopt report {folder} --replay   # every stored answer, priced again"
    kept = [entry for entry in entries if entry.decision is not None]
    if kept:
        best = max(kept, key=lambda entry: entry.speedup)
        what = f"the largest gain: {printable(best.graph_name)}"
        yield f"graphopt answer show {shlex.quote(str(best.decision))}   # {what}"


def answer_table(found: Collected, method: str) -> Table:
    """Of each graph the method's best answer: prices, kernels, and which choices matter, by how much the price grows
    when one of them alone goes back. Raises UserError where no answer of the method is stored."""
    best: dict[tuple[Setting, str], Entry] = {}
    for entry in found.entries:
        if entry.method == method and entry.decision is not None and is_there(entry.decision):
            before = best.get(key := (entry.setting, entry.graph_name))
            best[key] = entry if before is None or entry.judged < before.judged else before
    if not best:
        known = ", ".join(sorted({entry.method for entry in found.entries}))
        raise UserError(f"no answer of {method} is stored there; methods: {known}")
    machines = len({setting for setting, _ in best})
    rows = []
    with Bar("look at answers", len(best)) as bar:
        for (setting, _), entry in sorted(best.items()):
            rows.append(_answer_row(entry, dict(setting)["machine"] if machines > 1 else ""))
            bar.step(entry.graph_name)
    columns = ["graph", "what matters: price when it alone goes back", "ops", "default", "answer", "gain", "kernels"]
    return Table(f"answers of {method}", columns, rows, left=2)


def _answer_row(entry: Entry, machine: str) -> list[str]:
    assert entry.decision is not None
    answer = Answer.load(entry.decision)
    before, after = (int((~plans.inline).sum()) for plans in (answer.solution.default_plans, answer.plan))
    words = []
    if answer.judge.deterministic and answer.decided.described:
        priced, change = costs_of_going_back(answer, answer.decided.changed())
        for i in np.argsort(-change, kind="stable")[:MATTERING]:
            if change[i] > BETTER:
                op = answer.decided.op_names[priced[i]]
                words.append(f"{op}: {answer.change_in_words(priced[i])} (+{100 * change[i]:.2g} %)")
    kernels = f"{before:,} -> {after:,}" if after != before else f"{before:,}"
    row = {"objective": answer.objective}
    prices = [price(row, cost) for cost in (entry.initial, entry.judged)]
    name = f"{entry.graph_name} on {machine}" if machine else entry.graph_name
    return [name, "; ".join(words) or "none alone", f"{entry.ops:,}", *prices, f"{entry.speedup:.3f}x", kernels]


def _curves(found: Collected) -> Iterator[Part]:
    """One line per method, geometric mean over graphs; a click in the legend hides it."""
    models, plotting = bokeh().models, bokeh().plotting
    for setting, entries in found.by_setting().items():
        drawn = {method: part for method, part in longest(entries).items() if method != "default"}
        top = max((float(entry.budget) for entry in entries if math.isfinite(entry.budget)), default=0.0)
        if top < 1 or not drawn:
            continue
        grid = np.unique(np.round(np.geomspace(1, max(top, 2.0), 120)))
        colours = method_colours(e.method for e in entries)
        figure = plotting.figure(height=420, sizing_mode="stretch_width", x_axis_type="log",
                                 tools="pan,wheel_zoom,reset", active_scroll=None)  # fmt: skip
        plain(figure)
        lines: list[Any] = []
        for method, part in sorted(drawn.items()):
            seeds = seed_curves(part, grid)
            source = models.ColumnDataSource({"x": grid, "y": seeds.mean(0), "method": [method] * len(grid)})
            lines.append(
                figure.line("x", "y", source=source, line_color=colours[method], line_width=2, legend_label=method)
            )
            if len(seeds) > 1:
                figure.varea(grid, seeds.min(0), seeds.max(0), fill_color=colours[method], fill_alpha=0.15,
                             legend_label=method)  # fmt: skip
        figure.add_tools(
            models.HoverTool(renderers=lines, tooltips=[("", "@method"), ("evaluations", "@x"), ("cost", "@y{0.000}")])
        )
        figure.xaxis.axis_label = "evaluations"
        figure.yaxis.axis_label = "best so far / default"
        legend = figure.legend[0]
        legend.click_policy, legend.background_fill_alpha, legend.border_line_color = "hide", 0, None
        legend.label_text_color = GREY
        figure.add_layout(legend, "right")
        title = f"Best cost against evaluations: {printable(setting_title(setting, entries))}"
        note = "Geometric mean over graphs; bands are the range of seeds. A click in the legend hides a method."
        yield Part(title, plot=figure, note=note)
