"""Headline figures of measured fusion."""

import pytest

from graphopt.reporting.figures.hardware.hardware_fusion import figures
from graphopt.reporting.figures.hardware.hardware_policy import figures as figures_of_policy


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


def policy_row(costs: list[tuple[int, float]], **settings: object) -> dict[str, object]:
    made = row("a", 1.0, algo="compiler_policy") | {"seed": 0, "searched_initial": 2.0} | settings
    return made | {"trace": [[0, 0.0, 2.0], *([evals, 0.1, cost] for evals, cost in costs)]}


def policy_figures(*rows: dict[str, object]) -> dict[str, float]:
    return {figure.name.removeprefix("compiler_policy/"): figure.value for figure in figures_of_policy(rows)}


def test_a_policy_is_counted_against_nine_tenths_of_what_the_search_gains_in_its_race() -> None:
    search = policy_row([(3, 1.5), (16, 1.0), (20, 0.8)], algo="compiler_search")
    policies = [policy_row([(evals, 1.1)], seed=evals) for evals in (3, 5)]
    found = policy_figures(search, *policies, row("b", 1.0))
    assert found["evals_to_90"] == pytest.approx(15**0.5 / 16) and found["evals_to_90/missed"] == 0
    assert found["evals_to_90/solves"] == 2
    assert found["evals_to_90/a/equal"] == 4 and found["compiler_search/evals_to_90/a/equal"] == 16
    assert found["evals_to_90/lowest"] == pytest.approx(24 / 20) and found["evals_to_90/lowest/missed"] == 2


def test_a_policy_that_never_reaches_it_counts_with_the_larger_budget() -> None:
    search, policy = policy_row([(12, 1.0)], algo="compiler_search"), policy_row([(4, 1.2)], evals_cap=8)
    found = policy_figures(search, policy)
    assert found["evals_to_90"] == pytest.approx(24 / 12) and found["evals_to_90/missed"] == 1


def test_nothing_is_counted_where_the_race_shows_no_gain() -> None:
    assert policy_figures(row("a", 2.0), policy_row([(4, 1.2)])) == {}


def test_the_interval_of_a_policy_resamples_families_and_seeds() -> None:
    rows = [policy_row([(10, 1.0)], algo="compiler_search", graph=graph, family=graph) for graph in "ab"]
    rows += [policy_row([(evals, 1.0)], graph=graph, family=graph, seed=seed)
             for graph, of_seeds in (("a", (1, 4)), ("b", (9,))) for seed, evals in enumerate(of_seeds)]  # fmt: skip
    found = {figure.name: figure for figure in figures_of_policy(rows)}["compiler_policy/evals_to_90"]
    assert found.value == pytest.approx((0.2 * 0.9) ** 0.5)
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.9)


def test_answers_that_were_raced_have_times_of_their_own() -> None:
    search = policy_row([(12, 1.0)], algo="compiler_search", judged=1.5)
    raced = [policy_row([(4, 1.0)], seed=seed, judged=judged, searched_initial=2.1)
             for seed, judged in enumerate((1.2, 2.2))]  # fmt: skip
    found = policy_figures(search, *raced, policy_row([(4, 1.0)], seed=2))
    assert found["raced"] == pytest.approx((0.6 * 1.1) ** 0.5) and found["raced/search"] == pytest.approx(0.75)
    assert found["raced/over_search"] == pytest.approx((0.6 * 1.1) ** 0.5 / 0.75)
    assert found["raced/slower_than_default"] == 1
    assert "raced" not in policy_figures(search, policy_row([(4, 1.0)]))


def test_a_policy_is_also_counted_by_the_kind_of_graph() -> None:
    of_each = [policy_row([(evals, 1.0)], algo=algo, dataset=dataset)
               for dataset, needed in (("lowered_step", 1), ("lowered_compiled", 4))
               for algo, evals in (("compiler_search", 4), ("compiler_policy", needed))]  # fmt: skip
    found = policy_figures(*of_each)
    assert found["evals_to_90/lowered_step"] == pytest.approx(0.25)
    assert found["evals_to_90/lowered_compiled"] == pytest.approx(1.0)
