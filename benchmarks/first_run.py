"""What a first call costs on a new machine: seconds of CPU, and on the clock, of `graphopt.optimize` in a new process.

`fresh`: with nothing compiled, not even Python's modules. `first`: with these alone, as pip compiles them when it
installs. `later`: with all that the first call compiled or measured.

`inductor` and `inductor_training` (on request) are `cost="inductor"` without and with gradients. The load of the
machine and the seconds that it takes for ten million additions in Python stand beside.
"""

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
graphopt.optimize(model, torch.zeros(8, 64), {options})
"""
TASKS = ("fusion", "placement", "scheduling", "placement_scheduling", "joint", "rewrite", "recompute")
MEASURED = {"inductor": "cost='inductor'", "inductor_training": "cost='inductor', backward=True"}


def seconds(options: str, cache: Path, modules: Path) -> tuple[float, float]:
    """Of a new process and those that it starts, imports included: of CPU, and on the clock. modules: where compiled
    modules of Python lie; cache: all else."""
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    caches = {"NUMBA_CACHE_DIR": str(cache / "numba"), "GRAPHOPT_CACHE": str(cache / "graphopt"),
              "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
              "PYTHONPYCACHEPREFIX": str(modules)}  # fmt: skip
    places = {**os.environ, **caches, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    places.pop("PYTHONDONTWRITEBYTECODE", "")  # Python keeps compiled modules unless it is told not to
    subprocess.run([sys.executable, "-c", PROGRAM.format(options=options)], check=True, env=places)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=[*TASKS, *MEASURED])
    parser.add_argument("--budget", type=int, default=100, help="evaluations (optimize's own default is 1,000)")
    asked = parser.parse_args()
    begun, total = time.process_time(), 0
    for number in range(10**7):
        total += number
    speed = f"ten million additions {time.process_time() - begun:.2f} s"
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {speed}")
    names = "".join(f"{name:>7}" for name in ("fresh", "first", "later"))
    print(f"{'task':22} {names}  s of CPU, {names}  s on the clock")
    for task in asked.tasks:
        options = MEASURED.get(task, f"task={task!r}, budget={asked.budget}")
        with tempfile.TemporaryDirectory() as folder:
            one, other, modules = (Path(folder) / name for name in ("one", "other", "modules"))
            found = [seconds(options, cache, modules) for cache in (one, other, other)]
        cpu, clock = ("".join(f"{value:7.1f}" for value in values) for values in zip(*found, strict=True))
        print(f"{task:22} {cpu}            {clock}", flush=True)


if __name__ == "__main__":
    main()
