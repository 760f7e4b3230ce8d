"""Best-so-far curves and speed-up bars of a study.

Legend: G graphs, S seeds, P points on the evaluation axis.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from graphopt.report.pictures.style import INK, MUTED, STYLE, lighten, method_colours, method_markers, save_figure
from graphopt.report.tables.lines import blocks
from graphopt.report.tables.read_rows import Collected, Entry, Setting
from graphopt.report.tables.render import budget_label, setting_title
from graphopt.report.tables.statistics import tabled

MOST_BARS = 40  # graphs in the bar picture; beyond, families stand for their graphs
MOST_COLUMNS = 6  # panels beside each other
MOST_PANELS = 12  # graphs that get a panel of their own
SLACK = 0.03  # of the axis


def draw_study(found: Collected, folder: Path) -> list[Path]:
    """Curves, curves by size and bars for every setting; returns the files."""
    files: list[Path] = []
    settings = found.by_setting()
    with plt.rc_context(STYLE):
        varying = {pair[0] for setting in settings for pair in setting if any(pair not in other for other in settings)}
        for setting, entries in settings.items():
            suffix = "".join(f"-{value}" for field, value in setting if field in varying)
            if any(len(entry.trace) > 0 and entry.budget > 0 for entry in entries):
                files += save_figure(curves(setting, entries), folder, f"curves{suffix}")
                sizes = blocks(entries).get("size")
                if sizes:
                    files += save_figure(curves_by_size(setting, entries, sizes), folder, f"curves-by-size{suffix}")
                if len({entry.graph for entry in entries}) <= MOST_PANELS:
                    files += save_figure(curves_by_graph(setting, entries), folder, f"curves-by-graph{suffix}")
            files += save_figure(bars(setting, entries), folder, f"speedup{suffix}")
    return files


def longest(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """For each method the entries of its largest budget, whose traces hold those of the smaller ones."""
    traced = {method: [e for e in part if e.trace] for method, part in _largest(entries).items()}
    return {method: part for method, part in traced.items() if part}


def ratio_at(entry: Entry, evals: NDArray[np.float64], *, own: bool = False) -> NDArray[np.float64]:
    """[P] best so far / default, both by the search's cost model, after that many evaluations. own: as if the search
    did not know the default."""
    trace = (*entry.approach, *entry.trace[1:]) if own and entry.approach else entry.trace
    at = np.array([step for step, _ in trace])
    cost = np.minimum.accumulate([cost for _, cost in trace])
    return np.asarray(cost[np.maximum(np.searchsorted(at, evals, side="right") - 1, 0)] / entry.trace[0][1])


def seed_curves(part: Sequence[Entry], evals: NDArray[np.float64]) -> NDArray[np.float64]:
    """[S, P] geometric mean over graphs of best so far / default, for every seed."""
    by_seed: dict[int, list[Entry]] = defaultdict(list)
    for entry in part:
        by_seed[entry.seed].append(entry)
    return np.array([np.exp(np.mean([np.log(ratio_at(e, evals)) for e in solved], 0)) for solved in by_seed.values()])


def curves(setting: Setting, entries: Sequence[Entry]) -> Figure:
    """One line per method over all graphs, a band from the lowest to the highest seed."""
    figure, axes = plt.subplots(figsize=(7.6, 4.6))
    _draw_curves(axes, entries)
    axes.set_title(setting_title(setting, entries), pad=22)
    _subtitle(
        axes, "best so far / default, geometric mean over graphs; band: range of seeds; star: without evaluations"
    )
    axes.set_xlabel("evaluations")
    _legend(axes)
    return figure


def curves_by_size(setting: Setting, entries: Sequence[Entry], sizes: Mapping[str, Sequence[Entry]]) -> Figure:
    """The same, a panel for every class of graph size."""
    figure, grid = plt.subplots(1, len(sizes), figsize=(3.1 * len(sizes) + 1.2, 3.6), sharey=True, squeeze=False)
    colours = method_colours(e.method for e in entries)
    for axes, (label, part) in zip(grid[0], sizes.items()):
        _draw_curves(axes, part, colours)
        count = len({e.graph for e in part})
        axes.set_title(f"{label}  ({count} graph{'s' * (count != 1)})", fontsize=9)
        axes.set_xlabel("evaluations")
    grid[0][0].set_ylabel("best so far / default")
    _legend(grid[0][-1])
    figure.suptitle(setting_title(setting, entries), x=0.01, ha="left", fontsize=10, fontweight="bold", y=1.02)
    figure.subplots_adjust(wspace=0.16)
    return figure


def curves_by_graph(setting: Setting, entries: Sequence[Entry]) -> Figure:
    """A panel for every graph, by size; searches that began above the default come down from there."""
    graphs: dict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: (e.ops, e.graph_name)):
        graphs[entry.graph].append(entry)
    columns = min(3, len(graphs))
    lines = -(-len(graphs) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(3.4 * columns + 1.6, 2.9 * lines), squeeze=False)
    colours = method_colours(e.method for e in entries)
    for axes, part in zip(grid.flat, graphs.values()):
        _draw_walks(axes, part, colours)
        axes.set_title(f"{_short(part[0].graph_name)}, {part[0].ops:,} ops", fontsize=9)
    for axes in grid.flat[len(graphs) :]:
        axes.set_visible(False)
    _legend(grid[0][-1])
    figure.subplots_adjust(wspace=0.24, hspace=0.34)
    inch = 1 / figure.get_size_inches()[1]
    what = "own best so far / default against evaluations; band: range of seeds"
    _head(figure, setting_title(setting, entries), what, top=1 + 0.1 * inch)
    return figure


def _short(name: str) -> str:
    """A graph's name without its settings: unet of unet_depth5_batch4."""
    return re.split(r"[_-][a-z]*\d", name)[0] or name


def _draw_walks(axes: Axes, entries: Sequence[Entry], colours: Mapping[str, str]) -> None:
    """Geometric mean over seeds of each method's own best; a band from the lowest to the highest seed."""
    markers = method_markers(colours)
    top = max(float(e.evals) for e in entries)
    grid = np.unique(np.round(np.geomspace(1, max(top, 2.0), 160)))
    for method, part in sorted(longest(entries).items()):
        if method == "default":
            continue  # the dashed line
        walks = np.array([ratio_at(e, grid, own=True) for e in part])
        _band(axes, grid, walks, color=colours[method], label=method, marker=markers[method], lw=1.6, ms=4)
    axes.axhline(1.0, color="#7f7f7f", lw=1, ls=(0, (4, 3)), label="default")
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(1, max(top, 2.0))
    axes.margins(y=SLACK)


def _band(axes: Axes, grid: NDArray[np.float64], lines: NDArray[np.float64], *, color: str, **look: Any) -> None:
    """The geometric mean of lines [S, P] as steps, with a marker at its end, and a band from the lowest to the
    highest."""
    axes.plot(grid, np.exp(np.log(lines).mean(0)), color=color, drawstyle="steps-post", clip_on=False,
              markevery=[len(grid) - 1], **look)  # fmt: skip
    if len(lines) > 1:
        axes.fill_between(grid, lines.min(0), lines.max(0), color=color, alpha=0.15, lw=0, step="post")


STAR_CEILING = 1.05  # a star beyond it is drawn there, with its value


def _draw_curves(axes: Axes, entries: Sequence[Entry], colours: Mapping[str, str] | None = None) -> None:
    colours = method_colours(e.method for e in entries) if colours is None else colours
    markers = method_markers(colours)
    top = max((e.budget for e in entries if math.isfinite(e.budget)), default=1.0)
    top = max(top, max((float(e.evals) for e in entries), default=1.0), 1.0)
    grid = np.unique(np.concatenate([[0.0], np.round(np.geomspace(1, top, 160))]))
    for method, part in sorted(longest(entries).items()):
        if method == "default":
            continue
        lines = seed_curves(part, grid)
        _band(axes, grid, lines, color=colours[method], label=method, marker=markers[method], lw=1.8, ms=5)
        _zero_shot(axes, entries, method, colours[method])
    axes.axhline(1.0, color="#7f7f7f", lw=1, ls=(0, (4, 3)), label="default")
    _evaluation_axis(axes, top)


def _zero_shot(axes: Axes, entries: Sequence[Entry], method: str, colour: str) -> None:
    """A star at zero evaluations for methods that answer without any."""
    part = [e for e in entries if e.method == method and e.budget == 0 and e.trace]
    if any(e.searched != e.trace[0][1] for e in part):
        logs = tabled((e.graph, e.family, e.seed, math.log(e.searched / e.trace[0][1])) for e in part).values_GS
        value = math.exp(float(np.nanmean(logs)))
        shown = min(value, STAR_CEILING)
        axes.plot([0], [shown], "*", color=colour, ms=11, mec="white", mew=0.6, clip_on=False, zorder=5)
        if value > shown:
            axes.annotate(f"{value:.2f}", (0, shown), (7, -3), textcoords="offset points", fontsize=7, color=colour)


def _evaluation_axis(axes: Axes, top: float) -> None:
    """Logarithmic, with room for zero."""
    axes.set_xscale("symlog", linthresh=1, linscale=0.35)
    axes.set_xlim(0, top)
    ticks = [0.0, *(10.0**k for k in range(int(math.log10(top)) + 1))]
    axes.xaxis.set_major_locator(FixedLocator(ticks if top / ticks[-1] < 1.5 else [*ticks, top]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.margins(y=SLACK)


def _subtitle(axes: Axes, text: str) -> None:
    axes.annotate(text, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", color=MUTED, fontsize=7.5)


def _legend(axes: Axes) -> None:
    """To the right, in the order of where the lines end."""
    handles, labels = axes.get_legend_handles_labels()
    ends = [np.asarray(handle.get_ydata())[-1] if isinstance(handle, Line2D) else 0.0 for handle in handles]
    order = sorted(range(len(labels)), key=lambda i: -float(ends[i]))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], loc="center left", bbox_to_anchor=(1.02, 0.5))


def bars(setting: Setting, entries: Sequence[Entry]) -> Figure:
    """Speed-up by graph (or by family, when there are many graphs), a panel per method at its largest budget."""
    best = {m: part for m, part in _largest(entries).items() if m != "default"} or _largest(entries)
    by_family = len({e.graph for e in entries}) > MOST_BARS
    labels = _ordered_labels(entries, by_family)
    columns = min(MOST_COLUMNS, len(best))
    lines = -(-len(best) // columns)
    width, height = 1.7 * columns + 1.9, (0.19 * len(labels) + 0.8) * lines + 0.55
    figure, grid = plt.subplots(lines, columns, sharey=True, sharex=True, squeeze=False, figsize=(width, height))
    figure.subplots_adjust(left=1.7 / width, right=1 - 0.1 / width, top=1 - 0.95 / height, bottom=0.4 / height,
                           wspace=0.12, hspace=0.8 * lines / height * 1.3)  # fmt: skip
    colours = method_colours(e.method for e in entries)
    for axes, (method, part) in zip(grid.flat, best.items()):
        groups = [[e for e in part if (e.family if by_family else e.graph_name) == label] for label in labels]
        _bar_panel(axes, method, part, groups, colours[method])
    for axes in grid.flat[len(best) :]:
        axes.set_visible(False)
    grid[0][0].set_yticks(np.arange(len(labels)), labels, fontsize=7.5, color=INK)
    grid[0][0].set_ylim(len(labels) - 0.4, -0.6)
    for axes in grid[:, 0]:
        axes.tick_params(axis="y", labelsize=7.5, labelcolor=INK)
    what = "family" if by_family else "graph"
    _head(figure, setting_title(setting, entries), f"default / found, by {what}; thin line: range of seeds")
    return figure


def _bar_panel(axes: Axes, method: str, part: Sequence[Entry], groups: Sequence[Sequence[Entry]], colour: str) -> None:
    rows, spans = np.arange(len(groups)), [_range(solved) for solved in groups]
    axes.barh(rows, [middle - 1 for _, middle, _ in spans], left=1, height=0.68, color=lighten(colour, 0.25))
    axes.hlines(rows, [low for low, _, _ in spans], [high for _, _, high in spans], color=INK, lw=0.9)
    axes.axvline(1, color=INK, lw=0.8)
    axes.set_title(method, fontsize=min(9.0, 180 / len(method)), color=colour, pad=16)
    _subtitle(axes, f"{budget_label(part[0].budget)} evaluations, mean {_range(part)[1]:.3f}")
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.tick_params(axis="x", labelsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def _head(figure: Figure, title: str, subtitle: str, top: float = 1.0) -> None:
    inch = 1 / figure.get_size_inches()[1]
    figure.text(0.01, top - 0.05 * inch, title, fontsize=10, fontweight="bold", va="top")
    figure.text(0.01, top - 0.27 * inch, subtitle, fontsize=8.5, color=MUTED, va="top")


def _largest(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    top = {m: max(e.budget for e in entries if e.method == m) for m in sorted({e.method for e in entries})}
    return {m: [e for e in entries if e.method == m and e.budget == budget] for m, budget in top.items()}


def _ordered_labels(entries: Sequence[Entry], by_family: bool) -> list[str]:
    """Families by name; graphs by family, then size."""
    if by_family:
        return sorted({e.family for e in entries})
    return list(dict.fromkeys(e.graph_name for e in sorted(entries, key=lambda e: (e.family, e.ops, e.graph_name))))


def _range(part: Sequence[Entry]) -> tuple[float, float, float]:
    """(lowest, mean, highest) over seeds of the geometric mean speed-up over graphs; NaN when there are none."""
    if not part:
        return math.nan, math.nan, math.nan
    logs = tabled((e.graph, e.family, e.seed, math.log(e.speedup)) for e in part).values_GS
    seeds = np.exp(np.nanmean(logs, 0))
    return float(seeds.min()), math.exp(float(np.nanmean(logs))), float(seeds.max())
