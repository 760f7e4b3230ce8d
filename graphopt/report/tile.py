"""Solves a tiling problem of the contest's format, or prices a solution of one.

`graphopt board tile PROBLEM.json SOLUTION.json` searches for as long as the contest gave for so many ops, or
`--seconds`, counted from the start of the command. It writes the schedule with the latency of every step. `--check`
reads the solution instead and prices it by both evaluators. `--shared-slices per_operand` takes the stricter reading of
the capacity of fast memory. docs/contests.md has the rules.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphopt.core.errors import writing
from graphopt.core.utils.marks import seconds, whole
from graphopt.core.utils.plain_json import dumps
from graphopt.core.utils.terminal import say

BEGAN = time.monotonic()
SHARE = 0.9  # of the seconds, that is used
LEAST, ENDING = 0.3, 0.4  # seconds of a search that starts late, and of the end
SAME = 1e-6  # relative: latencies that a file claims


def solve_file(problem: Path, solution: Path, seconds: float | None, seed: int, shared_slices: str | None) -> None:
    """Writes a solution. Raises UserError or GraphError."""
    from graphopt.contests.tiling.pricing_tiles import judge
    from graphopt.contests.tiling.search.tile_walk import contest_seconds
    from graphopt.contests.tiling.workload_files import graph_of_workload, read_workload, schedule_json, write_json
    from graphopt.core.utils.registry import option
    from graphopt.problems.optimizer import solve
    from graphopt.run.config.construct import construct

    task, graph = _task(shared_slices), graph_of_workload(read_workload(problem))
    workload = task.workload(graph)
    cost = construct(option("cost", "tile_time"), "cost", {"task": task})
    task.open(graph, cost, evals=0)  # compiles missing functions
    given = contest_seconds(workload.num_ops) if seconds is None else seconds
    left = max(SHARE * given - ENDING - (time.monotonic() - BEGAN), LEAST)
    algo = construct(option("algo", "tile_walk") | {"seconds": left, "share": 1.0}, "algo")
    solved, _ = solve(algo, graph, task, cost, evals=10**12, seed=seed)
    schedule = solved.solution().decided.schedule
    verdict = judge(workload, schedule)
    with writing(solution):
        write_json(solution, schedule_json(schedule, verdict.latencies))
    found = f"{solved.initial_cost:.10g} -> {verdict.cost:.10g} in {len(schedule.steps)} subgraphs"
    say(f"{problem.stem}: {found}; wrote {solution}")


def _task(shared_slices: str | None) -> Any:
    """The task, under a reading; None: that of conf/task/tiling.yaml."""
    from graphopt.core.utils.registry import option
    from graphopt.run.config.construct import construct

    reading = {} if shared_slices is None else {"shared_slices": shared_slices}
    machine = construct(option("machine", "cpu_core"), "machine")
    return construct(option("task", "tiling") | reading, "task", {"machine": machine})


def check_file(problem: Path, solution: Path, shared_slices: str | None) -> bool:
    """Prints the cost of a solution, and its errors, as a line of JSON; returns whether it is valid."""
    from graphopt.contests.tiling.pricing_tiles import judge
    from graphopt.contests.tiling.referee import NotValid, referee_latencies
    from graphopt.contests.tiling.workload_files import graph_of_workload, read_schedule, read_workload

    workload = _task(shared_slices).workload(graph_of_workload(read_workload(problem)))
    schedule, claimed = read_schedule(solution)
    verdict = judge(workload, schedule)
    try:
        second = sum(referee_latencies(workload, schedule))
        wrong = verdict.wrong
    except NotValid as error:
        second, wrong = math.inf, verdict.wrong or f"the second evaluator refuses it: {error}"
    pairs = enumerate(zip(claimed, verdict.latencies, strict=False))
    false = [place for place, (said, found) in pairs if not math.isclose(said, found, rel_tol=SAME)]
    if not wrong and not math.isclose(verdict.cost, second, rel_tol=1e-9):
        wrong = f"the second evaluator prices it at {second!r}"
    if not wrong and false:
        place = false[0]
        wrong = f"it claims {claimed[place]!r} for subgraph {place}, which takes {verdict.latencies[place]!r}"
    print(dumps({"valid": not wrong, "cost": verdict.cost, "wrong": wrong, "latencies": verdict.latencies}))
    return not wrong


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="graphopt board tile", description="Solves or checks a tiling problem.")
    result.add_argument("problem", type=Path, metavar="PROBLEM", help="the contest's JSON of a problem")
    result.add_argument(
        "solution", type=Path, metavar="SOLUTION", help="JSON of a solution: written, or read by --check"
    )
    result.add_argument("--check", action="store_true", help="price the solution by both evaluators, as a line of JSON")
    result.add_argument("--seconds", type=seconds, help="of the whole command; default: by the number of ops, 2 to 120")
    result.add_argument("--shared-slices", choices=["once", "per_operand"],
                        help="room for a slice that several operands read; default: once")  # fmt: skip
    result.add_argument("--seed", type=whole, default=0, help="of the search's random numbers")
    return result


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    if args.check:
        return 0 if check_file(args.problem, args.solution, args.shared_slices) else 1
    solve_file(args.problem, args.solution, args.seconds, args.seed, args.shared_slices)
    return 0
