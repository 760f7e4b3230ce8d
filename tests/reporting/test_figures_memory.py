"""Headline figures of peak memory, by hand."""

import pytest

from graphopt.reporting.figures.hardware.hardware_memory import figures


def row(graph: str, algo: str, judged: float) -> dict[str, object]:
    return {"graph": graph, "family": graph, "algo": algo, "judged": judged}


def test_ratios_are_over_the_best_of_the_compilers_orders() -> None:
    rows = [row("vit_backward", "default", 100.0), row("vit_backward", "lpmf", 80.0), row("vit_backward", "bfs", 120.0),
            row("vit_backward", "order_walk", 40.0), row("b", "default", 50.0), row("b", "dfs", 60.0),
            row("b", "order_walk", 50.0), row("b", "order_policy", 100.0)]  # fmt: skip
    found = {figure.name: figure for figure in figures(rows)}
    mean = found["peak_over_best_order"]
    assert mean.value == pytest.approx((40 / 80 * 50 / 50) ** 0.5)
    assert mean.low == pytest.approx(0.5) and mean.high == pytest.approx(1.0)
    assert found["peak_over_best_order/worst"].value == pytest.approx(1.0)
    assert found["peak_over_best_order/first_five"].value == pytest.approx(0.5)
    assert found["peak_zero_shot"].value == pytest.approx(2.0)
