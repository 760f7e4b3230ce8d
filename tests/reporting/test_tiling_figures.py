"""Figures of tiling: learned orders of moves are paired with others at the same budget."""

import json
from pathlib import Path
from typing import Any

import pytest

from graphopt.reporting.figures.tiling import figures


def row(
    algo: str, graph: str, seed: int, judged: float, evals: int = 10**9, task: str = "tiling", bound: float = 0.0
) -> dict[str, Any]:
    return {
        "task": task,
        "bound": bound,
        "algo": algo,
        "graph": graph,
        "seed": seed,
        "judged": judged,
        "valid": True,
        "evals_cap": evals,
        "dataset": "x",
    }


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiling").mkdir()
    (tmp_path / "tiling" / "known.json").write_text(json.dumps({g: {"published_cost": 100} for g in "ab"}))
    monkeypatch.setenv("GRAPHOPT_CHECK_DATA", str(tmp_path))


def test_learned_is_compared_at_the_same_budget(published: None) -> None:
    rows = []
    for seed in (0, 1):
        rows += [row("learned_2", graph, seed, 100.0) for graph in "abc"]
        rows += [row("even_2", "a", seed, 121.0), row("even_2", "b", seed, 100.0), row("even_2", "c", seed, 900.0)]
        rows += [row("even_5", graph, seed, 300.0) for graph in "ab"]
        rows += [row("learned_few", "a", seed, 100.0, 30), row("walk_few", "a", seed, 150.0, 30)]
        rows += [row("walk_few", "a", seed, 120.0, 100)]
    of = {figure.name: figure for figure in figures(rows)}
    assert of["tiling/learned_over_untrained"].value == pytest.approx(10.0)
    assert of["tiling/learned_over_untrained"].high == pytest.approx(21.0)
    assert of["tiling/learned_over_walk_at_30_evaluations"].value == pytest.approx(50.0)
    assert "tiling/learned_over_untrained_at_5_percent" not in of
    assert not any(name.endswith("below") for name in of)


def test_both_readings_are_counted_over_seeds(published: None) -> None:
    """Graph a has three seeds, one of them dearer than published; graph b has one, at the published cost."""
    rows = [row("tile_walk_once", "a", seed, judged) for seed, judged in enumerate((101.0, 99.0, 98.0))]
    rows += [row("tile_walk_once", "b", 0, 100.3), row("tile_walk_per_operand", "a", 0, 150.0)]
    rows += [row("tile_exact_once", "a", 0, 98.0, task="tiling_once", bound=98.0)]
    rows += [row("tile_exact_once", "b", 0, 98.0, task="tiling_once", bound=90.0)]
    of = {figure.name: (figure.low, figure.value, figure.high) for figure in figures(rows)}
    assert of["tiling/once/at_or_below"] == (1.0, 2.0, 2.0) and of["tiling/once/below"] == (0.0, 1.0, 1.0)
    assert of["tiling/once/valid"] == (2.0,) * 3 and of["tiling/once/proved"] == (1.0,) * 3
    assert of["tiling/per_operand/at_or_below"] == (0.0,) * 3 and of["tiling/per_operand/proved"] == (0.0,) * 3
