"""Measuring and build processes that do what they are told, also the worst. payload of a target: `spin`, the work of a
run; `does`; `flag`, a file by which something happens only once; `bits`, what a run gives; `process`: its number."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from graphopt.hardware.measure import builds, rounds, timing_worker
from graphopt.hardware.measure.rounds import Runner


def main(arguments: list[str]) -> int:
    """Of a measuring process, which has settings, or of a build process."""
    timing_worker.KINDS["strange"] = timing_worker.Kind("strange", "load")
    timing_worker.by_turns = by_turns  # type: ignore[attr-defined]
    builds.TASKS |= {name: ("strange", name) for name in ("lower", "compile")}
    return (timing_worker if json.loads(arguments[0]) else builds).main(arguments)


def by_turns(*given: Any) -> Any:
    """With a file while it lasts, by which forks know."""
    rounds_of(os.getpid()).touch()
    try:
        return rounds.by_turns(*given)
    finally:
        rounds_of(os.getpid()).unlink()


def rounds_of(process: int) -> Path:
    return Path(f"{os.environ['STRANGE_LOG']}.{process}")


def log(text: str) -> None:
    with open(os.environ["STRANGE_LOG"], "a") as file:
        file.write(f"{text}\n")


def lower(given: dict[str, Any]) -> dict[str, Any]:
    """spin: the code that this request leads to; equal ones are equal code."""
    log(f"lower {given['spin']}")
    if given.get("does") == "crash":
        os.abort()
    if given.get("does") == "compiler":
        log(f"started {subprocess.Popen(['sleep', '3600']).pid}")
    if given.get("does") in ("hang", "compiler"):
        time.sleep(3600)
    if given.get("does") == "fail":
        raise ValueError("cannot be lowered")
    return {"digest": f"code {given['spin']}", "spin": given["spin"], "bytes": given["spin"] * 8,
            "compiles": given.get("compiles", True), "source": given.get("source", "")}  # fmt: skip


def compile(given: dict[str, Any]) -> dict[str, Any]:
    log(f"compile {given['spin']}")
    if not given["compiles"]:
        raise ValueError("g++ refuses it")
    return {"seconds": 0.0}


def begin(threads: int) -> None:
    """Nothing."""


def load(payload: dict[str, Any], device: str) -> Runner:
    does, work, flag = payload.get("does", ""), payload.get("spin", 2000), Path(payload.get("flag", "."))
    log(f"{os.getpgrp()} {does}")  # of the process that measures
    happen(does, "load", flag)

    def run() -> int:
        if does.endswith("run") and rounds_of(os.getppid()).exists():
            happen(does, "run", flag)  # in the rounds, not when it is found out how many runs make a block
        return sum(range(work * 10))

    bits = payload.get("bits", "")
    return Runner(run, bits=str(os.getpid()) if bits == "process" else bits)


def happen(does: str, when: str, flag: Path) -> None:
    if does == f"crash at {when}":
        os.abort()
    if does == f"hang at {when}":
        time.sleep(3600)
    if does == f"fail at {when}":
        raise ValueError("it does not compile")
    if does == f"no memory at {when}":
        raise MemoryError("cannot allocate")
    if does == f"killed once at {when}" and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
