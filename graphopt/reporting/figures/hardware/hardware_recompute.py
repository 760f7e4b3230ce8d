"""Training steps split by our saved sets against torch's own solver, executed: bytes at the worst moment, CPU time."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from graphopt.records.rows import Row
from graphopt.reporting.figures.figure import Figure

RACED = 0.05  # the budget at which both are compared


def figures(rows: Sequence[Row]) -> list[Figure]:
    """`recompute_peak/MODEL` and `recompute_time/MODEL`: ours over torch's at a budget of 0.05, of programs run op by
    op; `recompute_noise/MODEL`: torch's over its own copy. `recompute_monotone`: how often, of all models, our peak
    rises when the budget falls; `recompute_monotone_torch`: the same of torch's. `recompute_gradient`,
    `recompute_gradient_torch`: the largest difference of a gradient from torch's at a budget of 1, over its largest
    entry."""
    eager = [row for row in rows if row.get("backend") == "eager"]
    models = sorted({str(row["graph"]) for row in eager})
    of = {(row["graph"], row["split"], row["budget"]): row for row in eager}
    found = [figure for model in models for figure in _of_model(model, *(of[model, split, RACED] for split in SPLITS))]
    rises = {split: sum(_rises(_peaks(eager, model, split)) for model in models) for split in SPLITS}
    return [
        *found,
        _exact("recompute_monotone", rises["partitioner"]),
        _exact("recompute_monotone_torch", rises["torch"]),
        _exact("recompute_gradient", _error(eager, "partitioner")),
        _exact("recompute_gradient_torch", _error(eager, "torch")),
    ]


SPLITS = ("torch", "partitioner")


def _of_model(model: str, torch: Row, ours: Row) -> list[Figure]:
    return [
        _exact(f"recompute_peak/{model}", ours["peak_bytes"] / torch["peak_bytes"]),
        Figure(f"recompute_time/{model}", ours["ratio"], ours["ratio_low"], ours["ratio_high"]),
        Figure(f"recompute_noise/{model}", torch["ratio"], torch["ratio_low"], torch["ratio_high"]),
    ]


def _exact(name: str, value: float) -> Figure:
    return Figure(name, float(value), float(value), float(value))


def _peaks(rows: Iterable[Row], model: str, split: str) -> list[int]:
    """By falling budget."""
    mine = [row for row in rows if (row["graph"], row["split"]) == (model, split)]
    return [row["peak_bytes"] for row in sorted(mine, key=lambda row: -row["budget"])]


def _error(rows: Iterable[Row], split: str) -> float:
    return max(float(row["gradient_error"]) for row in rows if row["split"] == split)


def _rises(peaks: Sequence[int]) -> int:
    return sum(after > before for before, after in pairwise(peaks))
