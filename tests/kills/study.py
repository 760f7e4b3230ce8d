"""A small study that runs in forks of this process, and the accident that may happen to a run."""

import errno
import hashlib
import json
import os
import signal
import sys
import time
from csv import reader
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numba

from graphopt.__main__ import run
from graphopt.core.cli import composed
from graphopt.core.utils import process
from graphopt.hardware.measure import pool
from graphopt.run.config.stored import words
from graphopt.run.records.answer_file import read_answer
from graphopt.run.records.rows import Row, read

from .watching import Kind, watch

HERE = Path(__file__).resolve().parent
SMALL = ["dataset=synthetic", "dataset.families=[layered]", "dataset.ops=14"]
STUDIES = {
    "search": ["algo=local", "compare=[random,scan]", "budget.evals=[5,40]", "dataset.test=1", "logger=csv", *SMALL],
    "learner": [
        *("algo=laf", "dataset.train=1", "dataset.val=1", "dataset.test=1", "budget.evals=[0,20]", "logger=csv"),
        *("trainer.steps=6", "trainer.val_every=2", "trainer.save_every=3", "trainer.val_evals=2", *SMALL),
        *("trainer.log_every_n_steps=1", "algo.collection.sweeps=1", "algo.collection.chains=[random]"),
        *("algo.collection.workers=1", "encoder.width=8"),
    ],
    "profiled": [
        *("task=rewrite", "algo=rewrite_greedy", "cost=profiled", "cost@judge=profiled", "dataset=rewrite_models"),
        *("dataset.test=[{model: bert, blocks: 1, width: 8, heads: 2, seq: 4}]", "budget.evals=[20,60]", "logger=none"),
    ],
}  # fmt: skip
VARYING = ("seconds", "train_seconds", "commit")  # fields that the clock or the checkout decide
FULL = os.strerror(errno.ENOSPC)
PLACES = {
    ".locks/": "lock", "config.yaml": "configuration", "/graphs/": "graph", "/decisions/": "decision",
    "/.rows.jsonl.": "row rewrite", "rows.jsonl": "row", "/ckpt/": "checkpoint", "metrics.": "metrics",
    "finished.": "finished", "/profiled/": "op table", "/advantages/": "sample",
}  # fmt: skip # a part of the path -> what is written there; the first one counts


@dataclass(frozen=True)
class Accident:
    """kill: this process, by SIGKILL, before a write; half: the same once half of the bytes are written; full: half of
    them are, and from then on the disk takes nothing; worker: SIGKILL for the measuring process before it is asked;
    asked: just after. write: number of the write at `place` (anywhere: ""), or of the request, from 1; 0: none, but
    after `seconds`."""

    kind: Literal["none", "kill", "half", "full", "worker", "asked"]
    write: int = 0
    place: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """What a study leaves, without what varies."""

    rows: list[Row]
    answers: list[tuple[str, str]]  # (file, digest of its arrays)
    curves: list[tuple[str, ...]]  # points of metrics.csv


class Study:
    """One study below a folder of its own."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place = name, place
        place.mkdir(parents=True, exist_ok=True)
        _load(name)

    def run(self, accident: Accident) -> int:
        """The exit code; below 0 the signal that ended it. What it printed is in said.txt."""
        (self.place / "happened").unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._become(accident)
        if accident.kind == "kill" and not accident.write:
            time.sleep(accident.seconds)
            os.kill(child, signal.SIGKILL)  # of one that has ended too: it is not waited for yet
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @property
    def happened(self) -> bool:
        """Whether the last run came to its accident, if that was to be at a write or a request."""
        return (self.place / "happened").exists()

    @property
    def said(self) -> str:
        return (self.place / "said.txt").read_text()

    def writes(self) -> list[tuple[str, Kind]]:
        """(place, kind) of all that the last run had, if it came to its end."""
        return [(place, kind) for place, kind in json.loads((self.place / "writes.json").read_text())]

    def result(self) -> Result:
        """In an order that does not depend on what varies."""
        cells = [file.parent for file in self.place.rglob("rows.jsonl")]
        rows = [_timeless(row) for cell in cells for row in read(cell / "rows.jsonl")]
        answers = [(file.name, _digest(file)) for cell in cells for file in sorted(cell.glob("decisions/[!.]*"))]
        curves = [tuple(point) for cell in cells for file in cell.glob("metrics.csv") for point in _points(file)]
        return Result(sorted(rows, key=lambda row: json.dumps(row, sort_keys=True)), answers, curves)

    def _become(self, accident: Accident) -> None:
        code = 70
        try:
            out = os.open(self.place / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            os.environ["GRAPHOPT_CACHE"] = str(self.place / "cache")
            os.environ["PYTHONPATH"] = str(HERE)
            pool.WORKER = "stub_worker"
            happen = _Happening(accident, self.place)
            sys.argv = ["run.py", f"output_dir={self.place / 'out'}", "compare=[]", *STUDIES[self.name]]
            try:
                run()
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
            (self.place / "writes.json").write_text(json.dumps(happen.writes))
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)


class _Happening:
    """Counts writes, and lets the accident happen."""

    def __init__(self, accident: Accident, place: Path) -> None:
        self.accident, self.asked = accident, 0
        self.writes: list[tuple[str, Kind]] = []
        self._place, self._begun = place, False
        watch((place / "out", place / "cache"), self._notice)
        self._kill_workers()

    def _notice(self, kind: Kind, path: str, size: int) -> int:
        place = next((name for part, name in PLACES.items() if part in path), "folder" if kind == "mkdir" else path)
        self.writes.append((place, kind))
        due = self.accident.write and self.accident.place in ("", place)
        count = sum(self.accident.place in ("", other) for other, _ in self.writes)
        if not self._begun and not (due and count >= self.accident.write):
            return size
        if self.accident.kind == "kill" or (self.accident.kind == "half" and self._begun):
            self._kill(os.getpid())
        if self.accident.kind == "full" and (self._begun or kind != "bytes"):
            self._note()
            raise OSError(errno.ENOSPC, FULL, *([] if kind == "bytes" else [path]))
        if self.accident.kind in ("half", "full") and kind == "bytes":
            self._begun = True  # the rest comes at once, and meets with the accident
            return size // 2
        return size

    def _kill_workers(self) -> None:
        send = process._Worker._send

        def sent(worker: Any, text: bytes, deadline: float) -> None:
            self.asked += 1
            due = self.asked == self.accident.write
            if due and self.accident.kind == "worker":
                self._kill(worker.process.pid)
            send(worker, text, deadline)
            if due and self.accident.kind == "asked":
                self._kill(worker.process.pid)

        process._Worker._send = sent  # type: ignore[method-assign]

    def _kill(self, process: int) -> None:
        self._note()
        os.kill(process, signal.SIGKILL)

    def _note(self) -> None:
        self._begun = True
        os.close(os.open(self._place / "happened", os.O_WRONLY | os.O_CREAT))


@cache
def _load(name: str) -> None:
    """What takes long and is the same for all forks: modules that a configuration names, options, Numba itself."""
    for group, node in composed(STUDIES[name]).items():
        if isinstance(node, dict) and "_target_" in node:
            import_module(str(node["_target_"]).rpartition(".")[0])
            words(group, node)
    numba.njit(lambda number: number + 1)(1)


def _timeless(row: Row) -> Row:
    curves = {key: [[step[0], step[-1]] for step in row[key]] for key in ("trace", "approach") if row.get(key)}
    return {**{key: value for key, value in row.items() if key not in VARYING}, **curves}


def _digest(answer: Path) -> str:
    """Of what the file says about the graph: all arrays but the trace, which has seconds."""
    arrays = sorted((name, array.tobytes()) for name, array in read_answer(answer)[1].items() if name != "trace")
    return hashlib.sha256(repr(arrays).encode()).hexdigest()


def _points(file: Path) -> list[list[str]]:
    with file.open(newline="") as lines:
        return list(reader(lines))
