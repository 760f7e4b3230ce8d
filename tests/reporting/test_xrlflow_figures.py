"""Headline figures of measured programs and of tree search over e-graphs, by hand."""

import math
from typing import Any

import pytest

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.rewriting import (
    rewrite_mcts,
    xrlflow_ablation,
    xrlflow_blind,
    xrlflow_latency,
    xrlflow_one_policy,
    xrlflow_shapes,
)


def row(algo: str, graph: str, judge: str, speed: float, noise: float = 0.001) -> dict[str, Any]:
    return {"algo": algo, "graph": graph, "family": graph[0], "judge": judge, "initial": 1.0, "judged": 1 / speed,
            "noise": noise, "seed": 0, "evals_cap": 64}  # fmt: skip


def named(found: list[Figure]) -> dict[str, float]:
    return {figure.name: figure.value for figure in found}


def test_speed_ups_and_losses() -> None:
    found = named(xrlflow_latency.figures([
        row("per_model", "a1", "torch", 1.44), row("per_model", "a1", "onnxruntime", 1.0), row("per_model", "b1",
        "torch", 1.21), row("taso", "a1", "torch", 0.9), row("taso", "a1", "onnxruntime", 0.8), row("taso", "b1",
        "torch", 1.21), row("one_policy", "a1", "torch", 1.2), row("one_policy", "b1", "torch", 1.1),
    ]))  # fmt: skip
    assert found["slower"] == 0 and found["slower/taso"] == 2
    assert found["over_original"] == pytest.approx(math.sqrt(1.2 * 1.21))
    assert found["over_taso"] == pytest.approx(math.sqrt(math.sqrt(1.44 / 0.9 / 0.8)))
    assert found["gains_where_additive_loses"] == 1
    assert found["ahead/taso"] == 2 and found["behind/taso"] == 0 and found["ahead/one_policy"] == 2
    assert found["one_policy/share_of_gain"] == pytest.approx(math.log(1.2 * 1.1) / math.log(1.44 * 1.21))


def test_budgets_are_told_apart() -> None:
    small, large = row("per_model", "a", "x", 1.44), row("per_model", "b", "x", 1.0) | {"evals_cap": 16}
    found = named(xrlflow_latency.figures([small, large]))
    assert found["over_original/64"] == pytest.approx(1.44) and found["over_original/16"] == pytest.approx(1.0)
    assert found["over_original"] == pytest.approx(1.2)


def test_a_peers_first_seed_stands_for_all() -> None:
    ours = [row("per_model", "a", "x", speed) | {"seed": seed} for seed, speed in enumerate((1.1, 1.3))]
    found = named(xrlflow_latency.figures([*ours, row("taso", "a", "x", 1.2)]))
    assert found["behind/taso"] == found["ahead/taso"] == 1
    assert found["over_taso"] == pytest.approx(math.sqrt(1.1 * 1.3) / 1.2)


def test_what_noise_can_make_is_neither_gain_nor_loss() -> None:
    found = named(xrlflow_latency.figures([row("per_model", "a", "x", 0.99, 0.02), row("taso", "a", "x", 0.95, 0.001)]))
    assert found["slower"] == 0 and found["gains_where_additive_loses"] == 0 and found["slower/taso"] == 1


def test_margins_over_saturation() -> None:
    def saves(algo: str, model: str, share: float, seed: int = 0) -> dict[str, Any]:
        return {"algo": algo, "family": model, "seed": seed, "initial": 2.0, "judged": 2.0 * (1 - share)}

    found = named(rewrite_mcts.figures([
        saves("mcts", "bert", 0.3), saves("mcts", "bert", 0.2, 1), saves("tensat_2000", "bert", 0.125),
        saves("tensat", "bert", 0.5),
        saves("mcts", "vgg19", 0.1), saves("tensat_2000", "vgg19", 0.0),
    ]))  # fmt: skip
    assert found["mcts_over_tensat/bert"] == pytest.approx(2.0) and found["mcts_over_restarts/bert"] == pytest.approx(
        0.5
    )
    assert found["mcts_saves/bert"] == pytest.approx(25.0)
    assert "mcts_over_tensat/vgg19" not in found


def solved(algo: str, graph: str, judged: float, seed: int = 0) -> dict[str, Any]:
    return {"algo": algo, "graph": graph, "family": "m", "seed": seed, "initial": 1.2, "judged": judged,
            "evals_cap": 8, "dataset": "d"}  # fmt: skip


def test_taught_on_one_shape_and_applied_to_others() -> None:
    found = named(xrlflow_shapes.figures([
        solved("taught", "m48", 1.0), solved("taught", "m64", 1.0), solved("untaught", "m48", 1.1),
        solved("untaught", "m64", 1.0),
    ]))  # fmt: skip
    assert found["over_original/taught"] == pytest.approx(20.0)
    assert found["taught_over_untaught"] == pytest.approx(100 * (math.sqrt(1.1) - 1))


def test_one_policy_over_its_peers_and_its_share_of_policies_of_their_own() -> None:
    def of(algo: str, model: str, judged: float, seed: int = 0) -> dict[str, Any]:
        return solved(algo, model, judged, seed) | {"family": model, "evals_cap": 64 if algo == "per_model" else 16}

    found = named(xrlflow_one_policy.figures([
        of("one_policy", "bert", 1.0), of("one_policy", "vit", 1.1), of("one_policy", "bert", 1.2, 1),
        of("per_model", "bert", 1.0), of("per_model", "vit", 1.0), of("per_model", "bert", 1.0, 1),
        of("remeasured_greedy", "bert", 1.0), of("remeasured_greedy", "vit", 1.21),
        of("one_policy_alone", "vit", 1.0), of("untaught_alone", "vit", 1.05), of("one_policy_alone", "bert", 1.0),
    ]))  # fmt: skip
    assert found["over/remeasured_greedy/unseen"] == pytest.approx(10.0) and found[
        "over_original/per_model"
    ] == pytest.approx(20)
    assert found["alone/over/untaught_alone"] == found["alone/over/untaught_alone/unseen"] == pytest.approx(5.0)
    assert found["alone/over/remeasured_greedy"] == pytest.approx(10.0)
    first = math.log(1.2 * 1.2 / 1.1) / math.log(1.2 * 1.2)
    assert found["one_policy/share_of_gain"] == pytest.approx((first + 0.0) / 2)
    assert found["slower"] == 0 and "over/untaught" not in found


def test_policies_of_half_of_the_networks_count_on_the_other_half() -> None:
    def of(algo: str, model: str, judged: float) -> dict[str, Any]:
        return solved(algo, model, judged) | {"family": model, "evals_cap": 16}

    found = named(xrlflow_blind.figures([
        of("families_first", "lstm", 0.5), of("families_first", "t5", 1.0), of("families_second", "lstm", 1.1),
        of("families_second", "t5", 0.6), of("untaught", "lstm", 1.21), of("untaught", "t5", 1.1),
    ]))  # fmt: skip
    assert found["families/over/untaught"] == pytest.approx(10.0)
    assert found["families/seen/over/untaught"] == pytest.approx(100 * (math.sqrt(1.21 / 0.5 * 1.1 / 0.6) - 1))
    assert "over/untaught" not in found


def test_parts_by_what_is_worse_without() -> None:
    found = named(xrlflow_ablation.figures([
        solved("per_model", "m", 1.0), solved("additive_reward", "m", 1.1), solved("flat_head", "m", 1.05),
    ]))  # fmt: skip
    assert found["worth_of/measured_reward"] == pytest.approx(10.0)
    assert found["flat_head"] == pytest.approx(100 * (1 / 1.05 - 1)) and "worth_of/prior" not in found
