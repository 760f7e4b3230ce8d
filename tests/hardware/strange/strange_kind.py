"""A kind of target that does what its payload says, also the worst. payload: `spin`, the work of a run; `does`;
`flag`, a file by which something happens only once."""

import inspect
import os
import signal
import time
from pathlib import Path
from typing import Any

from graphopt.hardware.measure.rounds import Runner


def begin(threads: int) -> None:
    """Nothing."""


def load(payload: dict[str, Any], device: str) -> Runner:
    does, work, flag = payload.get("does", ""), payload.get("spin", 2000), Path(payload.get("flag", "."))
    with open(os.environ["STRANGE_LOG"], "a") as log:
        log.write(f"{os.getpid()} {does}\n")
    happen(does, "load", flag)

    def run() -> int:
        if does.endswith("run") and any(frame.function == "by_turns" for frame in inspect.stack(0)):
            happen(does, "run", flag)  # in the rounds, not when it is found out how many runs make a block
        return sum(range(work * 10))

    return Runner(run)


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
