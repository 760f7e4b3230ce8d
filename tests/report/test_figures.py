"""Headline figures of the experiments in conf/figures.yaml, on rows written by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from graphopt.core.errors import UserError
from graphopt.hardware.requests import CompilerRequest
from graphopt.report import calibration
from graphopt.report.calibration import MeasuredGraph, MeasuredPlan
from graphopt.report.figures import FILE, FORMS, KINDS, Figure, figures, figures_of

EXPERIMENTS = yaml.safe_load(FILE.read_text())
Row = dict[str, Any]


def row(algo: str, graph: str, judged: float, **fields: Any) -> Row:
    """Of a family that is called by the first letter of its graph; the default costs 2."""
    return {"algo": algo, "graph": graph, "family": graph[0], "judged": judged, "searched": judged, "initial": 2.0,
            "searched_initial": 2.0, "evals_cap": 1000, "seed": 0, "machine": "m2", "dataset": "models_far",
            "task": "joint", "objective": "peak_memory", "judge": "x", "bound": 0.0, "noise": 0.001, "valid": True,
            "trace": [[0, 0.0, 2.0]]} | fields  # fmt: skip


def found(experiment: str, rows: list[Row]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(EXPERIMENTS[experiment], rows)}


def percent(ratio: float) -> Any:
    return pytest.approx(100 * (ratio - 1), abs=1e-9)


def test_every_entry_is_of_a_known_kind() -> None:
    for name, experiment in EXPERIMENTS.items():
        for entry in (each for one in experiment["figures"] for each in (one if isinstance(one, list) else [one])):
            kind = entry.get("kind", "faster")
            kinds = entry["for"][kind.strip("{}")].values() if "{" in kind else [kind]
            assert {*kinds} <= {*FORMS, *KINDS}, name


def test_an_experiment_without_figures_says_which_have_some(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"status": "ok", "study": "mine", "graph": "a"}) + "\n")
    with pytest.raises(UserError, match=r"those that have are: .*go_far"):
        figures_of(tmp_path)


# ---- means over cases


def test_a_family_of_many_graphs_counts_once() -> None:
    """Three siblings that gain 10 % and one graph that gains nothing: the geometric mean of 1.1 and 1."""
    rows = [row("kernel_model", graph, 1.0, evals_cap=20) for graph in ("a1", "a2", "a3", "b1")]
    rows += [row("motif_scan", graph, 1.1 if graph[0] == "a" else 1.0, evals_cap=20, dataset="models")
             for graph in ("a1", "a2", "a3", "b1")]  # fmt: skip
    mean = found("go_far", rows)["go_over_motif_scan/far/20"]
    assert mean.value == percent(math.sqrt(1.1)) and mean.low == percent(1.0) and mean.high == percent(1.1)


def test_the_best_rule_of_each_graph() -> None:
    rows = [row("kernel_model", "a1", 0.5, evals_cap=0), row("kernel_model", "b1", 2.1, evals_cap=0)]
    for rule, prices in (("default", (2.0, 2.0)), ("inline_all", (0.8, 3.0)), ("xla_priority", (0.9, 4.0))):
        rows += [row(rule, g, p, evals_cap=0, dataset="models") for g, p in zip(("a1", "b1"), prices)]
    of = found("go_far", rows)
    assert of["go_over_motif_scan/far/0"].value == percent(math.sqrt(0.8 / 0.5 * 2.0 / 2.1))
    assert of["slower_than_default/far/0"].value == pytest.approx(50.0)
    assert "go_over_motif_scan/near/0" not in of and "go_over_motif_scan/far/20" not in of


def test_only_cases_of_both_sides_count() -> None:
    rows = [row("kernel_model", "a1", 1.0), row("kernel_model", "b1", 9.0), row("motif_scan", "a1", 1.2)]
    rows += [row("motif_policy", "a1", 1.1, dataset="models"), row("roofline_scan", "a1", 1.1, dataset="models")]
    of = found("go_far", rows)
    assert of["go_over_motif_scan/far/1000"].value == percent(1.2)
    assert of["over_roofline/far/1000"].value == percent(1.1)  # one without learning is of both data sets
    assert not any(name.startswith("go_over_motif_policy") for name in of)


def test_the_best_peer_is_that_of_the_mean_and_of_each_graph() -> None:
    """brkga has the lower mean, the local search is better on b1; the search in a model is no peer of theirs."""
    prices = {"regal": (1.0, 1.0), "brkga": (1.1, 1.2), "hot_local": (1.4, 1.1), "roofline_search": (0.5, 0.5)}
    of = found("regal_far", [row(algo, g, p) for algo, both in prices.items() for g, p in zip(("a1", "b1"), both)])
    assert of["regal_over_best_unlearned/far/peak_memory"].value == percent((1.1 * 1.2) ** 0.5)
    assert of["regal_over_best_unlearned/far/peak_memory/1000/per_graph"].value == percent(1.1)
    assert of["regal_over/roofline_search/far/peak_memory/1000"].value == percent(0.5)
    assert of["regal_over_default/far/peak_memory/1000"].value == percent(2.0)


def test_trainings_stand_against_peers_of_one_seed_and_objectives_apart() -> None:
    rows = [row("regal", "a1", price, seed=seed) for seed, price in enumerate((1.0, 2.0))]
    rows += [row("network_off", "a1", 2.0, seed=seed) for seed in (0, 1)] + [row("brkga", "a1", 2.0)]
    rows += [row("windowed", "a1", 3.0, objective="runtime"), row("run_model", "a1", 1.0, objective="runtime", seed=1)]
    of = found("regal_far", rows)
    assert of["regal_over_best_unlearned/far/peak_memory"].value == percent(2**0.5)
    assert of["regal_network_on_over_off/far/peak_memory/1000"].value == percent(2**0.5)
    assert of["model_over/windowed/far/runtime/1000"].value == percent(3.0)
    assert not [
        name for name in of if name.startswith("regal_over/windowed") or "near" in name or "trained_over" in name
    ]


def test_a_peer_of_the_same_seed_alone_where_it_is_asked_for() -> None:
    rows = [row("model_tuned", "a1", 1.0, seed=seed) for seed in (0, 1)] + [row("joint_search", "a1", 1.2)]
    rows += [row("model_tuned", "b1", 1.0, seed=1), row("joint_search", "b1", 9.0)]
    assert found("go_transfer", rows)["model_tuned_over_search"].value == percent(1.2)


def test_cases_are_paired_on_their_machine() -> None:
    rows = [row("run_model", "a1", price, machine=m) for m, price in (("m2", 1.0), ("m4", 0.5))]
    rows += [row("expert", "a1", price, machine=m) for m, price in (("m2", 1.1), ("m4", 1.0))]
    of = found("go_placement", rows)
    assert of["placement_over/expert/m2"].value == percent(1.1)
    assert of["placement_over/expert"].value == percent(math.sqrt(1.1 * 2.0))
    assert "placement_over/expert/0" not in of and "placement_over/run_model" not in of


def test_parts_and_tasks_stand_apart() -> None:
    rows = [row("go", "a1", 1.0), row("no_attention", "a1", 1.1), row("recurrent", "a1", 0.8)]
    rows += [row("go", "a1", 1.0, task="fusion"), row("no_attention", "a1", 1.2, task="fusion")]
    of = found("go_ablation", rows)
    assert of["worth_of/attention/joint/1000"].value == percent(1.1)
    assert of["worth_of/attention/fusion/1000"].value == percent(1.2)
    assert of["worth_of/recurrent/joint/1000"].value == percent(1.25)
    assert of["go_over_default/joint/1000"].value == percent(2.0)


def test_the_learning_curve_is_by_number_of_graphs() -> None:
    rows = [row("kernels_10", "a1", 1.0, evals_cap=20), row("kernels_100", "a1", 0.9, evals_cap=20)]
    rows += [row("trained_10", "a1", 1.1, evals_cap=20), row("motif_scan", "a1", 0.99, evals_cap=20)]
    of = found("learning_curve", rows)
    assert {*of} == {"gain_against_training_graphs/10", "gain_against_training_graphs/100",
                     "motif_policy_gain_against_training_graphs/10"}  # fmt: skip
    assert of["gain_against_training_graphs/100"].value == percent(1.1)


def test_means_of_measured_times_are_over_families_and_kinds_stay_apart() -> None:
    def raced(graph: str, judged: float, **fields: Any) -> Row:
        return row("compiler_search", graph, judged, dataset="lowered_step", task="fusion_equal") | fields

    rows = [raced(g, p, dataset="lowered_compiled") for g, p in (("a.forward", 1.0), ("a.backward", 1.0), ("b", 2.0))]
    of = found("hardware_fusion", [*rows, raced("a", 1.0), raced("a", 2.0, algo="best_knob"),
                                   raced("a", 0.5, task="fusion_close"), raced("c", 2.2, noise=0.02),
                                   raced("d", 2.05, noise=0.02)])  # fmt: skip
    mean = of["aot/equal"]
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.5**0.5, 0.5, 1.0))
    assert of["whole_step/close"].value == pytest.approx(0.25)
    assert of["whole_step/equal/best_knob"].value == pytest.approx(1.0)
    assert of["slower_than_default"].value == 1  # of the two, what noise does not explain


def test_ratios_over_the_best_of_the_compilers_orders() -> None:
    prices = {"a": {"default": 100, "lpmf": 80, "bfs": 120, "dfs": 90, "order_walk": 40},
              "b": {"default": 50, "lpmf": 70, "bfs": 60, "dfs": 60, "order_walk": 50}}  # fmt: skip
    of = found("hardware_memory", [row(algo, g, float(p)) for g, each in prices.items() for algo, p in each.items()])
    mean = of["peak_over_best_order"]
    assert (mean.value, mean.low, mean.high) == pytest.approx(((40 / 80) ** 0.5, 0.5, 1.0))


def test_learned_sharding_is_paired_with_untrained_and_families_count_once() -> None:
    """Two graphs of one family, 21 and 0 % better, and one of another, 21 % better: (10 + 21) / 2 in logarithms."""
    family = {"iopddl-A": "GNS", "iopddl-K": "GNS", "iopddl-M": "Gemma"}
    costs = {"iopddl-A": ("learned_gns", 1.0), "iopddl-K": ("learned_gns", 1.21), "iopddl-M": ("learned_gemma", 1.0)}
    rows = [row(algo, graph, cost, seed=seed, family=family[graph]) for graph, learned in costs.items()
            for seed in (0, 1) for algo, cost in (learned, ("sharding_short", 1.21))]  # fmt: skip
    of = found("sharding", rows)["learned_over_untrained"]
    assert (of.value, of.low, of.high) == (percent(1.21**0.75), percent(1.1), percent(1.21))


def test_taught_on_one_shape_and_applied_to_others() -> None:
    rows = [row(algo, graph, p) for algo, both in (("taught", (1.0, 1.0)), ("untaught", (1.1, 1.0)))
            for graph, p in zip(("m48", "m64"), both)]  # fmt: skip
    of = found("xrlflow_shapes", rows)
    assert of["over_original/taught"].value == percent(2.0)
    assert of["taught_over_untaught"].value == percent(math.sqrt(1.1)) and of["taught_over_untaught"].low == percent(1)


def test_policies_of_half_of_the_networks_count_on_the_other_half() -> None:
    prices = {"families_first": (0.5, 1.0), "families_second": (1.1, 0.6), "untaught": (1.21, 1.1)}
    rows = [row(algo, model, p, family=model) for algo, of in prices.items() for model, p in zip(("lstm", "t5"), of)]
    of = found("xrlflow_blind", rows)
    assert of["families/over/untaught"].value == percent(1.1)
    assert of["families/seen/over/untaught"].value == percent(math.sqrt(1.21 / 0.5 * 1.1 / 0.6))
    assert "over/untaught" not in of


def test_margins_over_saturation() -> None:
    def saves(algo: str, model: str, share: float, seed: int = 0) -> Row:
        return row(algo, model, 2.0 * (1 - share), family=model, seed=seed)

    of = found("rewrite_mcts", [saves("mcts", "bert", 0.3), saves("mcts", "bert", 0.2, 1), saves("mcts", "vgg19", 0.1),
                                saves("tensat_2000", "bert", 0.125), saves("tensat", "bert", 0.5),
                                saves("tensat_2000", "vgg19", 0.0)])  # fmt: skip
    assert of["mcts_over_tensat/bert"].value == pytest.approx(2.0)
    assert of["mcts_over_restarts/bert"].value == pytest.approx(0.5)
    assert of["mcts_saves/bert"].value == pytest.approx(25.0)
    assert "mcts_over_tensat/vgg19" not in of


# ---- kinds of their own


def test_speed_ups_and_losses_of_measured_programs() -> None:
    speeds = {"per_model": {("a1", "torch"): 1.44, ("a1", "ort"): 1.0, ("b1", "torch"): 1.21},
              "taso": {("a1", "torch"): 0.9, ("a1", "ort"): 0.8, ("b1", "torch"): 1.21}}  # fmt: skip
    rows = [row(algo, graph, 2 / x, judge=judge) for algo, of in speeds.items() for (graph, judge), x in of.items()]
    of = {name: figure.value for name, figure in found("xrlflow_latency", rows).items()}
    assert of["slower"] == 0 and of["slower/taso"] == 2
    assert of["over_original"] == of["over_original/1000"] == pytest.approx(math.sqrt(1.2 * 1.21))
    assert of["over_taso"] == pytest.approx(math.sqrt(math.sqrt(1.44 / 0.9 / 0.8)))
    assert of["gains_where_additive_loses"] == 1 and of["ahead/taso"] == 2 and of["behind/taso"] == 0


def test_what_noise_can_make_is_neither_gain_nor_loss() -> None:
    rows = [row("per_model", "a", 2 / 0.99, noise=0.02), row("taso", "a", 2 / 0.95, noise=0.001)]
    of = found("xrlflow_latency", rows)
    assert [of[name].value for name in ("slower", "gains_where_additive_loses", "slower/taso")] == [0, 0, 1]


def test_the_share_of_what_policies_per_model_gain() -> None:
    prices = {("one_policy", 0): 1.25, ("one_policy", 1): 1.6, ("per_model", 0): 1.0, ("per_model", 1): 1.0}
    of = found("xrlflow_one_policy", [row(algo, "bert", p, seed=seed) for (algo, seed), p in prices.items()])
    shares = [math.log(2 / 1.25) / math.log(2), math.log(2 / 1.6) / math.log(2)]
    share = of["one_policy/share_of_gain"]
    assert (share.value, share.low, share.high) == pytest.approx((sum(shares) / 2, shares[1], shares[0]))


def test_shares_of_the_room() -> None:
    """Of a1 half of what the bound leaves was taken, of b1 all of it; c1 has no room and does not count."""
    rows = [row("run_model", graph, price) for graph, price in (("a1", 1.5), ("b1", 1.6), ("c1", 2.0))]
    rows += [row("lower_bound", g, 2.0, evals_cap=0, bound=b) for g, b in (("a1", 1.0), ("b1", 1.6), ("c1", 1.999))]
    of = found("go_joint", [*rows, row("heft", "a1", 1.25, evals_cap=0), row("heft", "b1", 1.0, evals_cap=0)])
    assert of["share_of_room/joint"].value == pytest.approx(75.0)
    assert of["room/joint"].value == pytest.approx(100 * (0.5 + 0.2 + 0.0005) / 3)
    assert of["over_default_with_much_room/joint"].value == percent(2.0 / 1.5)
    assert of["best_with_much_room/joint"].value == percent(2.0 / 1.25)


def test_evaluations_to_what_hdp_ends_with() -> None:
    """On a1 HDP took 80 and the policy 4; on b1 the policy never gets there in its 100; on c1 HDP is no better than the
    default, which nobody has to reach."""
    policy = {"a1": [[0, 0, 2.0], [4, 0, 1.5], [9, 0, 1.0]], "b1": [[0, 0, 2.0], [5, 0, 1.9]], "c1": [[0, 0, 2.0]]}
    hdp = {"a1": [[0, 0, 2.0], [80, 0, 1.6]], "b1": [[0, 0, 2.0], [50, 0, 1.2]], "c1": [[0, 0, 2.0]]}
    rows = [row(algo, graph, trace[-1][2], evals_cap=100, trace=trace)
            for algo, of in (("run_model", policy), ("hdp", hdp)) for graph, trace in of.items()]  # fmt: skip
    rows += [{**each, "seed": 1} for each in rows if each["algo"] == "run_model"]  # a second training, one seed of HDP
    of = found("go_placement", rows)
    assert of["evaluations_hdp_over_go"].value == pytest.approx(math.sqrt(20.0 * 0.5))
    assert (of["evaluations_hdp_over_go/solves"].value, of["evaluations_hdp_over_go/missed"].value) == (4, 2)


def solved(costs: list[tuple[int, float]], **fields: Any) -> Row:
    steps = [[0, 0.0, 2.0], *([evals, 0.1, cost] for evals, cost in costs)]
    return row("compiler_policy", "a", 1.0, trace=steps, evals_cap=24, task="fusion_equal") | fields


def policy(*rows: Row) -> dict[str, float]:
    of = found("hardware_unseen", list(rows))
    return {name.removeprefix("compiler_policy/"): figure.value for name, figure in of.items()}


def test_a_policy_is_counted_against_nine_tenths_of_what_the_search_gains_in_its_race() -> None:
    search = solved([(3, 1.5), (16, 1.0), (20, 0.8)], algo="compiler_search")
    of = policy(search, *(solved([(evals, 1.1)], seed=evals) for evals in (3, 5)), row("compiler_policy", "b", 1.0))
    assert of["evals_to_90"] == pytest.approx(15**0.5 / 16) and of["evals_to_90/missed"] == 0
    assert of["evals_to_90/solves"] == 2
    of = policy(solved([(12, 1.0)], algo="compiler_search"), solved([(4, 1.2)]))
    assert of["evals_to_90"] == pytest.approx(24 / 12)  # never: the whole budget
    no_gain = solved([], algo="compiler_search", judged=2.0)
    assert not any("evals_to_90" in name for name in policy(no_gain, solved([(4, 1.2)])))


def test_the_interval_of_a_policy_resamples_families_and_seeds() -> None:
    rows = [solved([(10, 1.0)], algo="compiler_search", graph=graph, family=graph) for graph in "ab"]
    rows += [solved([(evals, 1.0)], graph=graph, family=graph, seed=seed)
             for graph, seeds in (("a", (1, 4)), ("b", (9,))) for seed, evals in enumerate(seeds)]  # fmt: skip
    of = found("hardware_unseen", rows)["compiler_policy/evals_to_90"]
    assert (of.value, of.low, of.high) == pytest.approx(((0.2 * 0.9) ** 0.5, 0.1, 0.9))


def test_laf_by_its_traces(tmp_path: Path) -> None:
    from test_tables import traced

    learned, rows = {"params": 9, "evals_cap": 1000}, []
    for graph, reached in (("a", 40), ("b", 20)):
        rows += [
            {**traced("motif_scan", 0, [(0, 10.0), (10, 9.0), (100, 6.0)], graph), "evals_cap": 1000},
            {**traced("laf_unguided", 0, [(0, 10.0), (500, 8.0)], graph), "evals_cap": 1000},
            traced("laf_refit", 0, [(0, 10.0), (15, 8.0), (reached, 6.0)], graph) | learned,
            traced("laf_refit_untrained", 0, [(0, 10.0), (300, 7.0)], graph) | learned,
        ]
    rows = [{**each, "study": "laf_far"} for each in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    of = {figure.name: figure for figure in figures_of(tmp_path)}
    share = of["laf_share_of_best_unlearned/far/laf_refit"]
    assert (share.value, share.low, share.high) == pytest.approx((math.sqrt(0.4 * 0.2), 0.2, 0.4))
    assert of["laf_share_of_uniform/far/laf_refit"].value == pytest.approx(15 / 500)
    assert of["laf_over_motif_scan/far/20"].value == percent(math.sqrt(9 / 8 * 9 / 6))
    assert of["network_on_over_off/far/1000"].value == percent(7 / 6)


def test_sums_over_ops_against_whole_programs() -> None:
    def judged(graph: str, judge: str, initial: float) -> Row:
        return {"graph": graph, "judge": judge, "initial": initial, "cost": "flops", "searched_initial": 0.003}

    rows = [judged("a", "profiled", 0.002), judged("a", "torch", 0.004), judged("b", "torch", 0.002)]
    of = found("cost_discrepancy", [*rows, judged("b", "profiled", 0.003)])
    assert {name: (f.value, f.low, f.high) for name, f in of.items()} == {
        "flops to torch": pytest.approx((0.375, 0.25, 0.5)), "profiled to torch": pytest.approx((0.5,) * 3),
    }  # fmt: skip
    with pytest.raises(UserError, match="run experiment=cost_discrepancy first"):
        found("cost_discrepancy", rows[:1])


def test_points_are_of_medians_over_seeds() -> None:
    best = EXPERIMENTS["sharding"]["published"]
    costs = {"iopddl-A": (1.0, 1.25, 2.0), "iopddl-M": (0.5, 0.9, 1.0)}
    of = found("sharding", [row("sharding_search", graph, x * best[graph], seed=seed)
                            for graph, each in costs.items() for seed, x in enumerate(each)])  # fmt: skip
    assert (of["points"].value, of["points"].low, of["points"].high) == pytest.approx((0.9, 0.75, 1.0))
    assert of["over_best_team/iopddl-A"].value == pytest.approx(1.25) and "points_at_5_percent" not in of


def test_tiling_against_published_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph a has three seeds, one of them dearer than published; graph b has one, at the published cost; c is of no
    contest."""
    (tmp_path / "tiling").mkdir()
    (tmp_path / "tiling" / "known.json").write_text(json.dumps({g: {"published_cost": 100} for g in "ab"}))
    monkeypatch.setenv("GRAPHOPT_CHECK_DATA", str(tmp_path))
    rows = [row("tile_walk_once", "a", judged, seed=seed) for seed, judged in enumerate((101.0, 99.0, 98.0))]
    rows += [row("tile_walk_once", "b", 100.3), row("tile_walk_per_operand", "a", 150.0), row("tile_walk_once", "c", 1)]
    rows += [row("tile_exact_once", g, 98.0, task="tiling_once", bound=b) for g, b in (("a", 98.0), ("b", 90.0))]
    rows += [row("learned_2", graph, 100.0, seed=seed) for graph in "abc" for seed in (0, 1)]
    rows += [row("even_2", g, p, seed=seed) for g, p in (("a", 121.0), ("b", 100.0), ("c", 900.0)) for seed in (0, 1)]
    rows += [row("learned_few", "a", 100.0, evals_cap=30), row("walk_few", "a", 150.0, evals_cap=30)]
    of = {name: (figure.value, figure.low, figure.high) for name, figure in found("tiling", rows).items()}
    assert of["tiling/once/at_or_below"] == (2, 1, 2) and of["tiling/once/below"] == (1, 0, 1)
    assert of["tiling/once/valid"] == (2,) * 3 and of["tiling/once/proved"] == (1,) * 3
    assert of["tiling/per_operand/at_or_below"] == (0,) * 3 == of["tiling/per_operand/proved"]
    assert of["tiling/learned_over_untrained"][0] == percent(1.1)
    assert of["tiling/learned_over_walk_at_30_evaluations"][0] == percent(1.5)
    monkeypatch.setenv("GRAPHOPT_CHECK_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="GRAPHOPT_CHECK_DATA"):
        found("tiling", rows)


def test_split_training_steps() -> None:
    peaks = {"torch": (100, 80, 90), "partitioner": (100, 60, 45)}
    rows = [{"graph": "m", "backend": "eager", "split": split, "budget": budget, "peak_bytes": peak, "ratio": 0.9,
             "ratio_low": 0.8, "ratio_high": 1.1, "gradient_error": 0.5 * (split == "torch")}
            for split, of in peaks.items() for budget, peak in zip((1.0, 0.5, 0.05), of)]  # fmt: skip
    of = {name: (f.value, f.low, f.high) for name, f in found("hardware_recompute", rows).items()}
    assert of == {
        "recompute_peak/m": pytest.approx((0.5,) * 3), "recompute_time/m": (0.9, 0.8, 1.1),
        "recompute_noise/m": (0.9, 0.8, 1.1), "recompute_monotone": (0,) * 3, "recompute_monotone_torch": (1,) * 3,
        "recompute_gradient": (0,) * 3, "recompute_gradient_torch": (0.5,) * 3,
    }  # fmt: skip


def test_cost_models_are_scored_over_all_masks_and_over_those_near_the_default() -> None:
    """Five masks ask for one op, five for all of 40; the second model is right about the first five alone."""
    masks = [MeasuredPlan(CompilerRequest({f"op{i}": "store" for i in range(1 if place < 5 else 40)}, {}), str(place),
                          {"bytes": float(place)}, 1.0 + place, 0.0, 1.0) for place in range(10)]  # fmt: skip
    none = MeasuredPlan(CompilerRequest({}, {}), "0", {}, 1.0, 0.0, 1.0)
    half = np.array([0.0, 1, 2, 3, 4, 9, 8, 7, 6, 5])
    graph, predicted = MeasuredGraph("p", "here", none, tuple(masks)), {"right": np.arange(10.0), "half": half}
    of = dict(calibration._correlations("g", graph, masks, predicted))
    assert of["spearman/right/g"][0] == of["spearman_near/half/g"][0] == 1.0
    assert of["spearman/half/g"][0] == pytest.approx(1 - 6 * 40 / 990) and of["spearman/half/g"][1] < 0.75
    assert of["spearman/again/g"][0] == pytest.approx(1.0)
    assert (of["spearman/over/g"][0], of["spearman_near/over/g"][0]) == (10.0, 5.0)


def test_without_its_table_nothing_is_scored(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bring the table"):
        [*calibration.scores(tmp_path, [])]
