"""Random tiling problems and random schedules of them, valid ones and such as break a rule."""

from dataclasses import replace

import numpy as np

from graphopt.contests.tiling.search.groupings import Grouping, Wiring, apart
from graphopt.contests.tiling.search.tile_walk import Draw, moved
from graphopt.contests.tiling.tile_latency import TileCosts
from graphopt.contests.tiling.tile_workload import SharedSlices, TileSchedule, TileStep, TileWorkload
from graphopt.contests.tiling.tiling_contest import random_workload

SIDES = (96, 128, 200, 256)  # some are no multiples of the native side


READINGS: tuple[SharedSlices, ...] = ("once", "per_operand")


def workload_of_seed(seed: int, ops: int, shared_slices: SharedSlices = "once") -> TileWorkload:
    workload = random_workload(np.random.default_rng(seed), ops, SIDES, 0.5, f"random{seed}")
    return replace(workload, shared_slices=shared_slices)


def grouping_of(workload: TileWorkload, seed: int, moves: int) -> Grouping:
    """Where random moves lead that are all taken."""
    draw, now = Draw(np.random.default_rng(seed)), apart(Wiring(TileCosts(workload)))
    for _ in range(moves):
        now = moved(now, draw) or now
    return now


def changed_at_random(rng: np.random.Generator, workload: TileWorkload, schedule: TileSchedule) -> TileSchedule:
    """One step has another tile, order, list of ops or of retained tensors; what comes out may be invalid."""
    place = int(rng.integers(len(schedule.steps)))
    step = schedule.steps[place]
    kind = int(rng.integers(6))
    if kind == 0:
        width, height, depth = (int(rng.choice([16, 31, 64, 100, 128, 200])) for _ in range(3))
        step = replace(step, tile=(width, height, depth), order=None)
    elif kind == 1:
        step = replace(step, retain=(*step.retain, int(rng.integers(workload.num_tensors))))
    elif kind == 2:
        step = replace(step, ops=(*step.ops, int(rng.integers(workload.num_ops))), order=None)
    elif kind == 3:
        step = replace(step, ops=step.ops[:-1] or step.ops, order=None)
    elif kind == 4:
        step = replace(step, order=None if step.order is None else tuple(rng.permutation(step.order).tolist()))
    else:
        step = replace(step, retain=step.retain[:-1])
    steps: list[TileStep] = [*schedule.steps]
    steps[place] = step
    if rng.random() < 0.1:
        steps = steps[::-1]
    return TileSchedule(tuple(steps))
