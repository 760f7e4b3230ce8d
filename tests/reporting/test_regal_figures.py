"""Figures of REGAL on unseen families: the best peer of the mean and of each graph, the network, the objectives."""

from typing import Any

import pytest

from graphopt.reporting.figures import regal_far


def row(algo: str, graph: str, judged: float, *, seed: int = 0, evals: int = 5000, objective: str = "peak_memory",
        dataset: str = "models_far") -> dict[str, Any]:  # fmt: skip
    return {"algo": algo, "graph": graph, "family": graph[0], "judged": judged, "evals_cap": evals, "seed": seed,
            "dataset": dataset, "initial": 4.0, "objective": objective}  # fmt: skip


def named(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {figure.name: figure.value for figure in regal_far.figures(rows)}


def test_the_best_peer_is_that_of_the_mean_and_of_each_graph() -> None:
    """brkga has the lower mean, the local search is better on b1; the search in a model is no peer of theirs."""
    prices = {
        "regal": (1.0, 1.0),
        "brkga": (1.1, 1.2),
        "regal_local_heuristic": (1.4, 1.1),
        "roofline_search": (0.5, 0.5),
    }
    found = named(
        [row(algo, graph, price) for algo, both in prices.items() for graph, price in zip(("a1", "b1"), both)]
    )
    assert found["regal_over_best_unlearned/far/peak_memory"] == pytest.approx(100 * ((1.1 * 1.2) ** 0.5 - 1))
    assert found["regal_over_best_unlearned/far/peak_memory/5000/per_graph"] == pytest.approx(10.0)
    assert found["regal_over/roofline_search/far/peak_memory/5000"] == pytest.approx(-50.0)
    assert found["regal_over_default/far/peak_memory/5000"] == pytest.approx(300.0)


def test_trainings_stand_against_peers_of_one_seed_and_objectives_apart() -> None:
    rows = [row("regal", "a1", price, seed=seed) for seed, price in enumerate((1.0, 2.0))]
    rows += [row("network_off", "a1", 2.0, seed=seed) for seed in (0, 1)] + [row("brkga", "a1", 2.0)]
    rows += [row("run_model", "a1", 1.0, objective="runtime", evals=0), row("windowed", "a1", 3.0, objective="runtime")]
    rows += [
        row("roofline_search", "a1", 2.0, objective="runtime", evals=0, dataset=kind)
        for kind in ("models_far", "models")
    ]
    found = named(rows)
    assert found["regal_over_best_unlearned/far/peak_memory"] == pytest.approx(100 * (2**0.5 - 1))
    assert found["regal_network_on_over_off/far/peak_memory/5000"] == pytest.approx(100 * (2**0.5 - 1))
    assert found["model_over/roofline_search/far/runtime/0"] == pytest.approx(100.0)
    assert not [name for name in found if "windowed" in name or "near" in name or "trained_over" in name]
