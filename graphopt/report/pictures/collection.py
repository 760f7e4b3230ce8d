"""What is in a collection of models: sizes of graphs by library, and clusters of families by size and split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from graphopt.report.pictures.style import MUTED, PALETTE, STYLE, save_figure

SPLITS = {"train": PALETTE[0], "val": PALETTE[4], "test": PALETTE[1]}
SAYS = {"train": "training", "val": "validation", "test": "test"}
COUNTS = FuncFormatter(lambda value, _: f"{value:,.0f}")
Line = Mapping[str, Any]


def draw_collection(lines: Sequence[Line], folder: Path) -> list[Path]:
    """lines: of the collection's index, a graph each. Returns the files."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(1, 1.3))
        _sizes(left, lines)
        _clusters(right, lines)
        return save_figure(figure, folder, "models")


def _sizes(axes: Axes, lines: Sequence[Line]) -> None:
    """A point a graph: libraries by ops."""
    libraries = sorted({line["library"] for line in lines}, key=lambda name: sum(x["library"] == name for x in lines))
    rng = np.random.default_rng(0)
    for row, library in enumerate(libraries):
        for backward, colour in ((False, PALETTE[2]), (True, PALETTE[3])):
            ops = [x["ops"] for x in lines if x["library"] == library and x["backward"] == backward]
            axes.scatter(ops, row + rng.uniform(-0.3, 0.3, len(ops)), s=5, color=colour, alpha=0.6, linewidths=0,
                         label=("with gradients" if backward else "forward") if row == 0 else None)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yticks(range(len(libraries)), [name.replace("_", "-") for name in libraries])
    axes.xaxis.set_major_formatter(COUNTS)
    axes.set(title=f"{len(lines):,} graphs", xlabel="ops", ylim=(-0.6, len(libraries) + 0.2))
    axes.legend(loc="upper left", ncols=2, fontsize=8, markerscale=2)


def _clusters(axes: Axes, lines: Sequence[Line]) -> None:
    """A bar a cluster, the largest first, with the largest family's name at the largest ones."""
    count: dict[int, list[Line]] = {}
    for line in lines:
        count.setdefault(line["cluster"], []).append(line)
    order = sorted(count, key=lambda number: -len(count[number]))
    for split, colour in SPLITS.items():
        rows = [i for i, number in enumerate(order) if count[number][0]["split"] == split]
        label = f"{SAYS[split]}: {len(rows)} clusters, {sum(len(count[order[i]]) for i in rows)} graphs"
        axes.bar(rows, [len(count[order[i]]) for i in rows], width=0.9, color=colour, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(COUNTS)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0.7)
    axes.set(title=f"{len(order)} clusters of related families", xlabel="cluster, by size", ylabel="graphs")
    axes.tick_params(axis="x", colors=MUTED)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper right")
