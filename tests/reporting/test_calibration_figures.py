"""Headline figures of measured plans, by hand."""

from pathlib import Path

import numpy as np
import pytest

from graphopt.errors import UserError
from graphopt.ranking.measured_plans import MeasuredGraph, MeasuredPlan
from graphopt.ranking.requests import CompilerRequest
from graphopt.reporting.figures.calibration import _of_graph, figures_in


def plan(place: int, ops: int) -> MeasuredPlan:
    asked = CompilerRequest({f"op{i}": "store" for i in range(ops)}, {})
    return MeasuredPlan(asked, str(place), {"bytes": float(place)}, 1.0 + place, 0.0, 1.0)


def test_models_are_scored_over_all_masks_and_over_those_near_the_default() -> None:
    """Five masks ask for one op, five for all of 40; the second model is right about the first five alone."""
    masks = [plan(i, 1 if i < 5 else 40) for i in range(10)]
    graph = MeasuredGraph("p", "here", plan(0, 0), tuple(masks))
    half = np.array([0.0, 1, 2, 3, 4, 9, 8, 7, 6, 5])
    found = {f.name: f for f in _of_graph("g", graph, masks, {"right": np.arange(10.0), "half": half})}
    assert found["spearman/right/g"].value == found["spearman_near/half/g"].value == 1.0
    assert found["spearman/half/g"].value == pytest.approx(1 - 6 * 40 / 990)
    assert found["spearman/half/g"].low < found["spearman/half/g"].value
    assert found["top5_recall/half/g"].value == 1.0 and found["spearman/again/g"].value == pytest.approx(1.0)
    assert (found["spearman/over/g"].value, found["spearman_near/over/g"].value) == (10.0, 5.0)


def test_without_its_table_there_are_no_figures(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bring the table"):
        figures_in(tmp_path, [])
