"""`graphopt measure recompute PACKAGE.MODULE:FACTORY ... --rows FILE`: training steps as torch's own
solver splits them against ours, executed: bytes at the worst moment, CPU time, gradients.

A factory returns (module whose result is its loss, its inputs). Bytes are those that the allocator reports during one
step, gradients included; weights and inputs are there before and do not count. Times are CPU time of one thread: the
default, its copy and ours by turns in random order, in fresh processes.
"""

import argparse
import json
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import compile_fx

from graphopt.apply.recompute import SETTINGS, Partitioner, eager_backend, solver
from graphopt.errors import UserError
from graphopt.execution.running import allocated_peak
from graphopt.measure.environment import pin, processor, variables
from graphopt.records.rows import as_lines
from graphopt.utils.commit import commit
from graphopt.utils.plain_json import dumps
from graphopt.utils.ranges import count

BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05)
RACED = 0.05  # the budget at which time counts
PROCESSES, ROUNDS = 3, 15
STUDY = "hardware_recompute"
LIMIT_SECONDS = 3600.0  # of one process
Row = dict[str, Any]


class SplitStep:
    """A training step compiled for one budget. split: torch (its `dp` solver), solver or partitioner (ours). It has
    a backend of its own, so that Dynamo keeps its code beside others': a reset would compile all of them again."""

    def __init__(self, module: nn.Module, inputs: list[Tensor], split: str, budget: float, backend: str) -> None:
        self.module, self.inputs = module, inputs
        self.partitioner = Partitioner(SETTINGS)
        began = time.thread_time()
        asked: Any = solver if split == "solver" else "dp"
        self.call = torch.compile(module, backend=self._backend(split, backend), fullgraph=True, dynamic=False)
        with (
            functorch.patch(activation_memory_budget=budget, activation_memory_budget_solver=asked),
            functorch.patch(enable_autograd_cache=False),  # else nobody is asked twice
        ):
            self.step()
        self.compiling = time.thread_time() - began

    def _backend(self, split: str, backend: str) -> Callable[..., Any]:
        if backend == "eager":
            return eager_backend(self.partitioner if split == "partitioner" else min_cut_rematerialization_partition)
        options: Any = {"custom_partitioner_fn": self.partitioner if split == "partitioner" else None}
        return lambda gm, inputs: compile_fx(gm, inputs, config_patches=options)

    def step(self) -> list[Tensor]:
        """Gradients of one step from fresh random numbers."""
        self.module.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        self.call(*self.inputs).backward()
        return [p.grad for p in self.module.parameters() if p.grad is not None]

    def seconds(self) -> float:
        self.module.zero_grad(set_to_none=True)
        began = time.thread_time()
        self.call(*self.inputs).backward()
        return time.thread_time() - began

    def peak(self) -> int:
        """Bytes over what was there before, at the worst moment of a step."""
        self.module.zero_grad(set_to_none=True)
        return allocated_peak(lambda: self.call(*self.inputs).backward())


def measure(label: str, backend: str, budgets: Sequence[float], rounds: int, seed: int) -> list[Row]:
    """Rows of one model in this process: peaks of every budget; where it is `RACED` times too, and our solver."""
    pin(1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 100
    module, inputs = _made(label)
    wanted = [g.clone() for g in SplitStep(module, inputs, "torch", 1.0, backend).step()]
    rows, kept = [], dict[str, SplitStep]()
    for budget in budgets:
        for split in ("torch", "partitioner", *(["solver"] if budget == RACED else [])):
            compiled = SplitStep(module, inputs, split, budget, backend)
            gradients = [g.clone() for g in compiled.step()]
            found = compiled.partitioner.found
            rows.append({
                "split": split, "budget": budget, "peak_bytes": compiled.peak(), "compile_seconds": compiled.compiling,
                "gradient_error": _error(gradients, wanted), **({} if found is None else _simulated(found)),
            })  # fmt: skip
            if budget == RACED:
                kept[split] = compiled
    if kept:
        kept["copy"] = SplitStep(module, inputs, "torch", RACED, backend)
        _add_times(rows, kept, rounds, seed)
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    return [{**row, "weight_bytes": parameters} for row in rows]


def _simulated(found: Any) -> Row:
    return {"simulated_bytes": found.footprint.peak, "saved_bytes": found.footprint.saved,
            "again_share": found.footprint.again / found.seconds}  # fmt: skip


def _add_times(rows: list[Row], kept: dict[str, SplitStep], rounds: int, seed: int) -> None:
    """`ratio`: the median over rounds of the time over torch's in the same round; of torch's own row its copy's."""
    order, draw = list(kept), random.Random(seed)
    taken: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            taken[name].append(kept[name].seconds())
    for row in (row for row in rows if row["budget"] == RACED):
        times = taken["copy" if row["split"] == "torch" else row["split"]]
        row["seconds"] = median(taken[row["split"]])
        row["ratio"] = median(a / b for a, b in zip(times, taken["torch"], strict=True))


def _error(gradients: list[Tensor], wanted: list[Tensor]) -> float:
    """Largest difference from torch's gradients at a budget of 1, over the largest entry of each."""
    scale = [max(float(w.abs().max()), 1e-30) for w in wanted]
    return max(float((g - w).abs().max()) / s for g, w, s in zip(gradients, wanted, scale, strict=True))


def _made(label: str) -> tuple[nn.Module, list[Tensor]]:
    place, _, name = label.partition(":")
    module, inputs = getattr(import_module(place), name)()
    return module.train(), inputs


def race(label: str, backend: str, processes: int, rounds: int) -> list[Row]:
    """Rows of one model: bytes by the first process, times over all, as value and extremes."""
    taken = [_in_process(label, backend, BUDGETS if i == 0 else (RACED,), rounds, i) for i in range(processes)]
    rows = taken[0]
    for row in rows:
        ratios = [r["ratio"] for rs in taken for r in rs if (r["split"], r["budget"]) == (row["split"], row["budget"])
                  and "ratio" in r]  # fmt: skip
        if ratios:
            row |= {
                "ratio": median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "processes": processes,
            }
    return [{**_about(label, backend, processes), **row} for row in rows]


def _in_process(label: str, backend: str, budgets: Sequence[float], rounds: int, seed: int) -> list[Row]:
    asked = json.dumps([label, backend, list(budgets), rounds, seed])
    command = [sys.executable, "-m", "graphopt", "measure", "recompute", "--worker", asked]
    done = subprocess.run(command, env=variables(1), stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS)
    if done.returncode:
        raise UserError(f"{label}: its process ended with {done.returncode}; what it said stands above")
    answer: list[Row] = json.loads(done.stdout.strip().split("\n")[-1])
    return answer


def _about(label: str, backend: str, processes: int) -> Row:
    return {"study": STUDY, "status": "ok", "graph": label.rpartition(":")[2], "model": label, "backend": backend,
            "torch": torch.__version__, "python": platform.python_version(), "hardware": processor(),
            "threads": 1, "commit": commit(), "evals": SETTINGS.evals, "processes": processes}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt measure recompute", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="PACKAGE.MODULE:FACTORY")
    parser.add_argument("--backend", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--processes", type=count, default=PROCESSES)
    parser.add_argument("--rounds", type=count, default=ROUNDS)
    parser.add_argument("--rows", type=Path, required=False, help="file to which rows are added")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.worker:
        print(json.dumps(measure(*json.loads(args.worker))))
        return 0
    for label in args.models:
        rows = race(label, args.backend, args.processes, args.rounds)
        for row in rows:
            print(dumps(row), flush=True)
        if args.rows:
            args.rows.parent.mkdir(parents=True, exist_ok=True)
            with args.rows.open("a") as file:
                file.write(as_lines(rows))
    return 0
