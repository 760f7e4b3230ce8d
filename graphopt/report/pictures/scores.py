"""The picture of `graphopt report ROWS --es`: ES(t) of each backend, with S(t) dashed."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

from graphopt.report.error_aware import TOLERANCES, BackendRow, by_backend, scores
from graphopt.report.pictures.style import MARKERS, MUTED, PALETTE, STYLE, save_figure

TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5)


def draw_es(rows: Sequence[BackendRow], folder: Path) -> list[Path]:
    """The bands are 95 % intervals over samples."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.6))
        axes.axhline(1, color=MUTED, linewidth=1)
        for colour, marker, (backend, found) in zip(PALETTE, MARKERS, by_backend(rows).items()):
            aware = [scores(found, t, error_aware=True) for t in TOLERANCES]
            plain = [scores(found, t, error_aware=False).mean for t in TOLERANCES]
            axes.plot(TOLERANCES, [one.mean for one in aware], color=colour, marker=marker, label=f"{backend}, ES(t)")
            axes.plot(TOLERANCES, plain, color=colour, linestyle="--", linewidth=1, label=f"{backend}, S(t)")
            axes.fill_between(TOLERANCES, [one.low for one in aware], [one.high for one in aware], color=colour,
                              alpha=0.12, linewidth=0)  # fmt: skip
        axes.set_yscale("log")
        axes.set_yticks(TICKS)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("t: results are within about 10^t of eager execution's; above 0, failures are forgiven")
        axes.set_ylabel("score, geometric mean of speed-ups")
        axes.legend(loc="lower right")
        return save_figure(figure, folder, "scores")
