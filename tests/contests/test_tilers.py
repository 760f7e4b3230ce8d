"""Searches for tiled schedules: brute force on tiny problems, valid on all, and the contest's published costs."""

import json
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_data import check_data
from random_schedules import READINGS, grouping_of, workload_of_seed

from graphopt.contests.tiling.pricing_tiles import judge
from graphopt.contests.tiling.search.groupings import Wiring, apart, changed, in_order, run_again
from graphopt.contests.tiling.search.tile_walk import contest_seconds
from graphopt.contests.tiling.tile_latency import TileCosts, bits
from graphopt.contests.tiling.tile_workload import SharedSlices, TileSchedule, TileWorkload
from graphopt.contests.tiling.tiling_contest import random_workload
from graphopt.contests.tiling.workload_files import (
    graph_of_workload,
    read_workload,
    workload_json,
    workload_of,
    write_json,
)
from graphopt.core.errors import Unsolved
from graphopt.core.utils.registry import option
from graphopt.problems.optimizer import solve
from graphopt.report import tile
from graphopt.run.config.construct import construct


@cache
def parts(reading: SharedSlices) -> tuple[Any, Any]:
    machine = construct(option("machine", "cpu_core"), "machine")
    task = construct(option("task", "tiling") | {"shared_slices": reading}, "task", {"machine": machine})
    return task, construct(option("cost", "tile_time"), "cost", {"machine": machine, "task": task})


def solved(algo: str, workload: TileWorkload, evals: int = 10**6, **changes: Any) -> Any:
    task, cost = parts(workload.shared_slices)
    tiler: Any = construct(option("algo", algo) | changes, "algo")
    return solve(tiler, graph_of_workload(workload), task, cost, evals=evals)[0]


def brute_force(workload: TileWorkload, steps: int) -> float:
    """The least cost of all sequences of so many subgraphs, each with any of its results retained: cheapest
    first, until one is valid."""
    costs = TileCosts(workload, every_side=True)
    options = []
    for ops in range(1, 1 << workload.num_ops):
        made = [workload.output[op] for op in bits(ops)]
        kept = [frozenset(some) for size in range(len(made) + 1) for some in combinations(made, size)]
        options += [(ops, some) for some in kept]
    found = []
    for length in range(1, steps + 1):
        for sequence in product(options, repeat=length):
            resident: frozenset[int] = frozenset()
            total = 0.0
            for ops, kept_now in sequence:
                total += costs.best(ops, resident, kept_now).latency
                resident = kept_now
            if total < float("inf"):
                found.append((total, sequence))
    for total, sequence in sorted(found, key=lambda pair: pair[0]):
        residents = [frozenset[int](), *(kept_now for _, kept_now in sequence)]
        schedule = TileSchedule(
            tuple(costs.step(ops, there, keeps) for (ops, keeps), there in zip(sequence, residents))
        )
        if not judge(workload, schedule).wrong:
            return total
    raise AssertionError("nothing is valid")


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("seed", range(6))
def test_the_exact_search_is_brute_force(seed: int, reading: SharedSlices) -> None:
    workload = workload_of_seed(100 + seed, 3, reading)
    problem = solved("tile_exact", workload)
    assert problem.best_cost == pytest.approx(brute_force(workload, 3), rel=1e-9)
    assert problem.bound == pytest.approx(problem.best_cost)


@pytest.mark.parametrize("seed", range(4))
def test_searches_come_near_the_optimum(seed: int) -> None:
    """The walk reaches it on most; no method is below it, and all are valid."""
    workload = workload_of_seed(seed, 6, READINGS[seed % 2])
    best = solved("tile_exact", workload).best_cost
    for algo, changes in (("tile_merge", {}), ("tile_walk", {"seconds": 0.5})):
        problem = solved(algo, workload, **changes)
        assert problem.solution().violations() == []
        assert best * (1 - 1e-9) <= problem.best_cost <= problem.initial_cost
    assert problem.best_cost <= best * 1.02


def test_the_exact_search_refuses_what_is_too_large() -> None:
    with pytest.raises(Unsolved, match="at most 8 ops, this one has 12: take algo=tile_walk"):
        solved("tile_exact", workload_of_seed(1, 12))


@pytest.mark.parametrize("seed", range(5))
def test_a_grouping_costs_what_its_groups_cost(seed: int) -> None:
    """After random moves; its order respects links, every op runs, and fused ops run where they are read."""
    workload = workload_of_seed(seed, 14, READINGS[seed % 2])
    now = grouping_of(workload, seed, 120)
    assert now.cost == pytest.approx(sum(now.wiring.cost(group) for group in now.groups.values()), rel=1e-9)
    order = in_order(now.groups, now.links)
    assert order is not None and {*order} == {*now.groups}
    assert all(order[order.index(a) + 1] == b for a, b in now.links.items())
    stored = sum(group.stored for group in now.groups.values())
    assert stored | now.fused == (1 << workload.num_ops) - 1 and not stored & now.fused
    for group in now.groups.values():
        inside = [now.wiring.before[op] & (now.fused | now.again.get(op, 0)) for op in bits(group.ops)]
        assert all(ops & ~group.ops == 0 for ops in inside)


def test_groups_that_wait_for_each_other_are_refused() -> None:
    """a -> b -> c, and a and c in one group, b in another."""
    workload = TileWorkload(
        name="line", widths=(32,) * 4, heights=(32,) * 4, inputs=((0,), (1,), (2,)), output=(1, 2, 3),
        base_costs=(1, 1, 1), is_matmul=(False,) * 3, capacity=10**6, bandwidth=1, native=(32, 32),
    )  # fmt: skip
    now = apart(Wiring(TileCosts(workload)))
    assert changed(now, [0, 2], [0b101], 0) is None
    fused = changed(now, [0, 1], [0b10], 0b1)
    assert fused is not None and fused.cost < now.cost


def test_an_op_can_be_stored_for_one_reader_and_run_again_for_another() -> None:
    """a -> b and a -> c, all cheap: b runs beside a copy of a, c reads what a group of its own has stored."""
    workload = TileWorkload(
        name="fork", widths=(64,) * 4, heights=(64,) * 4, inputs=((0,), (1,), (1,)), output=(1, 2, 3),
        base_costs=(1, 1, 1), is_matmul=(False,) * 3, capacity=10**6, bandwidth=1, native=(64, 64),
    )  # fmt: skip
    now = apart(Wiring(TileCosts(workload)))
    copied = run_again(now, 0, now.group_of(1), also=True)
    assert copied is not None and run_again(copied, 0, copied.group_of(1), also=True) is None
    assert copied.groups[copied.group_of(1)].ops == 0b11 and copied.groups[copied.group_of(2)].needs == 0b1
    assert judge(workload, copied.schedule()).cost == pytest.approx(copied.cost)
    assert sum(0 in step.ops for step in copied.schedule().steps) == 2
    back = run_again(copied, 0, copied.group_of(1), also=False)
    assert back is not None and back.cost == pytest.approx(now.cost) and not back.groups[back.group_of(1)].ops & 0b1


@pytest.mark.parametrize(("reading", "cost", "steps"), [("once", 26000.0, 1), ("per_operand", 31107.2, 2)])
def test_two_readings_have_two_optima(reading: SharedSlices, cost: float, steps: int) -> None:
    """Of a graph of the contest: all five ops fused read two tensors in three operands, and the result fits beside
    two slices of 128 x 128 elements, not beside three."""
    workload = replace(read_workload(check_data("tiling/mlsys-2026-2.json")), shared_slices=reading)
    problem = solved("tile_exact", workload)
    assert problem.best_cost == problem.bound == pytest.approx(cost) and len(problem.best.steps) == steps
    assert problem.solution().violations() == []
    assert solved("tile_walk", workload, seconds=1.0).best_cost == pytest.approx(cost)


def test_contest_seconds_by_ops() -> None:
    """Those of the contest's graphs."""
    for name, known in json.loads(check_data("tiling/known.json").read_text()).items():
        workload = read_workload(check_data(f"tiling/{name}.json"))
        assert contest_seconds(workload.num_ops) == known["seconds"]


@pytest.mark.parametrize("name", ["mlsys-2026-1", "mlsys-2026-4", "mlsys-2026-5", "mlsys-2026-7"])
def test_published_costs_are_reached(name: str) -> None:
    workload = read_workload(check_data(f"tiling/{name}.json"))
    published = json.loads(check_data("tiling/known.json").read_text())[name]["published_cost"]
    problem = solved("tile_walk", workload, seconds=1.5)
    assert problem.best_cost < published and problem.solution().violations() == []


def test_graphs_carry_their_workload() -> None:
    workload = workload_of_seed(5, 12)
    graph = graph_of_workload(workload)
    assert workload_of(graph, "once") is workload
    strict = workload_of(graph, "per_operand")
    assert strict.shared_slices == "per_operand" and workload_of(graph, "once").shared_slices == "once"
    assert workload_json(strict) == workload_json(workload) and graph_of_workload(strict).hash == graph.hash
    assert graph.num_ops == 12 and graph.num_tensors == workload.num_tensors
    other = random_workload(np.random.default_rng(5), 12, (96, 128, 200, 256), 0.5, "again")
    assert workload_json(other) == workload_json(workload) and graph_of_workload(other).hash == graph.hash


def test_the_command_solves_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, solution = tmp_path / "problem.json", tmp_path / "solution.json"
    write_json(problem, workload_json(workload_of_seed(2, 8)))
    assert tile.main([str(problem), str(solution), "--seconds", "0.5"]) == 0
    assert "in" in capsys.readouterr().out and tile.main([str(problem), str(solution), "--check"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["valid"] and said["cost"] == pytest.approx(sum(said["latencies"]))
    forged = json.loads(solution.read_text())
    forged["subgraph_latencies"][0] *= 0.99
    solution.write_text(json.dumps(forged))
    assert tile.main([str(problem), str(solution), "--check"]) == 1
    assert "it claims" in json.loads(capsys.readouterr().out)["wrong"]
    with pytest.raises(SystemExit):
        tile.main([str(problem), str(solution), "--seconds", "0"])


def test_the_command_takes_a_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """x + x, whose sides fill fast memory together with the result: one tile, or two that are half as high."""
    workload = TileWorkload(
        name="twice", widths=(32, 32), heights=(32, 32), inputs=((0, 0),), output=(1,), base_costs=(1000,),
        is_matmul=(False,), capacity=2 * 1024, bandwidth=10, native=(32, 32),
    )  # fmt: skip
    problem, solution = tmp_path / "problem.json", tmp_path / "solution.json"
    write_json(problem, workload_json(workload))
    strict, costs = ["--shared-slices", "per_operand"], []
    for reading in ([], strict):
        assert tile.main([str(problem), str(solution), "--seconds", "0.5", *reading]) == 0
        capsys.readouterr()
        for judged_by in ([], strict):
            fits = tile.main([str(problem), str(solution), "--check", *judged_by]) == 0
            costs.append(json.loads(capsys.readouterr().out)["cost"] if fits else None)
    assert costs == [1000.0, None, 2000.0, 2000.0]
