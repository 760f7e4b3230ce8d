"""Measured plans out of a table; costs fitted to plans, on times made of known costs; scores of rankings; files."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from graphopt.core.errors import Unreadable, UserError
from graphopt.costs.loops.preset import shipped
from graphopt.hardware import code_time
from graphopt.hardware.code_time import (
    SHIPPED,
    CodeTime,
    MeasuredGraph,
    MeasuredPlan,
    Weights,
    agreement,
    distinct,
    fitted,
    load_weights,
    measured_again,
    measured_graphs,
    needed,
    save_weights,
    spearman,
    weights_file,
)
from graphopt.hardware.costs.calibrated import preset_here
from graphopt.hardware.measure import environment
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.hardware.requests import CompilerRequest

HERE = {"environment": "here"}


def request(digest: str, requests: dict[str, str], **more: Any) -> dict[str, Any]:
    knobs = more.pop("knobs", {})
    key = json.dumps([requests, knobs])
    return {"request": key, **HERE, "program": "p", "requests": requests, "knobs": knobs, "digest": digest,
            "features": {"bytes": 8.0}, **more}  # fmt: skip


def timed(digest: str, ratio: float) -> dict[str, Any]:
    return {"digest": digest, "default": "d0", **HERE, "seconds": 2 * ratio, "ratio": ratio, "noise": 0.01, "rounds": 7,
            "aa": 1.0}  # fmt: skip


def table(path: Path, lines: list[dict[str, Any]]) -> PriceTable:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return PriceTable(path)


def test_requests_meet_the_times_of_their_code(tmp_path: Path) -> None:
    """Two requests that lead to one code are two plans of one time; what was not timed, or fails, is none."""
    requests = [request("d0", {}), request("d1", {"a": "store"}), request("d1", {"b": "cut"}),
                request("d2", {"a": "inline"}), request("d3", {}, knobs={"simdlen": 1})]  # fmt: skip
    failed = {"digest": "d3", "default": "d0", **HERE, "failure": "it crashes"}
    found = measured_graphs(table(tmp_path / "t.jsonl", [*requests, timed("d0", 1.0), timed("d1", 1.5), failed]))
    assert [*found] == ["p"] and found["p"].default.seconds == 2.0
    assert [(plan.request, plan.ratio) for plan in found["p"].plans] == [
        (CompilerRequest({"a": "store"}, {}), 1.5), (CompilerRequest({"b": "cut"}, {}), 1.5)
    ]  # fmt: skip


def test_lines_that_say_nothing_of_what_was_asked_do_not_count(tmp_path: Path) -> None:
    strange = [request("d1", {"a": "burn"}), request("d1", {}, knobs={"simdlen": 9}),
               request("d1", {}, knobs={"no": 1}), request("d1", {"c": "cut"}, environment="elsewhere")]  # fmt: skip
    bare = {"request": "x", **HERE, "digest": "d1", "features": {}}
    lines = [request("d0", {}), *strange, bare, timed("d0", 1.0), timed("d1", 1.5)]
    assert measured_graphs(table(tmp_path / "t.jsonl", lines), "here")["p"].plans == ()
    assert measured_graphs(table(tmp_path / "u.jsonl", [bare, timed("d0", 1.0)])) == {}


def test_near_is_what_asks_for_little(tmp_path: Path) -> None:
    everything = {f"op{i}": "store" for i in range(50)}
    few = {f"op{i}": "store" for i in range(5)}
    more = {f"op{i}": "store" for i in range(6)}
    lines = [request("d0", {}), *(request("d1", asked) for asked in (everything, few, more)),
             request("d1", {}, knobs={"simdlen": 1})]  # fmt: skip
    graph = measured_graphs(table(tmp_path / "t.jsonl", [*lines, timed("d0", 1.0), timed("d1", 1.5)]))["p"]
    assert [graph.near(plan) for plan in graph.plans] == [False, True, False, True]


TRUE = CodeTime({"v.tanh": 5e-9, "v.exp": 8e-9, "bytes.far": 0.03e-9, "s.load": 0.4e-9})


def made(program: str, seed: int, *, plans: int = 40, noise: float = 0.01) -> MeasuredGraph:
    rng = np.random.default_rng(seed)
    scale = {name: rng.uniform(0.5, 2) * 1e-3 / cost / 4 for name, cost in TRUE.seconds.items()}
    work = [{name: float(rng.uniform(0.5, 1.5) * s) for name, s in scale.items()} for _ in range(plans + 1)]
    own = TRUE.of(work[0])
    found = []
    for i, one in enumerate(work):
        features = one | {"ops.add": rng.uniform(0, 1e9)}
        ratio = TRUE.of(one) / own * math.exp(rng.normal(0, noise))
        asked = CompilerRequest({f"op{i}": "store"}, {})
        found.append(MeasuredPlan(asked, f"{program}{i}", features, ratio, noise, TRUE.of(one)))
    return MeasuredGraph(program, "here", found[0], tuple(found[1:]))


def wrong_pairs(model: CodeTime, graph: MeasuredGraph) -> float:
    """Of pairs that differ by 5 %, those that are told the wrong way round."""
    predicted = np.array([model.of(plan.features) for plan in graph.plans])
    truth = np.array([plan.ratio for plan in graph.plans])
    apart = np.log(truth)[:, None] - np.log(truth)[None, :]
    order = (predicted[:, None] - predicted[None, :])[apart > 0.05]
    return float((order < 0).mean())


def test_costs_fitted_to_some_graphs_order_the_plans_of_another() -> None:
    graphs = [made(f"g{i}", i) for i in range(4)]
    model, unfitted = fitted(graphs[:3]), CodeTime({})
    assert wrong_pairs(model, graphs[3]) < 0.02 < 0.1 < wrong_pairs(unfitted, graphs[3])
    default = graphs[3].default
    ratios = [model.ratio(plan.features, default.features) / plan.ratio for plan in graphs[3].plans]
    assert min(ratios) > 0.93 and max(ratios) < 1.07
    assert model.of(default.features) == pytest.approx(default.seconds, rel=0.1)
    assert fitted(graphs[:3]) == model


def test_what_was_not_seen_in_training_has_its_usual_cost() -> None:
    model = fitted([made("g", 0)])
    assert model.of({"v.erfinv": 1e6}) == pytest.approx(5e-3)
    assert model.of({"ops.add": 1e9, "vectors": 1.0}) == 0.0


def test_plans_of_one_code_count_once() -> None:
    graph = made("g", 0, plans=3)
    twice = MeasuredGraph("g", "here", graph.default, graph.plans * 2)
    assert len(distinct(twice)) == 3
    one, two = (fitted([of]).seconds["v.tanh"] for of in (graph, twice))
    assert one == two


def test_files_of_costs_are_data(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    save_weights(file, Weights(TRUE, {"environment": "here"}))
    assert load_weights(weights_file(str(file))) == Weights(TRUE, {"environment": "here"})
    said = json.loads(file.read_text())
    for damaged in ("[]", "{", json.dumps(said | {"format": "other"}), json.dumps(said | {"seconds": {"v.tanh": -1}}),
                    json.dumps(said | {"seconds": {"v.tanh": "1"}}), json.dumps(said | {"card": 3})):  # fmt: skip
        file.write_text(damaged)
        with pytest.raises(Unreadable):
            load_weights(file)
    with pytest.raises(UserError, match="learn_cost"):
        load_weights(tmp_path / "none.json")


@pytest.mark.parametrize(("flags", "processor"), [("avx2 avx512f", "Some, AVX512"), ("avx2", "Some")])
def test_what_is_shipped_says_where_it_is_from(flags: str, processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_facts", lambda: (("model name", "Some"), ("flags", flags)))
    assert environment.processor() == processor
    weights = load_weights(weights_file(SHIPPED))
    assert preset_here(SHIPPED) in shipped() and preset_here("other") == "other" and preset_here(None) is None
    assert len(weights.card["plans"]) >= 6 and all("torch 2.13" in here for here in weights.card["environments"])
    assert weights.model.of({"v.tanh": 1.0}) > weights.model.of({"v.simple": 1.0})


def test_the_command_fits_what_a_table_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert code_time.main([str(tmp_path / "empty")]) == 1
    lines = [request("d0", {}), timed("d0", 1.0)]
    for i in range(1, 12):
        lines += [request(f"d{i}", {f"op{i}": "store"}, features={"bytes.far": 8.0 + i}), timed(f"d{i}", 1 + i / 8)]
    table = tmp_path / "measured.jsonl"
    table.write_text("".join(json.dumps({**line, "features": line.get("features", {}) | {"bytes.far": 8.0}}
                                        if line.get("digest") == "d0" and "request" in line else line) + "\n"
                             for line in lines))  # fmt: skip
    out = tmp_path / "own.json"
    assert code_time.main([str(tmp_path), "--out", str(out)]) == 0
    assert "11 plans of 1 graphs" in capsys.readouterr().out
    assert load_weights(out).card == {"environments": ["here"], "plans": {"p": 11}}
    assert code_time.main([str(table), "--out", str(out), "--without", "p"]) == 1


def test_rank_correlation_is_scipys_also_with_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 8, 30).astype(float), rng.random(30)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(np.ones(5), np.arange(5.0)) == 0.0


def test_intervals_hold_the_value_and_noise_limits_what_can_be_seen() -> None:
    rng = np.random.default_rng(1)
    truth = rng.random(40) + 1
    found = agreement(spearman, truth + rng.normal(0, 0.1, 40), truth)
    assert found.low < found.value < found.high < 1.0
    assert measured_again(spearman, truth, np.zeros(40)) == pytest.approx(1.0)
    assert 0.5 < measured_again(spearman, truth, np.full(40, 0.1)) < 0.98


def test_evaluations_until_nine_tenths_of_the_gain() -> None:
    ratio = np.array([1.5, 0.8, 0.91, 0.81])
    assert needed(np.arange(4), ratio) == 2 and needed(np.array([2, 0, 3, 1]), ratio) == 3
