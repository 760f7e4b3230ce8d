"""The forest plot of `graphopt report DIR --learning`: one row for each problem and budget."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from graphopt.report.learning import LearnedGain
from graphopt.report.pictures.style import INK, MUTED, PALETTE, STYLE, save_figure

WIDEST = 16.0  # % of the axis to either side; longer bars are cut
COLOURS = {"yes": PALETTE[2], "yes, but training is not shown to matter": PALETTE[0], "no: behind": PALETTE[1]}


def draw_forest(lines: Sequence[LearnedGain], folder: Path) -> list[Path]:
    """A filled dot with its interval is the learned method's gain over the best method without learning, a hollow one
    the same search untrained. Where no such method was run, the gain is over the untrained search."""
    shown = [line for line in lines if line.gain or line.training]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.2, 0.235 * len(shown) + 1.0))
        axes.axvline(0, color=MUTED, linewidth=1)
        for place, line in enumerate(shown):
            mean = line.gain or line.training
            assert mean is not None
            colour = COLOURS.get(line.verdict, MUTED)
            axes.plot([max(mean.low, -WIDEST), min(mean.high, WIDEST)], [place, place], color=colour, linewidth=2)
            axes.plot(max(-WIDEST, min(mean.value, WIDEST)), place, "o", color=colour, markersize=5.5)
            if line.gain and line.untrained:
                at = max(-WIDEST, min(line.untrained.value, WIDEST))
                axes.plot(at, place, "o", markerfacecolor="none", markeredgecolor=INK, markersize=7)
        axes.set_yticks(range(len(shown)), [_label(line) for line in shown], color=INK)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(-WIDEST - 0.5, WIDEST + 0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("gain over the best method without learning at the same budget, %")
        marks = [Line2D([], [], color=colour, marker="o", linewidth=2, label=verdict)
                 for verdict, colour in {**COLOURS, "not shown": MUTED}.items()]  # fmt: skip
        marks.append(Line2D([], [], color=INK, marker="o", linewidth=0, markerfacecolor="none", label="untrained"))
        axes.legend(handles=marks, loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=3, fontsize=8)
        return save_figure(figure, folder, "learning")


def _label(line: LearnedGain) -> str:
    over = "" if line.gain else ", over itself untrained"
    return f"{line.problem}{'*' if line.blind else ''}, {line.method}{over}: {line.budget}"
