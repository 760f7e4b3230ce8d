"""Measured plans out of a table, and scores of how they are ranked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from graphopt.hardware.measure.price_table import PriceTable
from graphopt.hardware.requests import CompilerRequest
from graphopt.report.calibration import agreement, distinct, measured_again, measured_graphs, needed, spearman

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
    assert [plan.digest for plan in distinct(found["p"])] == ["d1"]


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
