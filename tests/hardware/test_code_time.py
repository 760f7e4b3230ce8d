"""Costs fitted to measured plans, on times made of known costs; their files."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from graphopt.core.errors import Unreadable, UserError
from graphopt.hardware import learn_cost
from graphopt.hardware.ranking.code_time import (
    SHIPPED,
    CodeTime,
    Weights,
    distinct,
    fitted,
    load_weights,
    save_weights,
    weights_file,
)
from graphopt.hardware.ranking.measured_plans import MeasuredGraph, MeasuredPlan
from graphopt.hardware.ranking.requests import CompilerRequest
from tests.hardware.test_measured_plans import request, timed

TRUE = CodeTime({"v.tanh": 5e-9, "v.exp": 40e-9, "bytes.far": 0.02e-9, "s.load": 8e-9})


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
    assert min(ratios) > 0.95 and max(ratios) < 1.05
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


def test_what_is_shipped_is_sound_and_says_where_it_is_from() -> None:
    weights = load_weights(weights_file(SHIPPED))
    assert len(weights.card["plans"]) >= 6 and "torch 2.13" in weights.card["environment"]
    assert weights.model.of({"v.tanh": 1.0}) > weights.model.of({"v.simple": 1.0})


def test_the_command_fits_what_a_table_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert learn_cost.main([str(tmp_path / "empty")]) == 1
    lines = [request("d0", {}), timed("d0", 1.0)]
    for i in range(1, 12):
        lines += [request(f"d{i}", {f"op{i}": "store"}, features={"bytes.far": 8.0 + i}), timed(f"d{i}", 1 + i / 8)]
    table = tmp_path / "measured.jsonl"
    table.write_text("".join(json.dumps({**line, "features": line.get("features", {}) | {"bytes.far": 8.0}}
                                        if line.get("digest") == "d0" and "request" in line else line) + "\n"
                             for line in lines))  # fmt: skip
    out = tmp_path / "own.json"
    assert learn_cost.main([str(tmp_path), "--out", str(out)]) == 0
    assert "11 plans of 1 graphs" in capsys.readouterr().out
    assert load_weights(out).card == {"environment": "here", "plans": {"p": 11}}
    assert learn_cost.main([str(table), "--out", str(out), "--without", "p"]) == 1
