"""What decisions of fusion gain in a user's process, whose malloc gives memory back, and in one that keeps memory.

`python benchmarks/allocators.py ROWS [--study results/hardware_fusion] [--most 8]` compiles the stored answers of a
study by TorchInductor and races each with the default and its copy, three fresh processes with either malloc, one
thread. ROWS is a file of JSON lines; a second call goes on where the first stopped. `python benchmarks/allocators.py
ROWS --figures` prints geometric means of time over the default, with 95 % intervals over programs.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lines import say

from graphopt import load as load_answer
from graphopt.core.errors import Unmeasured
from graphopt.core.utils.registry import option
from graphopt.hardware.costs.inductor import Inductor, target_of
from graphopt.hardware.measure.rounds import timings_of_race
from graphopt.hardware.measure.service import fresh_rounds
from graphopt.hardware.measure.target import Failure
from graphopt.hardware.requests import graph_key, request_of
from graphopt.report.replay import decision_of
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.report.tables.statistics import bootstrap
from graphopt.run.config.construct import construct

MALLOCS = {"keeps": True, "user": False}
PROCESSES = 3


def decided(study: Path) -> Iterator[dict[str, Any]]:
    """Rows of the search whose answers are not the default, one for each graph and numerics."""
    rows = [
        row
        for row in read_rows(row_files(study))[0]
        if row.get("status") == "ok" and row["algo"] == "compiler_search" and row["judged"] < row["initial"]
    ]
    seen = set[tuple[str, str]]()
    for row in sorted(rows, key=lambda row: row["judged"] / row["initial"]):
        if (key := (row["graph"], row["task"])) not in seen:
            seen.add(key)
            yield row


def raced(row: dict[str, Any], cost: Inductor) -> dict[str, Any]:
    """Time over the default's, its noise and that of the default's copy, with either malloc."""
    answer = load_answer(decision_of(row))
    graph, request = answer.graph, request_of(answer.solution.plans, 0)
    default = cost.default(graph)
    (lowered,) = cost._pipeline.lower([cost.lowered.request(graph, request)])
    compiled = lowered if isinstance(lowered, Failure) else cost.builds.ask("compile", lowered).result()
    if isinstance(lowered, Failure) or isinstance(compiled, Failure):
        raise Unmeasured(f"{graph.name} cannot be compiled")
    stores = [*request.requests.values()].count("store")
    found: dict[str, Any] = {"graph": row["graph"], "task": row["task"], "claimed": row["judged"] / row["initial"],
                             "key": graph_key(graph), "stores": stores}  # fmt: skip
    for name, keeps in MALLOCS.items():
        taken = fresh_rounds(default, [target_of(lowered)], cost.service.how, PROCESSES, keeps_memory=keeps)
        if isinstance(taken, Failure):
            raise Unmeasured(f"{graph.name}{taken.reason}")
        default_timing, timing = timings_of_race(taken)
        found |= {name: timing.ratio, f"{name}_noise": timing.noise, f"{name}_copy": timing.aa}
        found[f"{name}_default_ms"] = default_timing.seconds * 1e3
    return found


def figures(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        row["memory kept, nothing decided"] = row["keeps_default_ms"] / row["user_default_ms"]
        row["memory kept, decided"] = row["keeps"] * row["memory kept, nothing decided"]
    for task in sorted({row["task"] for row in rows}):
        some = [row for row in rows if row["task"] == task]
        for name in ("claimed", *MALLOCS, "memory kept, nothing decided", "memory kept, decided"):
            logs = np.log([[row[name]] for row in some])
            over = bootstrap(logs, [row["graph"].partition(".")[0] for row in some]).of(math.exp)
            noise = [row.get(f"{name}_noise", 0.0) for row in some]
            slower = sum(row[name] > 1 + 2 * each for row, each in zip(some, noise))
            say(
                f"{task}, {name}",
                [over.low, over.mean, over.high],
                "time over the default",
                {"graphs": len(some), "slower": slower},
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--study", type=Path, default=Path("results/hardware_fusion"))
    parser.add_argument("--most", type=int, default=1000, help="answers to race in this call")
    parser.add_argument("--figures", action="store_true", help="of the rows that there are; nothing is measured")
    given = parser.parse_args()
    known = [json.loads(line) for line in given.rows.read_text().splitlines()] if given.rows.exists() else []
    if given.figures:
        return figures(known)
    cost = construct(option("cost", "inductor"), "cost", {})
    done = {(row["graph"], row["task"]) for row in known}
    todo = [row for row in decided(given.study) if (row["graph"], row["task"]) not in done][: given.most]
    for number, row in enumerate(todo, 1):
        try:
            found = raced(row, cost)
        except Unmeasured as error:
            print(f"{number} of {len(todo)}: {error}", flush=True)
            continue
        with given.rows.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{number} of {len(todo)}: {found}", flush=True)


if __name__ == "__main__":
    main()
