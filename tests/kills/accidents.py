"""Series of accidents: studies are killed again and again until they are done, or meet a full disk at every write."""

import argparse
import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import graphopt.run.training.train  # noqa: F401 (loaded once, for all forks)

from .study import FULL, STUDIES, Accident, Result, Study
from .watching import Kind

REWRITE = "row rewrite"
QUESTIONS = 10  # of the measuring process; more than that are asked


@dataclass(frozen=True)
class Undisturbed:
    """What a run without accident leaves, its writes, and how long it takes."""

    result: Result
    writes: list[tuple[str, Kind]]
    seconds: float

    @staticmethod
    def of(name: str, place: Path) -> "Undisturbed":
        study, begun = Study(name, place / "undisturbed"), time.monotonic()
        if study.run(Accident("none")) != 0:
            raise RuntimeError(study.said)
        return Undisturbed(study.result(), study.writes(), time.monotonic() - begun)

    def count(self, place: str) -> int:
        return sum(place == other for other, _ in self.writes)

    def distinct(self) -> list[int]:
        """Numbers, from 1, of all writes but those amid the bytes of one file."""
        around = [None, *self.writes, None]
        return [i for i in range(1, len(around) - 1) if not around[i - 1] == around[i] == around[i + 1]]


class Series:
    """Accidents without end, in turns: two at chosen writes (before one or half-way through), one at any moment, one to
    the measuring process where there is one. A place is left for the next one once an accident came there."""

    def __init__(self, study: str, plain: Undisturbed, rng: random.Random) -> None:
        self._plain, self._rng = plain, rng
        others = sorted(
            {("half" if kind == "bytes" else "kill", place) for place, kind in plain.writes if place != "row"}
        )
        rng.shuffle(others)
        # Rows are only rewritten by a run that goes on: the accident before leaves some.
        self._places = deque([("kill", "row"), ("kill", REWRITE), *others, ("half", "row"), ("half", REWRITE)])
        self._turns = cycle([*("chosen", "chosen", "moment"), *(["worker"] if study == "profiled" else [])])
        self._workers = cycle(["worker", "asked"])

    def next(self) -> Accident:
        turn = next(self._turns)
        if turn == "moment":
            return Accident("kill", seconds=self._rng.uniform(0.05, 1.0) * self._plain.seconds)
        if turn == "worker":
            return Accident(next(self._workers), self._rng.randint(1, QUESTIONS))  # type: ignore[arg-type]
        kind, place = self._places[0]
        first = 3 if place == "row" else 1  # by then one row is whole
        return Accident(kind, self._rng.randint(first, max(first, self._plain.count(place) - 1)), place)  # type: ignore[arg-type]

    def over(self, accident: Accident, came: bool) -> None:
        """What became of an accident."""
        if accident.place and came:
            self._places.rotate(-1)
        elif accident.place == REWRITE:
            self._places.appendleft(("kill", "row"))


def through_kills(name: str, kills: int, seed: int, place: Path) -> dict[str, int]:
    """Kills so often; a study that comes to its end is compared and begun anew. Returns what was done how often.
    Raises AssertionError where something differs, or a restarted run does not go on."""
    plain, done = Undisturbed.of(name, place), Counter[str]()
    study, series, touched = Study(name, place / "0"), Series(name, plain, random.Random(seed)), False
    while done["kills"] < kills:
        accident = series.next()
        code = study.run(accident)
        assert code in (0, -signal.SIGKILL), f"{accident}: {code}, {study.said}"
        came = study.happened or code != 0
        series.over(accident, came)
        if came:
            touched = True
            done += Counter({"kills": 1, _kind(accident): 1})
        if touched and (code == 0 or done["kills"] == kills):
            _finish(study, plain, accident)
            assert study.run(Accident("none")) == 0 and "is finished" in study.said, study.said
            done += Counter(studies=1, rows=len(plain.result.rows))
        if code == 0:
            shutil.rmtree(study.place)
            study, touched = Study(name, study.place.with_name(str(int(study.place.name) + 1))), False
    return dict(done)


def _kind(accident: Accident) -> str:
    where = {"kill": accident.place or "any moment", "half": f"half {accident.place}"}
    return where.get(accident.kind, "worker")


def _finish(study: Study, plain: Undisturbed, after: Accident) -> None:
    """Runs it without accident and compares."""
    assert study.run(Accident("none")) == 0, f"after {after}: {study.said}"
    assert study.result() == plain.result, f"after {after}: {study.result()} instead of {plain.result}"
    assert not list(study.place.rglob(".*.part")), f"after {after}: parts are left"


def through_full_disks(name: str, place: Path, every: int = 1) -> dict[str, int]:
    """The disk is full from one write on, for every one (or every so many) of `Undisturbed.distinct`: one sentence, and
    the same command goes on when there is room. Returns how many at which place."""
    plain, full = Undisturbed.of(name, place), Counter[str]()
    for write in plain.distinct()[::every]:
        study, accident = Study(name, place / f"full{write}"), Accident("full", write)
        code, said = study.run(accident), study.said
        sentences = [line for line in said.splitlines() if FULL in line]
        assert study.happened and code == 1, f"{accident}: {code}, {said}"
        assert len(sentences) == 1 and sentences[0].startswith("cannot "), f"{accident}: {said}"
        assert said.endswith(f"{sentences[0]}\n") and "Traceback" not in said, f"{accident}: {said}"
        _finish(study, plain, accident)
        shutil.rmtree(study.place)
        full += Counter({"disks": 1, plain.writes[write - 1][0]: 1, "rows": len(plain.result.rows)})
    return dict(full)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--study", choices=sorted(STUDIES), action="append", help="this one only; may be repeated")
    parser.add_argument("--kills", type=int, default=20, help="of each study; default: 20")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full-every", type=int, default=0, metavar="N", help="also a full disk at every N-th write")
    args = parser.parse_args(arguments)
    for name in args.study or STUDIES:
        with tempfile.TemporaryDirectory() as place:
            kills = through_kills(name, args.kills, args.seed, Path(place)) if args.kills else {}
            full = through_full_disks(name, Path(place) / "full", args.full_every) if args.full_every else {}
        print(json.dumps({"study": name, "kills": kills, "full": full}), flush=True)
    return 0
