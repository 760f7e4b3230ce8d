"""How trainings went: rewards and validation against training cost, of every cell with a metrics.csv."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from graphopt.core.utils.limits import member_names, read_bytes, read_member
from graphopt.report.pictures.style import STYLE, method_colours, save_figure
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.run.records.packed import NAME as PACK

FILE, AT, MAX_BYTES = "metrics.csv", "train_evals", 64 << 20
SMOOTHED = 0.05  # the share of a curve's rewards that each point is a mean of
Curves = Mapping[str, Sequence[tuple[float, float]]]  # name -> (step, value)


def draw_training(place: Path, folder: Path) -> list[Path]:
    """A panel for the reward and for every measure of validation, a line for each training. None where none is
    stored."""
    files = row_files(place)
    labels = {str(row.get("cell")): str(row.get("algo")) for row in read_rows(files)[0]}
    found = [(labels[cell], parsed(text)) for cell, text in _stored(files) if cell in labels]
    panels = sorted({name for _, curves in found for name, points in curves.items()
                     if len(points) > 1 and (name == "reward" or name.startswith("val/"))})  # fmt: skip
    if not panels:
        return []
    colours = method_colours(method for method, _ in found)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(1, len(panels), figsize=(4.2 * len(panels) + 1.2, 3.6), squeeze=False)
        for axes, name in zip(grid[0], panels):
            paid = name != "reward" and all(_rises(curves.get(AT, ())) for _, curves in found if name in curves)
            for method, curves in found:
                if len(curves.get(name, ())) > 1:
                    steps, values = np.array(curves[name]).T
                    if paid:
                        steps = np.interp(steps, *np.array(curves[AT]).T)
                    axes.plot(steps, _smooth(values) if name == "reward" else values, color=colours[method],
                              linewidth=1.3, marker="" if name == "reward" else "o", markersize=3)  # fmt: skip
            axes.set_title(name)
            axes.set_xlabel("evaluations of the training" if paid else "steps")
        for method, colour in sorted(colours.items()):
            grid[0][-1].plot([], [], color=colour, label=method)
        grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        return save_figure(figure, folder, "training")


def _stored(files: Iterable[Path]) -> Iterable[tuple[str, str]]:
    """(cell, text) of each, of folders and of packs."""
    for rows in files:
        if (own := rows.with_name(FILE)).is_file():
            yield rows.parent.name, read_bytes(own, MAX_BYTES).decode(errors="replace")
        if (pack := rows.with_name(PACK)).is_file():
            for name in (name for name in member_names(pack) if name.endswith(f"/{FILE}")):
                yield name.split("/")[-2], read_member(pack, name, MAX_BYTES).decode(errors="replace")


def parsed(text: str) -> Curves:
    """Lines `step,name,value`; others are left out."""
    found = defaultdict[str, list[tuple[float, float]]](list)
    for line in csv.reader(text.splitlines()):
        try:
            step, name, value = line
            found[name].append((float(step), float(value)))
        except ValueError:  # the head, or a line that was cut short
            continue
    return found


def _rises(points: Sequence[tuple[float, float]]) -> bool:
    """Whether training paid on and on: else all was paid before its first step, and steps are the axis."""
    return len({value for _, value in points}) > len(points) / 2 > 0


def _smooth(values: np.ndarray) -> np.ndarray:
    """[P] means of so many points before and after."""
    half = int(SMOOTHED * len(values) / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    left, right = np.arange(len(values)) - half, np.arange(len(values)) + half + 1
    left, right = np.maximum(left, 0), np.minimum(right, len(values))
    return np.asarray((sums[right] - sums[left]) / (right - left))
