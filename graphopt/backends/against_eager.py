"""`graphopt measure backends SAMPLES ROWS`: compilers against eager execution on GraphNet's programs, in results and
time.

Each program is decided about in a process of its own. Then fresh processes, with the malloc that users have, run eager
execution, its copy, TorchInductor and graphopt by turns, on one thread. Where nothing was decided otherwise, graphopt
is TorchInductor's code, and has its time. `graphopt report ROWS --es` makes S(t) and ES(t) of the rows. A second call
measures missing programs.
"""

import argparse
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from graphopt.backends.graphnet import EVALS
from graphopt.core.errors import UserError, writing
from graphopt.core.utils.marks import count, seconds
from graphopt.core.utils.plain_json import dumps
from graphopt.core.utils.process import AnswerTimeout, Process, ProcessEnd
from graphopt.core.utils.terminal import Bar, say
from graphopt.core.utils.whole import whole_file
from graphopt.graphs.readers.pytorch.graphnet.archive import samples_at
from graphopt.hardware.measure.environment import environment_here, variables
from graphopt.hardware.measure.rounds import rounds_in, timings_of_race
from graphopt.report.error_aware import read_rows

BACKENDS = ("inductor", "graphopt")
WORKER = "graphopt.backends.eager_worker"


def race_backends(place: str, rows: Path, *, only: Sequence[str], evals: int, numerics: str, processes: int,
                  limit: float) -> None:  # fmt: skip
    """Appends rows of the samples that match a pattern and have none. limit: seconds for one process."""
    done = {row.sample for row in read_rows(rows)} if rows.is_file() else set[str]()
    names = [name for name in samples_at(place) if any(fnmatch(name, pattern) for pattern in only)]
    if not names:
        raise UserError(f"no sample of {place} matches {' '.join(only)}")
    with Bar("race", len(names)) as bar:
        for name in names:
            if name not in done:
                request = {"sample": f"{place}/{name}", "folder": str(rows.parent / "decisions" / name)}
                found = _rows(name, request, evals, numerics, processes, limit)
                before = rows.read_bytes() if rows.is_file() else b""
                with writing(rows), whole_file(rows) as file:  # a killed run leaves no half of a line
                    file.write(before + "".join(dumps(row) + "\n" for row in found).encode())
            bar.step(name)


def _rows(name: str, request: Mapping[str, Any], evals: int, numerics: str, processes: int,
          limit: float) -> list[dict[str, Any]]:  # fmt: skip
    facts = {"sample": name, "evals": evals, "numerics": numerics, "environment": environment_here("cpu", 1)}
    chosen = _asked({**request, "evals": evals, "numerics": numerics}, variables(1), limit)
    changed = chosen.get("changed") is True
    users = variables(1, keeps_memory=False)
    run = [*BACKENDS] if changed else ["inductor"]
    taken = [_asked({**request, "backends": run, "seed": i}, users, limit) for i in range(processes)]
    if broken := next((one["error"] for one in taken if "error" in one), None):
        return [{**facts, "backend": backend, "status": "failed", "reason": broken} for backend in BACKENDS]
    found = {row["backend"]: row for row in _measured(run, taken)}
    if not changed:
        found["graphopt"] = {**found["inductor"], "backend": "graphopt", "unchanged": True}
    if "error" in chosen:
        found["graphopt"] = {**found["graphopt"], "undecided": chosen["error"]}
    return [{**facts, **found[backend]} for backend in BACKENDS]


def _measured(backends: Sequence[str], taken: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of those backends that run in every process; the worst closeness counts."""
    failed = {name: reason for one in taken for name, reason in one["failed"].items()}
    rows: list[dict[str, Any]] = [
        {"backend": b, "status": "failed", "reason": failed[b]} for b in backends if b in failed
    ]
    ran = [name for name in backends if name not in failed]
    rounds = [rounds_in(one["rounds"])[:, [one["columns"].index(c) for c in ("eager", "copy", *ran)]] for one in taken]
    eager, *others = timings_of_race(rounds)
    for name, timing in zip(ran, others):
        close = [one["closeness"][name] for one in taken]
        rows.append({"backend": name, "status": "ok", "eager": eager.seconds, "seconds": timing.seconds,
                     "speedup": 1 / timing.ratio, "noise": timing.noise, "processes": len(taken),
                     "closeness": None if None in close else max(close)})  # fmt: skip
    return rows


def _asked(request: Mapping[str, Any], environment: Mapping[str, str], limit: float) -> dict[str, Any]:
    process = Process(WORKER, {}, environment)
    try:
        return process.ask(request, limit)
    except ProcessEnd:
        return {"error": "its process ends, perhaps out of memory"}
    except AnswerTimeout:
        return {"error": f"it takes more than {limit:g} s"}
    finally:
        process.end()


def main(arguments: Sequence[str]) -> int:
    what = "Compilers against eager execution on GraphNet's programs."
    parser = argparse.ArgumentParser(prog="graphopt measure backends", description=what)
    parser.add_argument("place", metavar="SAMPLES", help="a folder or an archive of GraphNet's samples")
    parser.add_argument("rows", type=Path, metavar="ROWS", help="the file of rows; decision files lie beside it")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names PACKAGE/MODEL")
    parser.add_argument("--evals", type=count, default=EVALS, help="plans to compile and time for each graph")
    parser.add_argument("--numerics", choices=("equal", "close"), default="equal")
    parser.add_argument("--processes", type=count, default=3)
    parser.add_argument("--limit", type=seconds, default=1800.0, help="seconds for one process")
    args = parser.parse_args(arguments)
    race_backends(args.place, args.rows, only=args.only, evals=args.evals, numerics=args.numerics,
                  processes=args.processes, limit=args.limit)  # fmt: skip
    say(f"S(t) and ES(t): graphopt report {args.rows} --es")
    return 0
