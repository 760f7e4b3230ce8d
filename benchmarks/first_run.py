"""What a first call costs on a new machine: seconds of CPU of `graphopt.optimize` in a new process, for each task, with
nothing compiled, and again with what that call compiled. The load of the machine and the seconds that it takes for ten
million additions in Python stand beside."""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import torch, graphopt
parts = torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
model = torch.nn.Sequential(*parts)
graphopt.optimize(model, torch.zeros(8, 64), task={task!r}, budget=100)
"""
TASKS = ("fusion", "placement", "scheduling", "placement_scheduling", "joint", "rewrite", "recompute")


def cpu_seconds(task: str, cache: Path) -> float:
    """Of a new process, imports included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    caches = {"NUMBA_CACHE_DIR": str(cache / "numba"), "GRAPHOPT_CACHE": str(cache / "graphopt")}
    places = {**caches, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM.format(task=task)], check=True, env={**os.environ, **places})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    begun, total = time.process_time(), 0
    for number in range(10**7):
        total += number
    speed = f"ten million additions {time.process_time() - begun:.2f} s"
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {speed}")
    print(f"{'task':22} {'first':>7} {'later':>7}  s of CPU")
    for task in parser.parse_args().tasks:
        with tempfile.TemporaryDirectory() as folder:
            first, later = (cpu_seconds(task, Path(folder)) for _ in range(2))
        print(f"{task:22} {first:7.1f} {later:7.1f}", flush=True)


if __name__ == "__main__":
    main()
