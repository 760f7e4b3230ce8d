"""Figures of policies on unseen families: paired, families counted once, peers of the other data set."""

import math
from typing import Any

import pytest

from graphopt.reporting.figures import go_far, learning_curve
from graphopt.reporting.figures.figure import Figure


def row(
    algo: str, graph: str, judged: float, *, evals: int = 20, seed: int = 0, dataset: str = "models_far"
) -> dict[str, Any]:
    return {"algo": algo, "graph": graph, "family": graph[0], "judged": judged, "evals_cap": evals, "seed": seed,
            "dataset": dataset, "status": "ok"}  # fmt: skip


def named(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_a_family_of_many_graphs_counts_once() -> None:
    """Three siblings that gain 10 % and one graph that gains nothing: the geometric mean of 1.1 and 1."""
    rows = [row("kernel_model", graph, price) for graph, price in (("a1", 1.0), ("a2", 1.0), ("a3", 1.0), ("b1", 1.0))]
    rows += [row("motif_scan", g, p, dataset="models") for g, p in (("a1", 1.1), ("a2", 1.1), ("a3", 1.1), ("b1", 1.0))]
    found = named(go_far.figures(rows))["go_over_motif_scan/far/20"]
    assert found.value == pytest.approx(100 * (math.sqrt(1.1) - 1))
    assert found.low == pytest.approx(0.0, abs=1e-9) and found.high == pytest.approx(10.0)


def test_without_evaluations_the_peer_is_the_best_rule_of_each_graph() -> None:
    rows = [row("kernel_model", "a1", 0.5, evals=0), row("kernel_model", "b1", 2.0, evals=0)]
    for rule, prices in (("default", (1.0, 1.0)), ("inline_all", (0.8, 3.0)), ("xla_priority", (0.9, 4.0))):
        rows += [row(rule, g, p, evals=0, dataset="models") for g, p in zip(("a1", "b1"), prices)]
    found = named(go_far.figures(rows))
    assert found["go_over_motif_scan/far/0"].value == pytest.approx(100 * (math.sqrt(0.8 / 0.5 * 1.0 / 2.0) - 1))
    assert found["slower_than_default/far/0"].value == pytest.approx(50.0)
    assert "go_over_motif_scan/near/0" not in found and "go_over_motif_scan/far/20" not in found


def test_only_what_both_have_is_compared() -> None:
    rows = [row("kernel_model", "a1", 1.0), row("kernel_model", "a1", 1.0, seed=1), row("motif_scan", "a1", 1.2)]
    rows += [row("motif_policy", "a1", 1.1, dataset="models"), row("kernel_model", "b1", 9.0)]
    found = named(go_far.figures(rows))
    assert found["go_over_motif_scan/far/20"].value == pytest.approx(20.0)
    assert not any(name.startswith(("network_on_over_off", "go_over_motif_policy")) for name in found)


def test_peers_without_learning_are_of_both_data_sets() -> None:
    rows = [row("kernel_model", "a1", 1.0), row("kernel_model", "a1", 1.0, dataset="models")]
    rows += [row("roofline_scan", "a1", 1.1, dataset="models"), row("motif_policy", "a1", 1.2)]
    found = named(go_far.figures(rows))
    assert [found[f"network_on_over_off/{place}/20"].value for place in ("near", "far")] == pytest.approx([10.0, 10.0])
    assert found["go_over_motif_policy/far/20"].value == pytest.approx(20.0)
    assert "go_over_motif_policy/near/20" not in found


def test_the_learning_curve_is_by_number_of_graphs() -> None:
    rows = [row("kernels_10", "a1", 1.0), row("kernels_100", "a1", 0.9), row("motif_scan", "a1", 0.99)]
    found = named(learning_curve.figures([*rows, row("trained_10", "a1", 1.1)]))
    assert list(found) == [*(f"gain_against_training_graphs/{n}" for n in (10, 100)),
                           "motif_policy_gain_against_training_graphs/10"]  # fmt: skip
    assert found["gain_against_training_graphs/100"].value == pytest.approx(10.0)
