"""Figures of sharding: who has taught whom, and what is compared with what."""

from typing import Any

import pytest

from graphopt.reporting.figures.sharding import BEST, figures

FAMILY = {"iopddl-A": "GNS", "iopddl-K": "GNS", "iopddl-M": "Gemma"}


def row(algo: str, graph: str, seed: int, over_best: float) -> dict[str, Any]:
    return {"algo": algo, "graph": graph, "seed": seed, "judged": over_best * BEST[graph], "family": FAMILY[graph]}


def found(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {figure.name: figure for figure in figures(rows)}


def test_points_are_of_medians_over_seeds() -> None:
    costs = {"iopddl-A": (1.0, 1.25, 2.0), "iopddl-M": (0.5, 0.9, 1.0)}
    of = found([row("sharding_search", graph, seed, x) for graph, each in costs.items() for seed, x in enumerate(each)])
    assert (of["points"].value, of["points"].low, of["points"].high) == pytest.approx((0.9, 0.75, 1.0))
    assert of["over_best_team/A"].value == pytest.approx(1.25)


def test_learned_is_paired_with_untrained_and_families_count_once() -> None:
    """Two graphs of one family, 21 and 0 % better, and one of another, 21 % better: (10 + 21) / 2 in logarithms."""
    rows = [row("sharding_short", graph, seed, 1.21) for graph in FAMILY for seed in (0, 1)]
    rows += [row("learned_gns", "iopddl-A", seed, 1.0) for seed in (0, 1)]
    rows += [row("learned_gns", "iopddl-K", seed, 1.21) for seed in (0, 1)]
    rows += [row("learned_gemma", "iopddl-M", seed, 1.0) for seed in (0, 1)]
    of = found(rows)
    assert of["learned_over_untrained"].value == pytest.approx(100 * (1.21**0.75 - 1))
    assert of["learned_over_untrained"].low == pytest.approx(10.0)
    assert of["learned_over_untrained"].high == pytest.approx(21.0)
    assert "learned_over_gap" not in of and "points" not in of


def test_what_has_no_partner_does_not_count() -> None:
    rows = [row("sharding_short", "iopddl-A", 0, 1.1), row("learned_gns", "iopddl-A", 0, 1.0)]
    rows += [row("learned_gemma", "iopddl-M", 0, 9.0), row("sharding_gap", "iopddl-A", 0, 1.0)]
    of = found(rows)
    assert of["learned_over_untrained"].value == pytest.approx(10.0)
    assert of["learned_over_gap"].value == pytest.approx(0.0)
