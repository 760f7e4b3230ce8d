"""The rules of tiling: the contest's worked examples to the last digit, cases by hand, two evaluators that agree."""

import json
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_data import check_data
from random_schedules import READINGS, changed_at_random, grouping_of, workload_of_seed

from graphopt.contests.tiling.footprint import TileFootprint, footprint
from graphopt.contests.tiling.pricing_tiles import judge, latency
from graphopt.contests.tiling.referee import NotValid, objections, referee_latencies
from graphopt.contests.tiling.tile_latency import best_tile, grid_latency, working_set
from graphopt.contests.tiling.tile_workload import (
    SharedSlices,
    TileSchedule,
    TileStep,
    TileWorkload,
    decode,
    encode,
    snake,
)
from graphopt.contests.tiling.workload_files import (
    read_schedule,
    read_workload,
    schedule_json,
    schedule_of_json,
    workload_json,
    workload_of_json,
    write_json,
)
from graphopt.core.errors import Unreadable
from graphopt.core.graph import GraphError

CHAIN = {  # a product and an activation, as JSON
    "widths": [64, 32, 32, 32], "heights": [16, 64, 16, 16], "inputs": [[0, 1], [2]], "outputs": [[2], [3]],
    "base_costs": [100, 10], "op_types": ["MatMul", "Pointwise"], "fast_memory_capacity": 5000,
    "slow_memory_bandwidth": 10, "native_granularity": [32, 32],
}  # fmt: skip


def worked_examples() -> list[tuple[TileWorkload, TileSchedule, tuple[float, ...]]]:
    """(problem, strategy, its latencies) as the contest's text prints them."""
    found: list[tuple[TileWorkload, TileSchedule, tuple[float, ...]]] = []
    for part in re.split(r"### Example \d", check_data("tiling/PROBLEM.md").read_text())[1:]:
        workload = None
        for block in re.findall(r"```json\n(.*?)```", part, re.DOTALL):
            value = None if block.strip() == "NA" else json.loads(re.sub(r"//.*", "", block))
            if value is not None and "widths" in value:
                workload = workload_of_json(value, "example")
            elif value is not None and workload is not None:
                found.append((workload, *schedule_of_json(value, "example")))
    return found


@pytest.mark.parametrize("reading", READINGS)
def test_the_worked_examples_to_the_last_digit(reading: SharedSlices) -> None:
    """They allow both readings of shared slices."""
    examples = worked_examples()
    assert len(examples) == 11
    for read, schedule, printed in examples:
        workload = replace(read, shared_slices=reading)
        assert judge(workload, schedule).latencies == printed
        assert tuple(referee_latencies(workload, schedule)) == printed


def test_the_worked_example_that_does_not_fit() -> None:
    """Example 5, strategy A, counted as its strategy B is: both inputs of the first product as a whole, the second's,
    and the result, 4 x 128 x 128 elements in a fast memory of 45,000."""
    workload, schedule, _ = worked_examples()[-1]
    whole = TileSchedule((replace(schedule.steps[0], tile=(128, 128, 128)),))
    verdict = judge(workload, whole)
    assert verdict.wrong == "subgraph 0: its working set is 20536 elements over the capacity of 45000"
    assert verdict.cost == math.inf and verdict.excess == pytest.approx(20536 / 45000)
    assert "do not fit" in objections(workload, whole, 0.0)[0]


def small() -> TileWorkload:
    return workload_of_json(CHAIN, "chain")


def test_a_product_by_hand() -> None:
    """Tiles of 16 x 16, K = 64 in four steps: a step moves 2 x 16 x 16 elements in 51.2; computing takes 25. The last
    one of a tile writes 256 more."""
    step = TileStep((0,), (16, 16, 16))
    tile = 3 * max(51.2, 25) + max(51.2 + 25.6, 25)
    pointwise = max(10.0, 2 * 25.6)
    schedule = TileSchedule((step, TileStep((1,), (16, 16, 1))))
    assert judge(small(), schedule).latencies == pytest.approx((2 * tile, 2 * pointwise))
    # the whole depth at once: the left operand stays for the second tile of the row
    fused = TileSchedule((TileStep((0, 1), (16, 16, 64)),))
    assert judge(small(), fused).latencies == pytest.approx((max(110, 204.8 + 25.6) + max(110, 102.4 + 25.6),))


@pytest.mark.parametrize(("schedule", "wrong"), [
    ([([0], 16, [])], "op 1 runs in no subgraph"),
    ([([1], 16, []), ([0], 16, [])], "neither in slow memory nor was it retained"),
    ([([1, 0], 64, [])], "op 1 stands before"),
    ([([0, 0], 16, []), ([1], 1, [])], "an op twice"),
    ([([0, 1], 64, [2])], "passes by"),
    ([([0], 16, []), ([1], 1, [3])], "an output of the graph"),
    ([([0], 16, [0]), ([1], 1, [])], "is not made there"),
    ([([0], 0, []), ([1], 1, [])], "at least 1"),
    ([([0], 16, [9]), ([1], 1, [])], "retains tensors that are not there"),
    ([([0], 16, []), ([7], 1, [])], "names ops beyond 1"),
])  # fmt: skip
def test_what_breaks_a_rule_is_said(schedule: Any, wrong: str) -> None:
    steps = TileSchedule(tuple(TileStep(tuple(ops), (16, 16, depth), tuple(keeps)) for ops, depth, keeps in schedule))
    assert wrong in judge(small(), steps).wrong
    with pytest.raises(NotValid):
        referee_latencies(small(), steps)


def test_a_pointwise_operand_is_read_in_whole_depth() -> None:
    data = CHAIN | {"inputs": [[0], [2, 1]], "outputs": [[2], [3]], "op_types": ["Pointwise", "MatMul"],
                    "widths": [64, 32, 64, 32], "heights": [16, 64, 16, 16]}  # fmt: skip
    workload = workload_of_json(data, "fed")
    assert "whole depth" in judge(workload, TileSchedule((TileStep((0, 1), (16, 16, 32)),))).wrong
    assert judge(workload, TileSchedule((TileStep((0, 1), (16, 16, 64)),))).cost == pytest.approx(
        max(110, (256 + 16 * 64 + 256) / 10) * 2
    )


def test_a_product_of_a_matrix_with_itself_loads_it_twice() -> None:
    """As rows and as columns, even where one tile is all of it: 2 x 256 in, 256 out."""
    square = {"widths": [16, 16], "heights": [16, 16], "inputs": [[0, 0]], "outputs": [[1]], "base_costs": [1],
              "op_types": ["MatMul"]}  # fmt: skip
    schedule = TileSchedule((TileStep((0,), (16, 16, 16)),))
    assert judge(workload_of_json(CHAIN | square, "square"), schedule).latencies == (76.8,)
    assert referee_latencies(workload_of_json(CHAIN | square, "square"), schedule) == [76.8]


@pytest.mark.parametrize("reading", READINGS)
def test_a_published_cost_is_that_of_a_schedule_under_both_readings(reading: SharedSlices) -> None:
    """The first op alone, and four ops with three operands of two tensors in tiles of half the native height."""
    workload = replace(read_workload(check_data("tiling/mlsys-2026-2.json")), shared_slices=reading)
    schedule = TileSchedule((TileStep((0,), (128, 128, 1)), TileStep((1, 2, 3, 4), (128, 64, 1))))
    cost = judge(workload, schedule).cost
    assert round(cost) == json.loads(check_data("tiling/known.json").read_text())["mlsys-2026-2"]["published_cost"]
    assert objections(workload, schedule, cost) == []


SHARING: dict[str, tuple[dict[str, Any], TileStep, int, int]] = {  # problem, step, elements once, per operand
    "tiles": ({"inputs": [[0], [0, 1]], "outputs": [[2], [3]], "op_types": ["Pointwise", "Pointwise"],
               "widths": [32] * 4, "heights": [32] * 4}, TileStep((0, 1), (32, 16, 1)), 4 * 512, 5 * 512),
    "one op": ({"inputs": [[0, 0]], "outputs": [[1]], "op_types": ["Pointwise"], "base_costs": [1],
                "widths": [32] * 2, "heights": [32] * 2}, TileStep((0,), (32, 16, 1)), 2 * 512, 3 * 512),
    "rows": ({"inputs": [[0, 1], [0, 2]], "outputs": [[3], [4]], "op_types": ["MatMul", "MatMul"],
              "widths": [64, 32, 32, 32, 32], "heights": [16, 64, 64, 16, 16]}, TileStep((0, 1), (8, 16, 64)),
             16 * 64 + 2 * 8 * 64 + 2 * 128, 2 * 16 * 64 + 2 * 8 * 64 + 2 * 128),
    "columns": ({"inputs": [[0, 2], [1, 2]], "outputs": [[3], [4]], "op_types": ["MatMul", "MatMul"],
                 "widths": [64, 64, 32, 32, 32], "heights": [16, 16, 64, 16, 16]}, TileStep((0, 1), (32, 4, 64)),
                2 * 4 * 64 + 32 * 64 + 2 * 128, 2 * 4 * 64 + 2 * 32 * 64 + 2 * 128),
    "two cuts": ({"inputs": [[0, 1], [0]], "outputs": [[2], [3]], "op_types": ["MatMul", "Pointwise"],
                  "widths": [32] * 4, "heights": [16, 32, 16, 16]}, TileStep((0, 1), (32, 16, 32)),
                 3 * 512 + 1024 + 512, 3 * 512 + 1024 + 512),
}  # fmt: skip


@pytest.mark.parametrize("sharing", SHARING)
def test_room_of_shared_slices_by_hand(sharing: str) -> None:
    """A tensor that two operands read in one cut: fast memory that holds it once is enough by one reading, and one
    element short by the other. A tensor in two cuts takes room for both. Time is the same under both."""
    data, step, once, per_operand = SHARING[sharing]
    schedule, latencies = TileSchedule((step,)), []
    needs: dict[SharedSlices, int] = {"once": once, "per_operand": per_operand}
    for reading, elements in needs.items():
        fits, short = (replace(workload_of_json(CHAIN | data | {"fast_memory_capacity": room}, sharing),
                               shared_slices=reading) for room in (elements, elements - 1))  # fmt: skip
        latencies += [judge(fits, schedule).latencies, tuple(referee_latencies(fits, schedule))]
        assert judge(short, schedule).wrong.startswith("subgraph 0: its working set is 1 elements over")
        with pytest.raises(NotValid, match=f"{elements} elements do not fit into {elements - 1}"):
            referee_latencies(short, schedule)
    assert latencies[0] and latencies == latencies[:1] * 4


@pytest.mark.parametrize("seed", range(40))
def test_two_evaluators_agree(seed: int) -> None:
    """On what a search makes, on its price, and on what is wrong with schedules that were changed at random."""
    workload = workload_of_seed(seed, 4 + seed % 12, READINGS[seed % 2])
    grouping = grouping_of(workload, seed, 30)
    schedule = grouping.schedule()
    assert judge(workload, schedule).cost == pytest.approx(grouping.cost, rel=1e-9)
    rng = np.random.default_rng(seed)
    for tried in [schedule, *(changed_at_random(rng, workload, schedule) for _ in range(12))]:
        verdict = judge(workload, tried)
        if verdict.wrong:
            with pytest.raises(NotValid):
                referee_latencies(workload, tried)
        else:
            assert referee_latencies(workload, tried) == pytest.approx(verdict.latencies, rel=1e-12)
            assert objections(workload, tried, verdict.cost) == []
            assert objections(workload, tried, verdict.cost * 1.0001)


@pytest.mark.parametrize("seed", range(6))
def test_the_closed_form_is_the_sum_over_tiles(seed: int) -> None:
    workload = workload_of_seed(seed, 6)
    for op in range(workload.num_ops):
        foot = footprint(workload, [op])
        assert isinstance(foot, TileFootprint)
        for width, height, by_columns in product((50, 128), (31, 100), (False, True)):
            columns, rows = -(-foot.width // width), -(-foot.height // height)
            depth = max(1, foot.depth // 3) if foot.may_split and foot.depth else max(foot.depth, 1)
            step = TileStep((op,), (width, height, depth), (), snake(columns, rows, by_columns=by_columns))
            exact = float(latency(workload, foot, step))
            assert grid_latency(foot, workload.bandwidth, width, height, depth, by_columns) == pytest.approx(exact)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_tile_is_the_best_of_all(seed: int) -> None:
    """Against every side, every depth and both walks, on tiny native tiles."""
    workload = replace(workload_of_seed(seed, 3), native=(12, 12), capacity=900.0)
    for op in range(workload.num_ops):
        foot = footprint(workload, [op])
        assert isinstance(foot, TileFootprint)
        foot = foot._replace(width=foot.width // 8, height=foot.height // 8, depth=foot.depth // 8)
        found = best_tile(foot, workload.capacity, workload.bandwidth, workload.native, every_side=True)
        depths = range(1, foot.depth + 1) if foot.depth else (1,)
        every = min(
            grid_latency(foot, workload.bandwidth, width, height, depth, by_columns)
            for width, height, depth in product(range(1, 13), range(1, 13), depths)
            if working_set(foot, width, height, depth) <= workload.capacity and (foot.may_split or depth == foot.depth)
            for by_columns in (False, True)
        )
        assert every <= found.latency <= every * 1.02  # steps of unequal depth may do a little better


def test_files_come_back(tmp_path: Path) -> None:
    workload = workload_of_seed(3, 9)
    schedule = grouping_of(workload, 1, 30).schedule()
    latencies = judge(workload, schedule).latencies
    write_json(tmp_path / "problem.json", workload_json(workload))
    write_json(tmp_path / "solution.json", schedule_json(schedule, latencies))
    again = read_workload(tmp_path / "problem.json")
    assert workload_json(again) == workload_json(workload)
    assert read_schedule(tmp_path / "solution.json") == (schedule, latencies)
    assert decode(encode(schedule)) == schedule
    with pytest.raises(Unreadable, match="ends too early"):
        decode(encode(schedule)[:-1])
    with pytest.raises(Unreadable, match="after its end"):
        decode(np.append(encode(schedule), 1))


BAD = {
    "widths": ([64, 32, 32], "width and a height"),
    "inputs": ([[0, 1], [9]], "op 1 names tensor 9 of 4"),
    "outputs": ([[2], [2]], "tensor 2 is made by two ops"),
    "op_types": (["MatMul", "Conv"], "no op type 'Conv'"),
    "base_costs": ([100, "ten"], "'ten', which is no finite number"),
    "fast_memory_capacity": (0, "must be positive"),
    "native_granularity": ([32], "no pair"),
    "heights": ([16, 63, 16, 16], "cannot make 32x16 of 64x16 and 32x63"),
}


@pytest.mark.parametrize("key", BAD)
def test_a_bad_problem_is_one_sentence(key: str) -> None:
    value, sentence = BAD[key]
    with pytest.raises(GraphError, match=sentence):
        workload_of_json(CHAIN | {key: value}, "bad")
    with pytest.raises(GraphError, match=f"it has no {key}"):
        workload_of_json({name: said for name, said in CHAIN.items() if name != key}, "bad")


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    ring = {**CHAIN, "inputs": [[3], [2]], "op_types": ["Pointwise", "Pointwise"], "widths": [64, 32, 32, 32]}
    with pytest.raises(GraphError, match="ops form a cycle, op 0 waits"):
        workload_of_json(ring, "ring")
    (tmp_path / "cut.json").write_text(json.dumps(CHAIN)[:40])
    with pytest.raises(GraphError, match=r"cut\.json is no JSON"):
        read_workload(tmp_path / "cut.json")


def test_a_bad_solution_is_one_sentence() -> None:
    good = schedule_json(TileSchedule((TileStep((0, 1), (16, 16, 64)),)), (1.0,))
    for key, value, sentence in (
        ("granularities", [[16, 16]], "needs width, height and depth"), ("subgraphs", [], "differ in length"),
        ("subgraph_latencies", ["x"], "no finite number"), ("tensors_to_retain", [[1.5]], "no whole number"),
        ("traversal_orders", [None, None], "differ in length"),
    ):  # fmt: skip
        with pytest.raises(Unreadable, match=sentence):
            schedule_of_json(good | {key: value}, "bad")
    with pytest.raises(Unreadable, match="it has no subgraphs"):
        schedule_of_json({}, "bad")
