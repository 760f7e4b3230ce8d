"""Runs cases in processes that may die, begun again when one did."""

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .judge import BAD, KINDS, Outcome

WALL = 180.0  # seconds after which a process that does not answer is ended: its own clock cannot stop compiled code
SOUND = range(-4, 0)  # seeds of undamaged inputs
WARM = 600.0  # seconds for the first answer, which waits for imports and compiled code


@dataclass
class Tally:
    """What became of the cases of one format. bad: seed -> what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: dict[int, Outcome] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, seed: int, outcome: Outcome) -> None:
        self.counts[outcome.kind] += 1
        if outcome.kind in BAD:
            self.bad[seed] = outcome


class Worker:
    """A process that judges cases of these formats, one after the other."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._folder = tempfile.TemporaryDirectory(prefix=f"fuzz_{self.names[0]}_")  # outlives the process
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would inherit the threads of compiled code, half alive
        self._pipe, other = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(self.names, self._folder.name, other), daemon=True)
        for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
        self._process.start()
        other.close()
        try:
            first = self._answer(WARM)
        except (EOFError, OSError, TimeoutError):
            raise RuntimeError(
                f"the process for {', '.join(self.names)} died before its first answer, or gave none in {WARM:g} s; "
                f"--one {self.names[-1]} -1 shows why"
            ) from None
        if first.kind != "result":
            raise RuntimeError(f"an undamaged {', '.join(self.names)} is not read: {first}")

    def judged(self, name: str, seed: int) -> Outcome:
        """The outcome of a case; a process that dies of it, or never comes back, is begun again."""
        try:
            self._pipe.send((name, seed))
            return self._answer(WALL)
        except TimeoutError:
            outcome = Outcome("hang", f"no answer in {WALL:g} s")
        except (EOFError, OSError):
            self._process.join(10)
            code = self._process.exitcode
            outcome = Outcome("memory" if code == -signal.SIGKILL else "traceback", f"the process died ({code})")
        self._end()
        self._start()
        return outcome

    def _answer(self, seconds: float) -> Outcome:
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return Outcome(*self._pipe.recv())

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def stop(self) -> None:
        """Ends the process and removes its files."""
        self._end()
        self._folder.cleanup()


def serve(names: Sequence[str], place: str, pipe: Connection) -> None:
    """The life of a worker: warm up, then a format and a seed in, an outcome out. place: for all temporary files."""
    tempfile.tempdir = place
    from .formats import FORMATS
    from .judge import guard, judged

    folder = Path(place) / "case"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open(os.devnull, "w") as nothing:  # a reader's own words are not the harness's
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        warm = [
            judged(FORMATS[name], seed, emptied(folder), traced=True) for name in names for seed in SOUND
        ]  # imports and compiled code
        guard()
        pipe.send(tuple(next((outcome for outcome in warm if outcome.kind != "result"), warm[0])))
        while True:
            name, seed = pipe.recv()
            pipe.send(tuple(judged(FORMATS[name], seed, emptied(folder))))
    except EOFError:
        return


def emptied(folder: Path) -> Path:
    """The folder without what the last case left."""
    if folder.exists() and any(folder.iterdir()):
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    return folder


def run(name: str, seeds: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
    """(seed, outcome) of every case of a format, in turn."""
    for _, seed, outcome in run_all({name: seeds}):
        yield seed, outcome


def run_all(seeds: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int, Outcome]]:
    """(format, seed, outcome) of every case of several formats, all in one process."""
    worker = Worker(list(seeds))
    try:
        for name, seed in ((name, seed) for name, wanted in seeds.items() for seed in wanted):
            yield name, seed, worker.judged(name, seed)
    finally:
        worker.stop()


def tallied(name: str, seeds: Sequence[int]) -> Tally:
    """All of them counted."""
    tally, start = Tally(), time.perf_counter()
    for seed, outcome in run(name, seeds):
        tally.add(seed, outcome)
    tally.seconds = time.perf_counter() - start
    return tally


def table(tallies: dict[str, Tally]) -> list[str]:
    """Markdown: a line for each format, and their sum."""
    lines = [f"| format | cases | {' | '.join(KINDS)} | seconds |", f"|---|{'---:|' * (len(KINDS) + 2)}"]
    total = Tally()
    for name, tally in tallies.items():
        lines.append(_line(name, tally))
        total.counts.update(tally.counts)
        total.seconds += tally.seconds
    return [*lines, _line("**all**", total)]


def _line(name: str, tally: Tally) -> str:
    counts = " | ".join(f"{tally.counts[kind]:,}" for kind in KINDS)
    return f"| {name} | {tally.counts.total():,} | {counts} | {tally.seconds:,.0f} |"


def save(path: Path, tallies: dict[str, Tally]) -> None:
    """What went wrong, by format and seed, as JSON: `--one FORMAT SEED` makes each of them again."""
    failures: dict[str, Any] = {
        name: {str(s): list(o) for s, o in t.bad.items()} for name, t in tallies.items() if t.bad
    }
    path.write_text(json.dumps(failures, indent=1))
