"""A plan on its graph: ops as boxes, kernels as coloured hulls, or devices as colours."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch
from matplotlib.path import Path as Curve
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.operators import OPERATORS, Category
from graphopt.core.plan import Plans
from graphopt.report.pictures.layout import Layout, layered
from graphopt.report.pictures.membership import Excerpt, differing_ops, kernel_colours, kernels_of, new_ops, window
from graphopt.report.pictures.style import INK, MUTED, PALETTE, PAPER, lighten

MOST_OPS = 300  # shown in one picture
COLUMN, ROW = 0.74, 0.36  # inches between layers and between ops
BOX_WIDTH, BOX_HEIGHT = 0.56, 0.2  # inches
TUBE = 0.19  # inches, width of a kernel's hull along its inner edges
ASPECT = 1.5  # of the picture
SINGLE = "#f0f0f0"  # fill of kernels of one op
CHANGED = "#222222"


@dataclass(frozen=True)
class Scene:
    """All that is drawn."""

    graph: Graph
    plan: Plans  # one
    shown: Excerpt
    layout: Layout
    kernels: list[frozenset[int]]  # [V]
    members: dict[int, int]  # ops of every kernel, views not counted
    colour: dict[int, str]  # of every kernel
    by_device: bool
    changed: frozenset[int]


def scene(plan: Plans, default: Plans) -> Scene:
    """Chooses an excerpt and lays it out. By device where the plan uses several, else by kernel."""
    graph = plan.graph
    same = graph is default.graph
    changed = differing_ops(plan, default) if same else new_ops(graph, default.graph)
    shown = window(graph, changed.tolist(), MOST_OPS)
    every = kernels_of(graph, plan.inline[0])
    view = graph.category == Category.VIEW
    members = Counter(root for owners, is_view in zip(every, view.tolist()) if not is_view for root in owners)
    kernels = [every[op] for op in shown.ops.tolist()]
    layout = layered(len(shown.ops), shown.edges, ASPECT * ROW / COLUMN)
    by_device = len(np.unique(plan.device[0])) > 1
    numbers = kernel_colours(kernels, shown.edges, len(PALETTE) - 2)
    colour = {root: PALETTE[n] if members.get(root, 0) > 1 else SINGLE for root, n in numbers.items()}
    return Scene(graph, plan, shown, layout, kernels, members, colour, by_device, frozenset(changed.tolist()))


def draw_graph(plan: Plans, default: Plans, machine: Machine, caption: str) -> Figure:
    """The picture of a plan (a batch of one); ops that differ from the default carry a dot."""
    s = scene(plan, default)
    width, height = s.layout.width * COLUMN, (s.layout.height + 0.4) * ROW
    figure = plt.figure(figsize=(max(width, 6.5), height + 1.0))
    bottom, top = 0.45 / (height + 1.0), 1 - 0.55 / (height + 1.0)
    axes = figure.add_axes((0.0, bottom, min(1.0, width / max(width, 6.5)), top - bottom))
    axes.set_xlim(-0.75, s.layout.width - 0.25)
    axes.set_ylim(s.layout.height - 0.3, -0.7)
    axes.axis("off")
    _edges(axes, s)
    _hulls(axes, s)
    for position in range(len(s.shown.ops)):
        _box(axes, s, position, machine)
    if len(s.shown.ops) < plan.graph.num_ops:
        _strip(figure, s, height + 1.0)
    figure.text(0.005, 1 - 0.06 / (height + 1.0), _title(s), fontsize=11, fontweight="bold", va="top")
    figure.text(0.005, 1 - 0.31 / (height + 1.0), caption, fontsize=8.5, color=MUTED, va="top")
    figure.legend(handles=_legend(s, machine), loc="lower left", bbox_to_anchor=(0.0, 0.0), ncols=8, fontsize=8,
                  handlelength=1.6, columnspacing=1.4)  # fmt: skip
    return figure


def _title(s: Scene) -> str:
    total = len(s.members)
    part = "" if len(s.shown.ops) == s.graph.num_ops else f", ops {s.shown.ops[0]:,} to {s.shown.ops[-1]:,} shown"
    counts = f"{s.graph.num_ops:,} ops in {total:,} kernels, {len(s.changed):,} differ from the default"
    return f"{s.graph.name}: {counts}{part}"


def _strip(figure: Figure, s: Scene, height: float) -> None:
    """The whole graph as a thin bar: where the decision differs from the default, and the excerpt of the picture."""
    axes = figure.add_axes((0.62, 1 - 0.3 / height, 0.36, 0.16 / height))
    bins = np.histogram(sorted(s.changed), bins=300, range=(0, s.graph.num_ops))[0]
    axes.bar(np.arange(300) / 300, np.minimum(bins, 1), width=1 / 300, align="edge", color="#555555")
    first, last = s.shown.ops[0] / s.graph.num_ops, (s.shown.ops[-1] + 1) / s.graph.num_ops
    axes.axvspan(first, last, color=PALETTE[4], alpha=0.45, lw=0)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], facecolor=SINGLE)
    axes.set_xlabel("all ops in order; dark: differs from the default; marked: shown below", fontsize=7.5, labelpad=2)


def _inside(s: Scene, a: int, b: int) -> frozenset[int]:
    """Kernels in which a's result is read by b without being stored."""
    return s.kernels[a] & s.kernels[b] if s.plan.inline[0, s.shown.ops[a]] else frozenset()


def _curve(line: NDArray[np.float64]) -> Curve:
    """A smooth line through points from left to right."""
    vertices, codes = [tuple(line[0])], [Curve.MOVETO]
    for (x0, y0), (x1, y1) in zip(line[:-1].tolist(), line[1:].tolist()):
        middle = (x0 + x1) / 2
        vertices += [(middle, y0), (middle, y1), (x1, y1)]
        codes += [Curve.CURVE4] * 3
    return Curve(vertices, codes)


def _edges(axes: Axes, s: Scene) -> None:
    """Stored results dark, wider for more bytes; transfers to another device in red."""
    device = s.plan.device[0]
    largest = max([np.log1p(b) for b in s.shown.edge_bytes], default=1.0) or 1.0
    for (a, b), route, size in zip(s.shown.edges, s.layout.routes, s.shown.edge_bytes):
        inside = _inside(s, a, b)
        cut = device[s.shown.ops[a]] != device[s.shown.ops[b]]
        colour = "#c1121f" if cut else "#b9b9b9" if inside else "#7d7d7d"
        width = 0.5 if inside else 0.5 + 1.1 * float(np.log1p(size)) / largest
        for line in route:
            axes.add_patch(PathPatch(_curve(line), fill=False, edgecolor=colour, lw=width, zorder=2, capstyle="round"))


def _hulls(axes: Axes, s: Scene) -> None:
    """A tube along the inner edges of every kernel of several ops."""
    width = 72 * TUBE
    for (a, b), route in zip(s.shown.edges, s.layout.routes):
        for root in sorted(_inside(s, a, b)):
            fill = _soft(s, root)
            for line in route:
                axes.add_patch(
                    PathPatch(_curve(line), fill=False, edgecolor=fill, lw=width, zorder=1, capstyle="round")
                )
    for position, owners in enumerate(s.kernels):
        for root in sorted(owners):
            if s.members.get(root, 0) > 1:
                _rounded(axes, s, position, 0.05, facecolor=_soft(s, root), edgecolor="none", zorder=1)


def _soft(s: Scene, root: int) -> tuple[float, float, float]:
    return to_rgb("#e4e4e4") if s.by_device or s.colour[root] == SINGLE else lighten(s.colour[root], 0.72)


def _rounded(axes: Axes, s: Scene, position: int, grow: float, **look: object) -> FancyBboxPatch:
    """A box at an op, `grow` inches larger on every side."""
    view = s.graph.category[s.shown.ops[position]] == Category.VIEW
    wide, high = (
        (BOX_WIDTH * (0.8 if view else 1) + 2 * grow) / COLUMN,
        (BOX_HEIGHT * (0.72 if view else 1) + 2 * grow) / ROW,
    )
    x, y = s.layout.x[position], s.layout.y[position]
    corner = (x - wide / 2, y - high / 2)
    shape = "round,pad=0,rounding_size=0.1"
    patch = FancyBboxPatch(corner, wide, high, boxstyle=shape, mutation_aspect=COLUMN / ROW, **look)  # type: ignore[arg-type]
    axes.add_patch(patch)
    return patch


def _box(axes: Axes, s: Scene, position: int, machine: Machine) -> None:
    op = int(s.shown.ops[position])
    operator = OPERATORS[s.graph.kind[op]]
    view, inline = operator.category == Category.VIEW, bool(s.plan.inline[0, op])
    fill = _fill(s, position, machine)
    copies = len(s.kernels[position]) > 1
    look: Mapping[str, object] = {
        "facecolor": PAPER if view else fill, "edgecolor": "#9a9a9a" if inline else INK, "zorder": 3,
        "linewidth": 0.6 if inline else 1.2, "linestyle": (0, (2.5, 1.5)) if copies else "solid",
    }  # fmt: skip
    _rounded(axes, s, position, 0.0, **look)
    x, y = s.layout.x[position], s.layout.y[position]
    dark = sum(w * c for w, c in zip((0.299, 0.587, 0.114), to_rgb(fill))) < 0.5 and not view
    text = operator.name if len(operator.name) <= 9 else operator.name[:8] + "."
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=5 if view else 6, zorder=4,
              color=PAPER if dark else MUTED if view else INK)  # fmt: skip
    if op in s.changed:
        right, up = x + (BOX_WIDTH / 2 - 0.01) / COLUMN, y - (BOX_HEIGHT / 2 - 0.01) / ROW
        axes.plot([right], [up], "o", ms=3.6, color=CHANGED, mec=PAPER, mew=0.6, zorder=5)


def _fill(s: Scene, position: int, machine: Machine) -> tuple[float, float, float]:
    """Stored ops in full colour, inline ones lighter."""
    op = int(s.shown.ops[position])
    inline = bool(s.plan.inline[0, op])
    if s.by_device:
        return lighten(device_colour(int(s.plan.device[0, op])), 0.6 if inline else 0.15)
    if len(s.kernels[position]) != 1:
        return to_rgb(PAPER)
    (root,) = s.kernels[position]
    colour = s.colour[root]
    return to_rgb(colour) if colour == SINGLE else lighten(colour, 0.5 if inline else 0.1)


def device_colour(device: int) -> str:
    return PALETTE[device % len(PALETTE)]


def _legend(s: Scene, machine: Machine) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = []
    if s.by_device:
        used = np.unique(s.plan.device[0]).tolist()
        handles += [
            Patch(facecolor=lighten(device_colour(d), 0.15), label=f"{d} {machine.devices[d].name}") for d in used
        ]
        handles.append(Line2D([], [], color="#c1121f", lw=1.4, label="sent to another device"))
    sample = "#bbbbbb" if s.by_device else PALETTE[0]
    handles.append(Patch(facecolor=lighten(sample, 0.1), edgecolor=INK, lw=1.2, label="stored: end of a kernel"))
    if s.plan.inline.any():
        handles.append(Patch(facecolor=lighten(sample, 0.5), edgecolor="#9a9a9a", lw=0.6, label="inline"))
        handles.append(
            Patch(facecolor=PAPER, edgecolor="#9a9a9a", lw=0.8, ls=(0, (2.5, 1.5)), label="inline in several kernels")
        )
    if not s.by_device:
        handles.append(Patch(facecolor=SINGLE, edgecolor=INK, lw=1.2, label="kernel of one op"))
    if s.changed:
        handles.append(Line2D([], [], marker="o", ls="", ms=4, color=CHANGED, label="differs from the default"))
    return handles
