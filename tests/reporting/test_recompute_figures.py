"""Headline figures of the races of training steps."""

import json
from pathlib import Path

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.hardware.hardware_recompute import figures
from graphopt.reporting.figures.reading import figures_of


def test_ratios_and_rises() -> None:
    def row(split: str, budget: float, peak: int, **more: float) -> dict[str, object]:
        return {"graph": "m", "backend": "eager", "split": split, "budget": budget, "peak_bytes": peak,
                "gradient_error": 0.5 * (split == "torch"), **more}  # fmt: skip

    race = {"ratio": 0.9, "ratio_low": 0.8, "ratio_high": 1.1}
    rows = [row("torch", 1.0, 100), row("torch", 0.5, 80), row("torch", 0.05, 90, **race),
            row("partitioner", 1.0, 100), row("partitioner", 0.5, 60), row("partitioner", 0.05, 45, **race),
            row("solver", 0.05, 45, **race)]  # fmt: skip
    assert figures(rows) == [
        Figure("recompute_peak/m", 0.5, 0.5, 0.5),
        Figure("recompute_time/m", 0.9, 0.8, 1.1),
        Figure("recompute_noise/m", 0.9, 0.8, 1.1),
        Figure("recompute_monotone", 0.0, 0.0, 0.0),
        Figure("recompute_monotone_torch", 1.0, 1.0, 1.0),
        Figure("recompute_gradient", 0.0, 0.0, 0.0),
        Figure("recompute_gradient_torch", 0.5, 0.5, 0.5),
    ]


def test_rows_of_every_budget_are_read(tmp_path: Path) -> None:
    race = {"ratio": 0.9, "ratio_low": 0.8, "ratio_high": 1.1}
    rows = [{"study": "hardware_recompute", "status": "ok", "graph": "m", "backend": "eager", "split": split,
             "budget": budget, "peak_bytes": peak, "gradient_error": 0.0, **race}
            for split, peaks in (("torch", (9, 7, 8)), ("partitioner", (9, 6, 5)))
            for budget, peak in zip((1.0, 0.5, 0.05), peaks)]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {figure.name: figure.value for figure in figures_of(tmp_path)}
    assert (found["recompute_monotone"], found["recompute_monotone_torch"]) == (0.0, 1.0)
