"""Figures of the joint task: shares of the room, the best heuristic of each graph, one seed against three."""

from typing import Any

import pytest

from graphopt.reporting.figures import go_ablation, go_joint, go_transfer
from graphopt.reporting.figures.figure import Figure


def row(algo: str, graph: str, judged: float, *, evals: int = 1000, seed: int = 0, task: str = "joint",
        bound: float = 0.0) -> dict[str, Any]:  # fmt: skip
    return {"algo": algo, "graph": graph, "family": graph[0], "judged": judged, "evals_cap": evals, "seed": seed,
            "machine": "m4", "dataset": "models", "initial": 2.0, "bound": bound, "task": task}  # fmt: skip


def named(rows: list[dict[str, Any]], module: Any = go_joint) -> dict[str, Figure]:
    return {figure.name: figure for figure in module.figures(rows)}


def test_shares_of_the_room() -> None:
    """Of a1 half of what the bound leaves was taken, of b1 all of it; c1 has no room and does not count."""
    rows = [row("run_model", graph, price) for graph, price in (("a1", 1.5), ("b1", 1.6), ("c1", 2.0))]
    rows += [row("lower_bound", g, 2.0, evals=0, bound=b) for g, b in (("a1", 1.0), ("b1", 1.6), ("c1", 1.999))]
    found = named(rows)
    assert found["share_of_room/joint"].value == pytest.approx(75.0)
    assert found["room/joint"].value == pytest.approx(100 * (0.5 + 0.2 + 0.0005) / 3)
    assert found["with_room/joint"].value == pytest.approx(200 / 3)
    assert found["with_much_room/joint"].value == pytest.approx(100 / 3)
    assert found["over_default_with_much_room/joint"].value == pytest.approx(100 * (2.0 / 1.5 - 1))
    found = named([*rows, row("heft", "a1", 1.25, evals=0), row("heft", "b1", 1.0, evals=0)])
    assert found["best_with_much_room/joint"].value == pytest.approx(100 * (2.0 / 1.25 - 1))


def test_every_training_stands_against_the_best_heuristic_of_a_graph() -> None:
    rows = [row("run_model", "a1", price, evals=0, seed=seed) for seed, price in enumerate((1.0, 1.25))]
    rows += [row("heft", "a1", 1.6, evals=0), row("list_blevel", "a1", 1.25, evals=0)]
    found = named(rows)
    assert found["joint_over_best_heuristic/0"].value == pytest.approx(100 * ((1.25 * 1.0) ** 0.5 - 1))
    assert found["joint_over_heft/0"].value == pytest.approx(100 * ((1.6 * 1.6 / 1.25) ** 0.5 - 1))
    assert found["joint_slower_than_default/0"].value == 0.0


def test_joint_over_the_sequence_and_the_default() -> None:
    rows = [row("run_model", "a1", 1.0), row("joint_search", "a1", 1.1), row("task_sequence", "a1", 1.21)]
    found = named([*rows, row("run_model", "a1", 1.0, task="fusion")])
    assert found["joint_over_sequence"].value == pytest.approx(21.0)
    assert found["joint_over_default"].value == pytest.approx(100.0)
    assert found["joint_search_over_sequence/1000"].value == pytest.approx(10.0)
    assert found["fusion_over_default/1000"].value == pytest.approx(100.0) and "fusion_over_sequence/1000" not in found


def test_parts_of_go_are_worth_what_is_lost_without_them() -> None:
    rows = [row("go", "a1", 1.0), row("no_attention", "a1", 1.1), row("recurrent", "a1", 0.8)]
    rows += [row("go", "a1", 1.0, task="fusion"), row("no_attention", "a1", 1.2, task="fusion")]
    found = named(rows, go_ablation)
    assert found["worth_of/attention/joint/1000"].value == pytest.approx(10.0)
    assert found["worth_of/attention/fusion/1000"].value == pytest.approx(20.0)
    assert found["worth_of/recurrent/joint/1000"].value == pytest.approx(25.0)
    assert found["go_over_default/joint/1000"].value == pytest.approx(100.0)


def test_fine_tuned_against_from_scratch() -> None:
    rows = [row("go", "a1", 1.6), row("fine_tuned", "a1", 1.0), row("from_scratch", "a1", 1.5)]
    found = named(rows, go_transfer)
    assert found["fine_tuned_over_scratch"].value == pytest.approx(50.0)
    assert found["fine_tuned_over_zero_shot"].value == pytest.approx(60.0)
