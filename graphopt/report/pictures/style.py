"""How pictures look: one colour-blind safe palette, one colour per method everywhere, one way to save."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from graphopt.core.utils.whole import whole_file

INK, MUTED, GRID, PAPER = "#222222", "#6b6b6b", "#e3e3e3", "#ffffff"
# Okabe and Ito (2008), yellow darkened so that lines show on white, and three of Tol's muted scheme
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b5a300", "#882255", "#332288", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
FIXED = ("local", "go", "scan", "random", "annealing", "xla_priority", "inductor_rule", "regal", "brkga", "heft")

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK, "text.parse_math": False,  # a dollar is a dollar
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelcolor": INK,
    "axes.edgecolor": MUTED, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6, "xtick.color": MUTED,
    "ytick.color": MUTED, "legend.frameon": False, "figure.facecolor": PAPER, "savefig.facecolor": PAPER,
    "svg.hashsalt": "graphopt",
}  # fmt: skip


def method_colours(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method: fixed for the known ones, the default grey, the rest in alphabetical order."""
    names = sorted(set(methods))
    colours = {m: PALETTE[FIXED.index(m)] for m in names if m in FIXED} | {
        m: "#7f7f7f" for m in names if m == "default"
    }
    free = [c for c in (*PALETTE, "#444444", "#a6761d") if c not in colours.values()] or list(PALETTE)
    rest = [m for m in names if m not in colours]
    return colours | {m: free[i % len(free)] for i, m in enumerate(rest)}


def method_markers(methods: Iterable[str]) -> dict[str, str]:
    """A marker for each method, so that colour is never the only sign."""
    names = sorted(set(methods))
    return {m: MARKERS[FIXED.index(m)] if m in FIXED else MARKERS[i % len(MARKERS)] for i, m in enumerate(names)}


def lighten(colour: str, share: float) -> tuple[float, float, float]:
    """The colour mixed with white; share 0 keeps it, 1 is white."""
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return red + (1 - red) * share, green + (1 - green) * share, blue + (1 - blue) * share


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes NAME.png and NAME.svg, each all at once."""
    files = []
    for suffix in ("png", "svg"):
        file = folder / f"{name}.{suffix}"
        undated = {"Date": None} if suffix == "svg" else None
        with whole_file(file) as to:
            figure.savefig(to, format=suffix, dpi=160, bbox_inches="tight", pad_inches=0.15, metadata=undated)
        files.append(file)
    plt.close(figure)
    return files
