"""Headline figures of the races of training steps."""

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.hardware_recompute import figures


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
