"""Headline figures of measured fusion."""

import pytest

from graphopt.reporting.figures.hardware_fusion import figures


def row(graph: str, judged: float, *, dataset: str = "lowered_step", algo: str = "compiler_search", noise: float = 0.01,
        numerics: str = "equal") -> dict[str, object]:  # fmt: skip
    return {"dataset": dataset, "task": f"fusion_{numerics}", "algo": algo, "family": graph.split(".")[0],
            "graph": graph, "initial": 2.0, "judged": judged, "noise": noise, "evals_cap": 24}  # fmt: skip


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


def test_a_policy_is_counted_against_nine_tenths_of_the_gain_of_the_search() -> None:
    search, policy = row("a", 1.0), row("a", 1.0, algo="compiler_policy")
    search["trace"] = [[0, 0.0, 2.0], [3, 0.1, 1.5], [16, 0.2, 1.0]]
    policy["trace"] = [[0, 0.0, 2.0], [4, 0.1, 1.1]]
    found = {figure.name: figure.value for figure in figures([search, policy, row("b", 1.0)])}
    assert found["evals_to_90"] == pytest.approx(4 / 16) and found["evals_to_90/missed"] == 0
    assert found["evals_to_90/compiler_policy/a/equal"] == 4 and found["evals_to_90/compiler_search/a/equal"] == 16


def test_a_policy_that_never_reaches_it_needs_all_it_had() -> None:
    search, policy = row("a", 1.0), row("a", 1.9, algo="compiler_policy")
    search["trace"], policy["trace"] = [[0, 0.0, 2.0], [12, 0.2, 1.0]], [[0, 0.0, 2.0], [4, 0.1, 1.2]]
    found = {figure.name: figure.value for figure in figures([search, policy])}
    assert found["evals_to_90"] == pytest.approx(24 / 12) and found["evals_to_90/missed"] == 1


def test_nothing_is_counted_where_the_race_shows_no_gain() -> None:
    search, policy = row("a", 2.0), row("a", 2.0, algo="compiler_policy")
    assert all("evals_to_90" not in figure.name for figure in figures([search, policy]))
