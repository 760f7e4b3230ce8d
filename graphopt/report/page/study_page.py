"""The page of a study: the verdict, the tables with their intervals, best cost against evaluations, what to type."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.utils.terminal import printable
from graphopt.report.page.page import GREY, Part, bokeh, plain, write_page
from graphopt.report.pictures.curves import longest, seed_curves
from graphopt.report.pictures.style import method_colours
from graphopt.report.tables.read_rows import Collected, Entry, collect
from graphopt.report.tables.render import setting_title, tables
from graphopt.report.tables.verdict import verdict

MOST_ROWS = 2_000  # of a table


def study_page(place: Path, target: Path, against: str = "local") -> Path:
    """Writes the page of a study's or a run's folder. Raises UserError without rows, ConfigError without Bokeh."""
    found = collect(place)
    made = [table for table in tables(found, against) if table.columns]
    shown = [Part(printable(table.title), table=table, note=printable(table.note), filter=len(table.rows) > 12)
             for table in made if len(table.rows) <= MOST_ROWS]  # fmt: skip
    commands = Part("Commands", code="\n".join(_commands(place, found.entries)))
    parts = [*shown[:1], *_curves(found), *shown[1:], commands]
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
