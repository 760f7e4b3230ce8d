"""Runs several ONNX models by turns in ONNX Runtime, on one thread; started by `graphopt.rewrite.race`, once for each
process that it wants.

The first argument is JSON: `models` (files; one may stand there twice), `dims` (sizes of open dimensions), `seconds`
and `rounds` (at least so many, then until the time is up). The second is the number of an open file, for the answer in
JSON: {"rounds"}, seconds of one run per round and model, or {"error"}. The time is the thread's own, so that other
processes do not count, though they crowd the caches.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from graphopt.rewrite.equivalence import random_array
from graphopt.rewrite.io.onnx_call import onnxruntime_session

LEAST_SECONDS = 0.005  # that one sample lasts
ELEMENTS = {"float": "float32", "double": "float64", "string": "object"}  # names of ONNX Runtime that numpy has not


def main(arguments: list[str]) -> int:
    asked = json.loads(arguments[0])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    answer: dict[str, Any]
    try:
        runs = [runner(file, asked["dims"]) for file in asked["models"]]
        answer = {"rounds": rounds_of(runs, asked["seconds"], asked["rounds"])}
    except Exception as error:  # ONNX Runtime has many
        answer = {"error": " ".join(str(error).split())[:300]}
    with os.fdopen(int(arguments[1]), "w") as file:
        file.write(json.dumps(answer))
    return 0


def runner(file: str, dims: dict[str, int]) -> Callable[[], Any]:
    """Runs a model on random inputs, the same for all models with the same inputs."""
    session, rng = onnxruntime_session(file), np.random.default_rng(0)
    feeds = {}
    for given in session.get_inputs():
        inner = given.type.removeprefix("tensor(").removesuffix(")")
        feeds[given.name] = random_array(_shape(given, dims), ELEMENTS.get(inner, inner), rng)
    return lambda: session.run(None, feeds)


def _shape(given: Any, dims: dict[str, int]) -> tuple[int, ...]:
    for size in given.shape:
        if not isinstance(size, int) and size not in dims:
            raise ValueError(f"input {given.name!r} has the open dimension {size or 'without a name'}; give its size")
    return tuple(size if isinstance(size, int) else dims[size] for size in given.shape)


def rounds_of(runs: list[Callable[[], Any]], seconds: float, least: int) -> list[list[float]]:
    """[rounds, models] seconds of one run. Every round begins with another model."""
    repeats = [max(1, ceil(LEAST_SECONDS / max(min(timed(run, 1) for _ in range(3)), 1e-7))) for run in runs]
    rounds = list[list[float]]()
    end = time.perf_counter() + seconds
    while len(rounds) < least or time.perf_counter() < end:
        taken = [0.0] * len(runs)
        for place in range(len(runs)):
            model = (len(rounds) + place) % len(runs)
            taken[model] = timed(runs[model], repeats[model]) / repeats[model]
        rounds.append(taken)
    return rounds


def timed(run: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of this thread, which is the only one that works."""
    start = time.thread_time()
    for _ in range(repeats):
        run()
    return time.thread_time() - start


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
