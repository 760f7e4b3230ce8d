"""What is in a collection of models: sizes of graphs by library, and clusters of families by size and split."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator

from graphopt.report.pictures.style import MUTED, PALETTE, STYLE, save_figure

SPLITS = {"train": ("training", PALETTE[0]), "val": ("validation", PALETTE[4]), "test": ("test", PALETTE[1])}
COUNTS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def draw_collection(lines: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """lines: of the collection's index, a graph each. Left a point a graph, libraries by ops; right a bar a cluster,
    the largest first. Returns the files."""
    graphs = Counter(line["library"] for line in lines)
    libraries, rng = sorted(graphs, key=lambda name: (graphs[name], name)), np.random.default_rng(0)
    size, split_of = Counter(line["cluster"] for line in lines), {line["cluster"]: line["split"] for line in lines}
    clusters = [cluster for cluster, _ in size.most_common()]
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(1, 1.3))
        for row, library in enumerate(libraries):
            for backward, label, colour in ((False, "forward", PALETTE[2]), (True, "with gradients", PALETTE[3])):
                ops = [x["ops"] for x in lines if x["library"] == library and x["backward"] == backward]
                left.scatter(ops, row + rng.uniform(-0.3, 0.3, len(ops)), s=5, color=colour, alpha=0.6, linewidths=0,
                             label=None if row else label)  # fmt: skip
        left.set_xscale("log")
        left.set_yticks(range(len(libraries)), [name.replace("_", "-") for name in libraries])
        left.xaxis.set_major_formatter(COUNTS)
        left.set(title=f"{len(lines):,} graphs", xlabel="ops", ylim=(-0.6, len(libraries) + 0.2))
        left.legend(loc="upper left", ncols=2, fontsize=8, markerscale=2)
        for split, (says, colour) in SPLITS.items():
            rows = [i for i, cluster in enumerate(clusters) if split_of[cluster] == split]
            heights = [size[clusters[i]] for i in rows]
            label = f"{says}: {len(rows)} clusters, {sum(heights)} graphs"
            right.bar(rows, heights, width=0.9, color=colour, label=label)
        right.set_yscale("log")
        right.yaxis.set_major_formatter(COUNTS)
        right.yaxis.set_minor_locator(NullLocator())
        right.set_ylim(bottom=0.7)
        right.set(title=f"{len(clusters)} clusters of related families", xlabel="cluster, by size", ylabel="graphs")
        right.tick_params(axis="x", colors=MUTED)
        right.grid(axis="x", visible=False)
        right.legend(loc="upper right")
        return save_figure(figure, folder, "models")
