"""Moves that are listed before they are priced: what they can gain at most, what is listed, and how they are drawn."""

from typing import Any, Literal

import numpy as np
import pytest
from random_schedules import READINGS, workload_of_seed

from graphopt.config.construct import construct
from graphopt.datasets.contests.tiling_drawn import drawn_workload
from graphopt.search.tiling.groupings import Grouping, Wiring, apart
from graphopt.search.tiling.move_columns import COLUMNS, KINDS
from graphopt.search.tiling.move_table import EVEN, POTENTIAL, SAVED, MoveTable
from graphopt.search.tiling.ordered_descent import MoveOrder, descended, made
from graphopt.search.tiling.tile_moves import Draw, propose
from graphopt.tiling.footprint import TileFootprint, footprint
from graphopt.tiling.tile_costs import TileCosts, bits
from graphopt.tiling.tile_latency import working_set
from graphopt.tiling.tile_workload import SharedSlices, TileWorkload
from graphopt.tiling.workload_graph import graph_of_workload
from graphopt.utils.registry import option
from graphopt.utils.share_network import ShareNetwork

SIZES = (128, 256, 512)


def walk(workload: TileWorkload, seed: int, moves: int) -> list[Grouping]:
    """Groupings one after the other."""
    draw, found = Draw(np.random.default_rng(seed)), [apart(Wiring(TileCosts(workload)))]
    for _ in range(moves):
        found.append(propose(found[-1], draw) or found[-1])
    return found


def open_problem(workload: TileWorkload) -> Any:
    machine: Any = construct(option("machine", "cpu_core"), "machine")
    task: Any = construct(option("task", "tiling"), "task", {"machine": machine})
    cost: Any = construct(option("cost", "tile_time"), "cost", {"machine": machine, "task": task})
    return task.open(graph_of_workload(workload), cost, evals=10**6)


def network(kind: str) -> ShareNetwork:
    """One that expects something only of moves of a kind."""
    first = np.zeros((len(COLUMNS), 1))
    first[COLUMNS.index(kind), 0] = 1.0
    return ShareNetwork(first, np.zeros(1), np.array([60.0]), -40.0)


@pytest.mark.parametrize("seed", range(4))
def test_no_move_gains_more_than_its_potential_unless_tensors_are_kept(seed: int) -> None:
    """Absorbing may change groups beside the two, which are not looked at."""
    gains = []
    for now in walk(drawn_workload(np.random.default_rng(seed), 14, SIZES, "drawn"), seed, 60)[::6]:
        table = MoveTable(now.wiring, POTENTIAL, 1.0, 0.5)
        table.enter(now)
        for number in range(table.count):
            move = table.move(number)
            found = made(now, move)
            if found is not None and not now.links and not found.links and KINDS[move.kind] != "absorb":
                score = float(table._known.score[table._moves.place[number]])
                gains.append((now.cost - found.cost, score))
    assert all(gain <= most + 1e-6 * abs(most) + 1e-6 for gain, most in gains)
    assert len(gains) > 20


@pytest.mark.parametrize("reading", READINGS)
def test_room_of_a_set_of_ops_is_the_working_set_of_its_native_tile(reading: SharedSlices) -> None:
    """Of groups without a chain of products and without ops that are stored and run again."""
    checked = shared = 0
    for seed in range(6):
        workload = workload_of_seed(seed, 16, reading)
        for now in walk(workload, seed, 60)[::6]:
            table = MoveTable(now.wiring, EVEN, 1.0, 0.5)
            table.enter(now)
            for number, group in now.groups.items():
                foot = footprint(workload, [*bits(group.ops)])
                assert isinstance(foot, TileFootprint)
                again = now.wiring.group(group.stored, now.fused).ops != group.ops
                if not again and not foot.row_fixed + foot.column_fixed + foot.streamed:
                    tile = min(foot.width, workload.native[0]), min(foot.height, workload.native[1])
                    found = table._slots.needs[table._place[number]]
                    assert found == pytest.approx(working_set(foot, *tile, foot.depth) / workload.capacity)
                    checked += 1
                    own = {workload.output[op] for op in bits(group.ops)}
                    read = [t for op in bits(group.ops) for t in workload.inputs[op] if t not in own]
                    shared += len({*read}) < len(read)
    assert checked > 100 and shared > 10


@pytest.mark.parametrize("seed", range(3))
def test_moves_are_the_same_after_many_changes_as_from_the_start(seed: int) -> None:
    path = walk(workload_of_seed(seed, 16), seed, 80)
    table = MoveTable(path[0].wiring, SAVED, 1.0, 0.5)
    for now in path:
        table.enter(now)
    fresh = MoveTable(path[0].wiring, SAVED, 1.0, 0.5)
    fresh.enter(path[-1])

    def listed(of: MoveTable) -> list[tuple[int, int, int]]:
        moves = [of.move(number) for number in range(of.count)]
        return sorted((m.kind, -1 if KINDS[m.kind] in ("absorb", "merge") else m.op, m.other) for m in moves)

    pairs = ("absorb", "merge")
    alone = [move for move in listed(table) if KINDS[move[0]] not in pairs]
    assert alone == [move for move in listed(fresh) if KINDS[move[0]] not in pairs]
    assert table.count == fresh.count and table.total == pytest.approx(fresh.total)


def test_every_kind_of_move_is_listed_and_can_be_made() -> None:
    seen = set[str]()
    for seed in range(6):
        for now in walk(workload_of_seed(seed, 16), seed, 40)[::8]:
            table = MoveTable(now.wiring, EVEN, 1.0, 0.5)
            table.enter(now)
            moves = [table.move(number) for number in range(table.count)]
            seen |= {KINDS[move.kind] for move in moves if made(now, move) is not None}
    assert seen == {*KINDS}


@pytest.mark.parametrize("kind", ["fuse", "merge"])
def test_a_network_decides_what_is_drawn(kind: str) -> None:
    now = apart(Wiring(TileCosts(workload_of_seed(3, 20))))
    table = MoveTable(now.wiring, POTENTIAL, 1.0, 0.5, network(kind))
    table.enter(now)
    drawn = [KINDS[table.drawn((i + 0.5) / 50).kind] for i in range(50)]
    assert drawn.count(kind) > 45


def test_what_was_refused_is_drawn_less_until_something_around_it_changes() -> None:
    path = walk(workload_of_seed(3, 20), 1, 20)
    table = MoveTable(path[0].wiring, EVEN, 1.0, 0.5)
    table.enter(path[0])
    before = table.total
    for number in range(5):
        table.refuse(table.move(number))
    assert table.total == pytest.approx(before - 2.5)
    table.enter(path[0])
    assert table.total == pytest.approx(before - 2.5)
    table.enter(next(found for found in path if found.cost != path[0].cost))
    assert table.total > table.count - 2.5


@pytest.mark.parametrize("by", ["even", "saved", "potential"])
def test_a_descent_ends_where_no_listed_move_gains(by: Literal["even", "saved", "potential"]) -> None:
    workload = workload_of_seed(4, 12)
    problem = open_problem(workload)
    order = MoveOrder(by=by, power=1.0, patience=1000.0)
    end = descended(problem, apart(Wiring(TileCosts(workload))), order, Draw(problem.rng), 60.0)
    table = MoveTable(end.wiring, EVEN, 1.0, 0.5)
    table.enter(end)
    near = [made(end, table.move(number)) for number in range(table.count)]
    assert all(found is None or found.cost >= end.cost - 1e-6 for found in near)
    assert problem.best_cost == pytest.approx(end.cost) and end.cost < problem.initial_cost


def test_drawn_problems_are_as_large_as_said_and_differ() -> None:
    made_ = [drawn_workload(np.random.default_rng(seed), 8 + seed, SIZES, "drawn") for seed in range(20)]
    assert [workload.num_ops for workload in made_] == [8 + seed for seed in range(20)]
    assert len({sum(workload.is_matmul) for workload in made_}) > 5
    assert any(len({workload.shape(tensor) for tensor in workload.output}) > 1 for workload in made_)
