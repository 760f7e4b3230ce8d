"""Measures single ops, asked line by line on standard input; started by `graphopt.costs.profiled`, one per cost model.

A question is {"name", "params", "inputs": [[shape, dtype], ...]}, an answer {"seconds", "spread", "blocks"} or
{"error"}. On a CPU the time is the thread's own, where there is one thread, so that other processes do not count; on a
GPU it is that of CUDA events.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from graphopt.rewrite.execution import apply
from graphopt.rewrite.vocabulary import Operation


def main(arguments: list[str]) -> int:
    device, threads, blocks, block_seconds = arguments[0], int(arguments[1]), int(arguments[2]), float(arguments[3])
    torch.set_num_threads(threads)
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    timed = cuda_seconds if device == "cuda" else cpu_seconds(time.thread_time if threads == 1 else time.perf_counter)
    for line in sys.stdin:
        try:
            answer = measure(json.loads(line), device, timed, blocks, block_seconds)
        except (RuntimeError, ValueError, KeyError, MemoryError) as error:
            answer = {"error": " ".join(str(error).split())[:200]}
        print(json.dumps(answer), flush=True)
    return 0


Timed = Callable[[Callable[[], Any], int], float]
"""Seconds of so many runs."""


def measure(question: dict[str, Any], device: str, timed: Timed, blocks: int, block_seconds: float) -> dict[str, Any]:
    """Median and relative interquartile range of the seconds of one run, over blocks of equally many runs."""
    operation = Operation(question["name"], _tuples(question["params"]))
    torch.manual_seed(0)
    inputs = [_tensor(shape, dtype, device) for shape, dtype in question["inputs"]]

    def run() -> Any:
        return apply(operation, inputs)

    with torch.inference_mode():
        timed(run, 2)
        once = max(timed(run, 1), 1e-7)
        runs = max(1, round(block_seconds / once))
        seconds = [timed(run, runs) / runs for _ in range(blocks)]
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return {"seconds": float(middle), "spread": float((high - low) / max(middle, 1e-12)), "blocks": blocks}


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


def _tensor(shape: list[int], dtype: str, device: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape, device=device).to(kind)
    return torch.ones(shape, dtype=kind, device=device)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
