"""Measures single ops, asked line by line through a pipe; started by `graphopt.measure.op_process`.

The arguments are the fields of `Measuring` as JSON, and the numbers of two pipes, for requests and for answers: what
libraries print cannot get between these. The first line out is {"id": 0, "ready"}. A request is {"id", "name",
"params", "inputs": [[shape, dtype], ...]}, an answer {"id", "seconds", "spread", "blocks"} or {"id", "error"}. On a CPU
the time is the thread's own, where there is one thread, so that other processes do not count; on a GPU it is that of
CUDA events.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from math import ceil, prod
from typing import Any, TextIO

import numpy as np
import torch

from graphopt.rewrite.ir.execution import apply
from graphopt.rewrite.ir.vocabulary import Operation

POOL = (1 << 20) + 7  # random numbers that inputs are filled with, over and over
LEAST_BLOCKS = 3  # of ops that take longer than they should


def main(arguments: list[str]) -> int:
    measuring, (asked, answered) = json.loads(arguments[0]), map(int, arguments[1:])
    for pipe in (asked, answered):
        os.set_inheritable(pipe, False)
    device, threads = measuring["device"], measuring["threads"]
    torch.set_num_threads(threads)
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    timed = cuda_seconds if device == "cuda" else cpu_seconds(time.thread_time if threads == 1 else time.perf_counter)
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(device)
    with os.fdopen(asked) as requests, os.fdopen(answered, "w") as answers:
        _say(answers, {"id": 0, "ready": True})
        for line in requests:
            request = json.loads(line)
            try:
                answer = measure(request, pool, timed, measuring)
            except Exception as error:  # whatever a library raises: this op cannot be measured
                answer = {"error": " ".join(str(error).split())[:200] or type(error).__name__}
            _say(answers, {**answer, "id": request["id"]})
    return 0


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


Timed = Callable[[Callable[[], Any], int], float]
"""Seconds of so many runs."""


def measure(request: dict[str, Any], pool: torch.Tensor, timed: Timed, measuring: dict[str, Any]) -> dict[str, Any]:
    """Median and relative interquartile range of the seconds of one run, over blocks of equally many runs."""
    operation = Operation(request["name"], _tuples(request["params"]))
    inputs = [_tensor(shape, dtype, pool) for shape, dtype in request["inputs"]]

    def run() -> Any:
        result = apply(operation, inputs)
        return result.contiguous() if operation.name == "transpose" else result  # else a view: its reader pays for it

    with torch.inference_mode():
        runs = runs_for(timed, run, measuring["block_seconds"])
        blocks, end = list[float](), time.perf_counter() + measuring["op_seconds"]
        while not _enough(blocks, measuring, time.perf_counter() >= end):
            blocks.append(timed(run, runs) / runs)
    return {"seconds": float(np.median(blocks)), "spread": spread_of(blocks), "blocks": len(blocks)}


def runs_for(timed: Timed, run: Callable[[], Any], seconds: float) -> int:
    """How many runs last that long, or one; of two blocks the shorter counts. Finding out warms up."""
    timed(run, 1)
    runs = 1
    while (took := min(timed(run, runs), timed(run, runs))) < seconds:
        runs = max(runs + 1, min(10 * runs, ceil(1.1 * runs * seconds / max(took, 1e-9))))
    return runs


def _enough(blocks: list[float], measuring: dict[str, Any], late: bool) -> bool:
    if late:
        return len(blocks) >= LEAST_BLOCKS
    least: int = measuring["blocks"]
    return len(blocks) >= least and spread_of(blocks) <= measuring["spread"]


def spread_of(blocks: list[float]) -> float:
    """Interquartile range over the median."""
    low, middle, high = np.quantile(blocks, [0.25, 0.5, 0.75])
    return float((high - low) / max(middle, 1e-12))


def cpu_seconds(clock: Callable[[], float]) -> Timed:
    def timed(run: Callable[[], Any], runs: int) -> float:
        start = clock()
        for _ in range(runs):
            run()
        return clock() - start

    return timed


def cuda_seconds(run: Callable[[], Any], runs: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(runs):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000.0


def _tensor(shape: list[int], dtype: str, pool: torch.Tensor) -> torch.Tensor:
    """Normal numbers, the same over and over: drawing a large product's weights would take longer than the product.
    Ones of other types."""
    kind, size = getattr(torch, dtype), prod(shape)
    if kind.is_floating_point:
        return pool.repeat(ceil(size / POOL))[:size].view(shape).to(kind)
    return torch.ones(shape, dtype=kind, device=pool.device)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
