"""All pictures of one decision: the graph by kernel or device (`graph_picture`), and the trace file. The simulated run
is a Gantt chart with the memory of its devices over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.operators import OPERATORS, Category
from graphopt.core.plan import Plans
from graphopt.core.trace import Trace, slots, write_trace
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import Solution
from graphopt.report.pictures.graph_picture import device_colour, draw_graph
from graphopt.report.pictures.style import INK, MUTED, PALETTE, PAPER, STYLE, lighten, save_figure

CATEGORY_COLOUR = {
    Category.CONTRACTION: PALETTE[0],
    Category.REDUCTION: PALETTE[1],
    Category.ELEMENTWISE: PALETTE[2],
    Category.LAYOUT: PALETTE[4],
    Category.OPAQUE: PALETTE[7],
    Category.VIEW: "#999999",
}
TRANSFER = "#8c8c8c"
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
LABELLED = 0.035  # share of the width from which a bar carries its name
LANE = 0.34  # inches
RASTERED = 3000  # bars from which a vector file holds them as an image
SEAMS = 400  # kernels up to which bars are outlined


@runtime_checkable
class Simulates(Protocol):
    """A cost model that can tell all that happens under one plan."""

    def simulate(self, plan: Plans) -> Trace: ...


def draw_solution(solution: Solution, costs: Sequence[CostModel], folder: Path, name: str, caption: str) -> list[Path]:
    """Draws an answer and its default; returns the files. A dot marks differences. No timeline without a simulator, nor
    where both have graphs of their own (rewritten programs)."""
    plan, default, machine = solution.plans, solution.default_plans, solution.task.machine
    with plt.rc_context(STYLE):
        if plan.graph is not default.graph:
            sides = ("original", default, plan), ("rewritten", plan, default)
            return [
                file
                for label, own, other in sides
                for file in save_figure(draw_graph(own, other, machine, f"{label}; {caption}"), folder,
                                        f"{name}-{label}")
            ]  # fmt: skip
        files = save_figure(draw_graph(plan, default, machine, caption), folder, f"{name}-graph")
        simulator = next((model for model in costs if isinstance(model, Simulates)), None)
        if simulator is None:
            return files
        runs = [("found", simulator.simulate(plan)), ("default", simulator.simulate(default))]
        figure = draw_timeline(runs, solution.graph, machine, caption)
        files += save_figure(figure, folder, f"{name}-timeline")
    trace = folder / f"{name}-perfetto.json"
    write_trace(trace, runs[0][1], solution.graph, machine)
    return [*files, trace]


def draw_timeline(runs: Sequence[tuple[str, Trace]], graph: Graph, machine: Machine, caption: str) -> Figure:
    """Labelled runs below each other on one time axis: lanes of devices and links, then memory by device."""
    lanes = [_lanes(trace, machine) for _, trace in runs]
    heights = [h for rows in lanes for h in (LANE * len(rows), 0.14, 0.85, 0.5)][:-1]
    total = sum(heights) + 1.45
    figure = plt.figure(figsize=(10, total))
    inner = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0, left=0.11, right=0.985,
                                top=1 - 0.95 / total, bottom=0.5 / total)  # fmt: skip
    end = max(trace.makespan for _, trace in runs) or 1.0
    scale, unit = _unit(end, SECONDS)
    peak = max(float(trace.memory_bytes.max(initial=1)) for _, trace in runs)
    for i, ((label, trace), rows) in enumerate(zip(runs, lanes)):
        gantt, memory = figure.add_subplot(inner[4 * i]), figure.add_subplot(inner[4 * i + 2])
        _draw_lanes(gantt, trace, rows, graph, end, scale)
        gantt.set_title(f"{label}: {trace.makespan / scale:.4g} {unit}, {len(trace.kernel_op):,} kernels, "
                        f"{len(trace.transfer_tensor):,} transfers", fontsize=9)  # fmt: skip
        _draw_memory(memory, trace, machine, peak, scale)
        for axes in (gantt, memory):
            axes.set_xlim(0, end / scale)
        memory.tick_params(axis="x", labelbottom=i == len(runs) - 1)
        if i == 0:
            _legend(gantt, runs, graph)
    figure.axes[-1].set_xlabel(f"time ({unit})")
    _head(figure, f"{graph.name}: what runs when", caption)
    return figure


def _head(figure: Figure, title: str, caption: str) -> None:
    inch = 1 / figure.get_size_inches()[1]
    figure.text(0.01, 1 - 0.08 * inch, title, fontsize=11, fontweight="bold", va="top")
    figure.text(0.01, 1 - 0.33 * inch, caption, fontsize=8.5, color=MUTED, va="top")


def _unit(largest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    return next(((size, name) for size, name in units if largest >= size), units[-1])


def _lanes(trace: Trace, machine: Machine) -> list[tuple[int, int]]:
    """Rows of the chart: (device, -1) that run kernels, then (source, destination) in use; destination -2 is a bus."""
    devices = sorted(set(trace.kernel_device.tolist()))
    shared = machine.transfer.lane == "source"
    pairs = zip(trace.transfer_source.tolist(), trace.transfer_target.tolist())
    return [(d, -1) for d in devices] + sorted({(a, -2 if shared or b < 0 else b) for a, b in pairs})


def _draw_lanes(
    axes: Axes, trace: Trace, rows: Sequence[tuple[int, int]], graph: Graph, end: float, scale: float
) -> None:
    row = {lane: i for i, lane in enumerate(rows)}
    category = graph.category[trace.kernel_op]
    at = np.array([row[d, -1] for d in trace.kernel_device.tolist()], np.float64)
    colours = [lighten(CATEGORY_COLOUR[Category(c)], 0.12) for c in category.tolist()]
    seams = 0.4 if len(at) <= SEAMS else 0.0
    _bars(axes, trace.kernel_start / scale, trace.kernel_end / scale, at, 0.78, colours, seams)
    sent = [
        row[a, b if (a, b) in row else -2]
        for a, b in zip(trace.transfer_source.tolist(), trace.transfer_target.tolist())
    ]
    grey, (middle, height) = [lighten(TRANSFER, 0.1)] * len(sent), _beside(np.array(sent, np.int64), slots(trace))
    _bars(axes, trace.transfer_start / scale, trace.transfer_end / scale, middle, height, grey, seams)
    for i in np.flatnonzero(trace.kernel_end - trace.kernel_start > LABELLED * end):
        middle = (trace.kernel_start[i] + trace.kernel_end[i]) / 2 / scale
        name = OPERATORS[graph.kind[trace.kernel_op[i]]].name
        axes.text(middle, at[i], name, ha="center", va="center", fontsize=6.5, color=PAPER, clip_on=True)
    axes.set_yticks(range(len(rows)), [_lane_name(a, b) for a, b in rows], fontsize=8, color=INK)
    for label, (device, target) in zip(axes.get_yticklabels(), rows):
        label.set_color(device_colour(device) if target == -1 else MUTED)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.grid(False, axis="y")


def _beside(row: NDArray[np.int64], slot: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Middles and heights of bars of which those with different slots share a row."""
    share = np.zeros(int(row.max(initial=0)) + 1, np.int64)
    np.maximum.at(share, row, slot + 1)
    height = 0.5 / share[row]
    return row - 0.25 + (slot + 0.5) * height, height


def _lane_name(source: int, target: int) -> str:
    return f"device {source}" if target == -1 else f"{source} → all" if target == -2 else f"{source} → {target}"


def _bars(
    axes: Axes, start: NDArray[np.float64], end: NDArray[np.float64], row: NDArray[np.float64],
    height: float | NDArray[np.float64],
    colours: Sequence[tuple[float, float, float]], seams: float,
) -> None:  # fmt: skip
    """Boxes from start to end, in rows; one collection, since there may be tens of thousands."""
    low, high = row - height / 2, row + height / 2
    corners = np.stack([np.stack([start, low], 1), np.stack([start, high], 1), np.stack([end, high], 1),
                        np.stack([end, low], 1)], 1)  # fmt: skip
    edges = PAPER if seams else "face"
    axes.add_collection(PolyCollection(list(corners), facecolors=colours, edgecolors=edges, linewidths=seams or 0.2,
                                       rasterized=len(row) > RASTERED))  # fmt: skip


def _draw_memory(axes: Axes, trace: Trace, machine: Machine, peak: float, scale: float) -> None:
    size, unit = _unit(peak, BYTES)
    used = [d for d in range(machine.num_devices) if trace.memory_bytes[:, d].any()]
    for d in used:
        line = trace.memory_bytes[:, d] / size
        colour = device_colour(d)
        many = len(line) > RASTERED
        axes.fill_between(trace.memory_time / scale, line, step="post", color=colour, alpha=0.12, lw=0, rasterized=many)
        axes.plot(
            *(trace.memory_time / scale, line), color=colour, lw=1.1, drawstyle="steps-post", label=f"device {d}",
            rasterized=many,
        )  # fmt: skip
        capacity = machine.devices[d].capacity / size
        if capacity <= 1.3 * peak / size:
            axes.axhline(capacity, color=colour, lw=0.9, ls=(0, (4, 3)))
    axes.set_ylim(0, 1.08 * peak / size)
    axes.set_ylabel(f"memory ({unit})", fontsize=8)
    if len(used) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5, handlelength=1.2)


def _legend(axes: Axes, runs: Sequence[tuple[str, Trace]], graph: Graph) -> None:
    """The colours of the bars: the operator whose result the kernel stores."""
    ops = np.concatenate([trace.kernel_op for _, trace in runs])
    present = sorted(set(graph.category[ops].tolist()))
    handles = [
        Patch(color=lighten(CATEGORY_COLOUR[Category(c)], 0.12), label=Category(c).name.lower()) for c in present
    ]
    if any(len(trace.transfer_tensor) for _, trace in runs):
        handles.append(Patch(color=lighten(TRANSFER, 0.1), label="transfer"))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(handles), fontsize=8,
                handlelength=1.2, columnspacing=1.2)  # fmt: skip
