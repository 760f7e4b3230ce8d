"""Headline figures of measured fusion."""

import pytest

from graphopt.reporting.figures.hardware_fusion import figures


def row(graph: str, judged: float, *, dataset: str = "lowered_step", algo: str = "compiler_search", noise: float = 0.01,
        numerics: str = "equal") -> dict[str, object]:  # fmt: skip
    return {"dataset": dataset, "task": f"fusion_{numerics}", "algo": algo, "family": graph.split(".")[0],
            "initial": 2.0, "judged": judged, "noise": noise}  # fmt: skip


def test_means_are_over_families_and_kinds_stay_apart() -> None:
    rows = [row("a.forward", 1.0, dataset="lowered_compiled"), row("a.backward", 1.0, dataset="lowered_compiled"),
            row("b.forward", 2.0, dataset="lowered_compiled"), row("a", 1.0), row("a", 2.0, algo="best_knob"),
            row("a", 0.5, numerics="close")]  # fmt: skip
    found = {figure.name: figure for figure in figures(rows)}
    assert found["aot/equal"].value == pytest.approx(0.5**0.5)
    assert found["aot/equal"].low == pytest.approx(0.5) and found["aot/equal"].high == pytest.approx(1.0)
    assert found["whole_step/equal"].value == pytest.approx(0.5) == found["whole_step/equal"].low
    assert found["whole_step/close"].value == pytest.approx(0.25)
    assert found["whole_step/equal/best_knob"].value == pytest.approx(1.0)
    assert found["slower_than_default"].value == 0


def test_slower_is_what_noise_does_not_explain() -> None:
    rows = [row("a", 2.05, noise=0.02), row("b", 2.2, noise=0.02)]
    assert figures(rows)[-1].value == 1
