"""The environment of measuring processes, and the conditions that a measurement depends on besides its target."""

import os
import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from subprocess import SubprocessError, check_output

from graphopt import cache_dir

# Without these, page faults of fresh allocations made one kernel read 0.86x and 1.99x in two processes.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
             "MALLOC_TOP_PAD_": "268435456"}  # fmt: skip
# With ALLOCATOR and without, in words. A process for each target: blocks that others free move glibc's thresholds.
KEEPS_MEMORY, USERS_MALLOC = "malloc keeps memory", "the user's malloc, a process each"


def variables(threads: int, *, keeps_memory: bool = True) -> dict[str, str]:
    """Environment variables of a process that measures or builds: they count only if they are set before it starts."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "inductor"))
    inductor = {"TORCHINDUCTOR_CACHE_DIR": compiled, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return {**os.environ, **(ALLOCATOR if keeps_memory else {}), **counts, **inductor}


def pin(threads: int, place: int = 0) -> None:
    """This process stays on one processor where it has one thread: the last, or that so many places before it."""
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        there = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {there[-1 - place % len(there)]})


@cache
def _processors() -> tuple[int, ...]:
    """On which this process may run, when first asked."""
    return tuple(sorted(os.sched_getaffinity(0)))


def keep_off(keeps: bool) -> None:
    """Whether this process and its children leave the last processor, of several, to measuring processes (`pin`)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, (_processors()[:-1] if keeps else ()) or _processors())


def environment_here(device: str, threads: int, libraries: tuple[str, ...] = ()) -> str:
    """The conditions of the time of a single op; with `libraries` (beside torch), of whole programs, which depend on
    the allocator too."""
    packages = ", ".join(f"{name} {version(name)}" for name in dict.fromkeys(("torch", *libraries)))
    where = processor() if device == "cpu" else gpu()
    return f"{packages}, {where}, {device}, {threads} threads"


def has_gpu() -> bool:
    """Whether torch can use one."""
    import torch

    return torch.cuda.is_available()


@cache
def gpu() -> str:
    """The first GPU's name and its driver. Asking torch would begin to use it, which copies of a process cannot."""
    asked = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    with suppress(OSError, SubprocessError, IndexError):
        return check_output(asked, text=True, timeout=60).splitlines()[0].replace(", ", ", driver ")
    return "a GPU"


def processor() -> str:
    """The processor's name, as Linux knows it, and whether it has vectors of 512 bits: one name is of both kinds on
    virtual machines, and compilers write other code."""
    name = next((value for key, value in _facts() if key == "model name"), platform.machine())
    return f"{name}, AVX512" if has_avx512() else name


def has_avx512() -> bool:
    return any(key == "flags" and "avx512f" in value.split() for key, value in _facts())


@cache
def _facts() -> tuple[tuple[str, str], ...]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    parts = (line.partition(":") for line in lines)
    return tuple((key.strip(), value.strip()) for key, _, value in parts)
