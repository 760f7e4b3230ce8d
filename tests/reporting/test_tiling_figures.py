"""Figures of tiling: learned orders of moves are paired with others at the same budget."""

import json
from pathlib import Path
from typing import Any

import pytest

from graphopt.reporting.figures.tiling import figures


def row(algo: str, graph: str, seed: int, judged: float, evals: int = 10**9) -> dict[str, Any]:
    return {
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
    rows = [row("tile_walk", graph, 0, 99.0) for graph in "ab"]
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
    assert of["tiling/below"].value == 2.0
