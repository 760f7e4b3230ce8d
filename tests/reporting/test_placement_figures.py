"""Figures of placement: pairs by machine, who answers without evaluations, and evaluations against HDP's."""

import math
from typing import Any

import pytest

from graphopt.reporting.figures import go_placement
from graphopt.reporting.figures.figure import Figure


def row(algo: str, graph: str, judged: float, *, evals: int = 1000, machine: str = "m2",
        trace: list[list[float]] | None = None) -> dict[str, Any]:  # fmt: skip
    return {"algo": algo, "graph": graph, "family": graph[0], "judged": judged, "searched": judged, "evals_cap": evals,
            "seed": 0, "machine": machine, "dataset": "models", "initial": 2.0, "searched_initial": 2.0, "status": "ok",
            "trace": trace or [[0, 0.0, 2.0]]}  # fmt: skip


def named(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    return {figure.name: figure for figure in go_placement.figures(rows)}


def test_graphs_are_paired_on_their_machine() -> None:
    rows = [row("run_model", "a1", price, machine=m) for m, price in (("m2", 1.0), ("m4", 0.5))]
    rows += [row("expert", "a1", price, machine=m) for m, price in (("m2", 1.1), ("m4", 1.0))]
    found = named(rows)
    assert found["placement_over/expert/m2"].value == pytest.approx(10.0)
    assert found["placement_over/expert/m4"].value == pytest.approx(100.0)
    assert found["placement_over/expert"].value == pytest.approx(100 * (math.sqrt(1.1 * 2.0) - 1))


def test_who_needs_prices_has_no_figure_without_evaluations() -> None:
    rows = [row(algo, "a1", 1.0, evals=e) for algo in ("run_model", "hill_climbing", "expert") for e in (0, 20)]
    found = named(rows)
    assert "placement_over/expert/0" in found and "placement_over/hill_climbing/20" in found
    assert "placement_over/hill_climbing/0" not in found
    assert found["placement_over/default/0"].value == pytest.approx(100.0)


def test_evaluations_to_what_hdp_ends_with() -> None:
    """On a1 HDP took 80 and the policy 4; on b1 the policy never gets there in its 100; on c1 HDP is no better than the
    default, which nobody has to reach."""
    policy = {"a1": [[0, 0, 2.0], [4, 0, 1.5], [9, 0, 1.0]], "b1": [[0, 0, 2.0], [5, 0, 1.9]], "c1": [[0, 0, 2.0]]}
    hdp = {"a1": [[0, 0, 2.0], [80, 0, 1.6]], "b1": [[0, 0, 2.0], [50, 0, 1.2]], "c1": [[0, 0, 2.0]]}
    rows = [row("run_model", g, t[-1][2], evals=100, trace=t) for g, t in policy.items()]
    rows += [row("hdp", g, t[-1][2], evals=100, trace=t) for g, t in hdp.items()]
    assert named(rows)["evaluations_hdp_over_go"].value == pytest.approx(math.sqrt(20.0 * 0.5))
    rows += [{**each, "seed": 1} for each in rows if each["algo"] == "run_model"]  # a second training, one seed of HDP
    assert named(rows)["evaluations_hdp_over_go"].value == pytest.approx(math.sqrt(20.0 * 0.5))


def test_what_is_possible_over_a_peer_is_what_the_bound_leaves() -> None:
    rows = [row("run_model", "a1", 1.6), row("expert", "a1", 1.8), row("placement_policy", "a1", 1.5)]
    rows.append(row("lower_bound", "a1", 2.0, evals=0) | {"bound": 1.2})
    found = named(rows)
    assert found["possible_over/expert"].value == pytest.approx(50.0)
    assert found["policy_over/expert"].value == pytest.approx(20.0)
    assert found["share_of_room/placement"].value == pytest.approx(50.0)
    assert found["share_of_room/policy/m2"].value == pytest.approx(62.5)


def test_what_the_search_does_without_its_network() -> None:
    """Untrained it is 1.5 times as fast as hill climbing; the network adds a fifth to that."""
    rows = [row("run_model", "a1", 1.0), row("roofline_search", "a1", 1.2), row("hill_climbing", "a1", 1.8)]
    found = named(rows)
    assert found["placement_over/hill_climbing"].value == pytest.approx(80.0)
    assert found["untrained_over/hill_climbing"].value == pytest.approx(50.0)
    assert found["placement_over/roofline_search"].value == pytest.approx(20.0)
