"""Runs a study again and again through accidents, until it is done, and compares its rows with those of one that
nothing disturbed: `python tests/kills/accidents.py [--study NAME] [--kills 20] [--seed 0]`.

A run is a fork of this process, which has everything loaded. Its writes (files opened for writing, and renamed, below
the results and the cache folder) are counted; an accident comes at one of them, or after so many seconds.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphopt import command
from graphopt import rows as rows_module
from graphopt.costs import op_process
from graphopt.costs.op_table import OpTable
from graphopt.rows import Row, read

HERE = Path(__file__).resolve().parent
SMALL = ["dataset=synthetic", "dataset.families=[layered]", "dataset.ops=14", "dataset.test=3", "logger=csv"]
STUDIES = {
    "search": ["algo=local", "compare=[random,scan]", "budget.evals=[5,40]", *SMALL],
    "learner": [
        *("algo=laf", "dataset.train=2", "dataset.val=1", "budget.evals=[0,20]", *SMALL, "trainer.steps=6"),
        *("trainer.val_every=2", "trainer.save_every=2", "trainer.val_evals=2", "algo.collection.sweeps=1"),
        *("algo.collection.workers=1", "encoder.width=8"),
    ],
    "profiled": [
        *("task=rewrite", "algo=rewrite_greedy", "cost=profiled", "cost@judge=profiled", "dataset=rewrite_models"),
        *("dataset.test=[{model: bert, blocks: 1, width: 8, heads: 2, seq: 4}]", "budget.evals=[20,60]", "logger=none"),
    ],
}  # fmt: skip
VARYING = ("seconds", "train_seconds", "commit")  # fields that the clock or the checkout decide
FULL = "No space left on device"


@dataclass(frozen=True)
class Accident:
    """kill: this process, by SIGKILL; half: the same once half of a line is written; full: the disk takes nothing more;
    worker: SIGKILL for the measuring process once it was asked. write: number of the write (of the question), from 1;
    0: none, but after `seconds`."""

    kind: Literal["none", "kill", "half", "full", "worker"]
    write: int = 0
    seconds: float = 0.0


class Study:
    """One study below a folder of its own."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place = name, place
        place.mkdir(parents=True, exist_ok=True)

    def run(self, accident: Accident) -> int:
        """The exit code; below 0 the signal that ended it. What it printed is in said.txt."""
        child = os.fork()
        if child == 0:
            self._become(accident)
        if accident.kind == "kill" and not accident.write:
            time.sleep(accident.seconds)
            os.kill(child, signal.SIGKILL)  # of one that has ended too: it is not waited for yet
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @property
    def said(self) -> str:
        return (self.place / "said.txt").read_text()

    def writes(self) -> int:
        """How many the last run had, if it came to its end."""
        return int((self.place / "writes.txt").read_text())

    def rows(self) -> list[Row]:
        """Without what varies, in an order that does not depend on it."""
        found = [_timeless(row) for file in self.place.rglob("rows.jsonl") for row in read(file)]
        return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))

    def _become(self, accident: Accident) -> None:
        code = 70
        try:
            out = os.open(self.place / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            os.environ["GRAPHOPT_CACHE"] = str(self.place / "cache")
            os.environ["PYTHONPATH"] = str(HERE)
            op_process.WORKER = "stub_worker"
            happen = _Happening(accident, self.place)
            sys.argv = ["run.py", f"output_dir={self.place / 'out'}", *STUDIES[self.name]]
            try:
                command.main()
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
            happen.over = True
            (self.place / "writes.txt").write_text(str(happen.count))
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)


class _Happening:
    """Counts writes, and lets the accident happen."""

    def __init__(self, accident: Accident, place: Path) -> None:
        self.accident, self.count, self.asked, self.over = accident, 0, 0, False
        self._below = (str(place / "out"), str(place / "cache"))
        sys.addaudithook(self._audit)
        self._half_lines()
        self._killed_worker()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.over or event not in ("open", "os.rename"):
            return
        path = os.fspath(arguments[1 if event == "os.rename" else 0]) if not isinstance(arguments[0], int) else ""
        changes = event == "os.rename" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not changes or not str(path).startswith(self._below):
            return
        self.count += 1
        if self.count == self.accident.write and self.accident.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.count >= self.accident.write and self.accident.kind == "full":
            raise OSError(28, FULL)

    def _half_lines(self) -> None:
        def write(path: Path, mode: str, text: str) -> None:
            self._perhaps_half(path, mode, text)
            whole(path, mode, text)

        def add(table: OpTable, line: Any) -> None:
            self._perhaps_half(table.path, "a", json.dumps(line))
            added(table, line)

        whole, added = rows_module._write, OpTable.add
        rows_module._write, OpTable.add = write, add  # type: ignore[assignment, method-assign]

    def _perhaps_half(self, path: Path, mode: str, text: str) -> None:
        if self.accident.kind == "half" and self.count + 1 >= self.accident.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode) as file:
                file.write(text[: len(text) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    def _killed_worker(self) -> None:
        send = op_process._Worker._send

        def sent(worker: Any, text: bytes, deadline: float) -> None:
            self.asked += 1
            if self.accident.kind == "worker" and self.asked == self.accident.write:
                os.kill(worker.process.pid, signal.SIGKILL)
            send(worker, text, deadline)

        op_process._Worker._send = sent  # type: ignore[method-assign]


def _timeless(row: Row) -> Row:
    curves = {key: [[step[0], step[-1]] for step in row[key]] for key in ("trace", "approach") if row.get(key)}
    return {**{key: value for key, value in row.items() if key not in VARYING}, **curves}


def accidents(rng: random.Random, writes: int, seconds: float, study: str) -> Iterator[Accident]:
    """Without end: at chosen writes, in the middle of lines, at any moment, and of the measuring process."""
    while True:
        yield Accident("kill", rng.randint(1, writes))
        yield Accident("half", rng.randint(1, writes))
        yield Accident("kill", seconds=rng.uniform(0.05, 1.0) * seconds)
        if study == "profiled":
            yield Accident("worker", rng.randint(1, 10))


def undisturbed(name: str, place: Path) -> tuple[list[Row], int, float]:
    """(rows, number of writes, seconds) of a run without accident."""
    study, begun = Study(name, place / "undisturbed"), time.monotonic()
    if study.run(Accident("none")) != 0:
        raise RuntimeError(study.said)
    return study.rows(), study.writes(), time.monotonic() - begun


def through_kills(name: str, kills: int, seed: int, place: Path) -> dict[str, int]:
    """Kills so often; a study that comes to its end is compared and begun anew. Returns what was done how often.
    Raises AssertionError where rows differ, or a restarted run does not go on."""
    rows, writes, seconds = undisturbed(name, place)
    done, number = Counter[str](), 0
    study = Study(name, place / "0")
    for accident in accidents(random.Random(seed), writes, seconds, name):
        code = study.run(accident)
        assert code in (0, -signal.SIGKILL), f"{accident}: {code}, {study.said}"
        done["kills"] += code != 0 or accident.kind == "worker"
        if code == 0 or done["kills"] >= kills:
            assert study.run(Accident("none")) == 0, study.said
            assert study.rows() == rows, f"after {accident}: {study.rows()} instead of {rows}"
            assert study.run(Accident("none")) == 0 and "is finished" in study.said, study.said
            done["studies"], number = done["studies"] + 1, number + 1
            shutil.rmtree(study.place)
            study = Study(name, place / str(number))
        if done["kills"] >= kills:
            return {**done, "rows": done["studies"] * len(rows), "writes": writes}
    raise AssertionError


def through_full_disks(name: str, place: Path, every: int = 1) -> dict[str, int]:
    """The disk is full from the n-th write on, for every (or every so many) n: a sentence, and the same command goes on
    when there is room."""
    rows, writes, _ = undisturbed(name, place)
    full = 0
    for write in range(1, writes + 1, every):
        study = Study(name, place / f"full{write}")
        code = study.run(Accident("full", write))
        said = study.said
        assert "Traceback" not in said and (code == 0 or (code == 1 and FULL in said)), f"write {write}: {code}, {said}"
        full += code == 1
        assert study.run(Accident("none")) == 0, f"write {write}: {study.said}"
        assert study.rows() == rows, f"write {write}: {study.rows()} instead of {rows}"
        shutil.rmtree(study.place)
    return {"full disks": full, "writes": writes, "rows": full * len(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", choices=sorted(STUDIES), action="append")
    parser.add_argument("--kills", type=int, default=20, help="of each study")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full-every", type=int, default=0, metavar="N", help="also a full disk at every N-th write")
    args = parser.parse_args()
    for name in args.study or STUDIES:
        with tempfile.TemporaryDirectory() as place:
            found = through_kills(name, args.kills, args.seed, Path(place))
            full = through_full_disks(name, Path(place) / "full", args.full_every) if args.full_every else {}
            print(json.dumps({"study": name, **found, **{f"full/{k}": v for k, v in full.items()}}), flush=True)


if __name__ == "__main__":
    main()
