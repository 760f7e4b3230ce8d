"""What stored answers gain in a user's process, over whole steps of a program.

`python benchmarks/users_process.py results/hardware_unseen benchmarks/unseen_programs.py --algo compiler_policy`

A step is the forward pass and, where something is learned, the backward pass, as `torch.compile` makes them. Each
process compiles one program, by itself or with the answers carried out, and times its steps: its processor time with
one thread, the clock with several (`--threads`, on an idle machine). The two take turns. claimed: summed over the
program's graphs, the time that the study's judge measured over the default's. steps: the time of a step over the
default's. faults: page faults of a step.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphopt.graphs.readers.pytorch.nested_tensors import tensors_in
from graphopt.graphs.readers.pytorch.program_file import key_of, unpacked_program
from graphopt.hardware.datasets.lowered import programs_in
from graphopt.hardware.requests import request_of
from graphopt.report.answer import Answer
from graphopt.report.apply.compile_backend import decided
from graphopt.report.replay import decision_of
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.report.tables.statistics import bootstrap

WARM_UP, BLOCKS, BLOCK_SECONDS = 5, 3, 0.4
Row = Mapping[str, Any]


def rows_of(study: Path, algo: str, evals: int) -> dict[str, list[Row]]:
    """Program -> the rows of its graphs."""
    found: dict[str, list[Row]] = {}
    for row in read_rows(row_files(study))[0]:
        if (row["algo"], row["evals_cap"], row.get("status")) == (algo, evals, "ok"):
            found.setdefault(row["graph"].rsplit(".", 1)[0], []).append(row)
    return found


def run(source: Path, program: str, rows: list[Row], threads: int) -> None:
    """In a process of its own: prints the page faults and the seconds of a step, and how many answers were carried
    out."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    clock = time.thread_time if threads == 1 else time.perf_counter
    answers = [Answer.load(decision_of(row)) for row in rows]
    programs = [unpacked_program(answer.graph.program, program) for answer in answers if answer.graph.program]
    requests = {key_of(p.gm, p.phase): request_of(a.plan, 0) for p, a in zip(programs, answers, strict=True)}
    function, inputs = programs_in(source)[program]()
    carried = set[str]()
    compiled = torch.compile(function, backend=decided(requests, carried) if rows else "inductor")
    learned = [tensor for tensor in inputs if tensor.requires_grad]

    def step() -> None:
        with nullcontext() if learned else torch.no_grad():
            out = compiled(*inputs)
            if learned:
                made = [tensor for tensor in tensors_in(out) if tensor.requires_grad]
                torch.autograd.backward(made, [torch.ones_like(tensor) for tensor in made])
        for tensor in learned:
            tensor.grad = None

    def timed(runs: int) -> tuple[float, float]:
        faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, clock()
        for _ in range(runs):
            step()
        more = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        return more / runs, (clock() - start) / runs

    timed(WARM_UP)
    runs = max(1, round(BLOCK_SECONDS / timed(2)[1]))
    print(json.dumps([*np.median([timed(runs) for _ in range(BLOCKS)], 0), len(carried), len(requests)]))


def compared(args: argparse.Namespace, program: str, rows: list[Row]) -> tuple[float, float]:
    """(claimed, of steps); prints a line."""
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    for turn in range(2 * args.processes):
        words = [sys.executable, __file__, str(args.study), str(args.source), "--algo", args.algo,
                 "--evals", str(args.evals), "--threads", str(args.threads), "--run", program,
                 *(["--answers"] if turn % 2 else [])]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{program}: {done.stderr[-1000:]}")
        found[bool(turn % 2)].append(json.loads(done.stdout.splitlines()[-1]))
    default, ours = (np.array(found[answers]) for answers in (False, True))
    claimed = sum(row["judged"] for row in rows) / sum(row["initial"] for row in rows)
    ratio = statistics.median(ours[:, 1]) / statistics.median(default[:, 1])
    print(f"| {program} | {statistics.median(default[:, 1]) * 1e3:.2f} | {claimed:.3f} | {ratio:.3f} | "
          f"{' '.join(f'{x:.0f}' for x in default[:, 0])} | {' '.join(f'{x:.0f}' for x in ours[:, 0])} | "
          f"{ours[0, 2]:.0f} of {ours[0, 3]:.0f} |", flush=True)  # fmt: skip
    return claimed, float(ratio)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="folder with rows and answers")
    parser.add_argument("source", type=Path, help="Python file whose PROGRAMS the study is of")
    parser.add_argument("--algo", default="compiler_search")
    parser.add_argument("--evals", type=int, default=24)
    parser.add_argument("--only", nargs="*", default=[], metavar="PROGRAM", help="these programs")
    parser.add_argument("--processes", type=int, default=3, help="of each kind, for each program")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--run", metavar="PROGRAM", help=argparse.SUPPRESS)
    parser.add_argument("--answers", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    programs = rows_of(args.study, args.algo, args.evals)
    if args.run:
        run(args.source, args.run, programs[args.run] if args.answers else [], args.threads)
        sys.exit()
    print("| program | default ms | claimed | steps | faults, default | with answers | carried out |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    logs = np.log([compared(args, name, rows) for name, rows in programs.items() if not args.only or name in args.only])
    parts = {"claimed": logs[:, 0], "steps": logs[:, 1], "steps over claimed": logs[:, 1] - logs[:, 0]}
    for name, values in parts.items():
        mean = bootstrap(values[:, None], range(len(values)))
        print(f"{name}: {np.exp(mean.mean):.3f} [{np.exp(mean.low):.3f}, {np.exp(mean.high):.3f}]")
