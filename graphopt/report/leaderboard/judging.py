"""Entries of the leaderboard, each answer priced again: a file's claims are only compared.

An entry is a folder of its problem's folder with an `entry.yaml`: `title`, `by`, `method`, `budget`, `hardware`, and
`costs`, the claimed cost of each instance. The answer to an instance is the file INSTANCE.npz or INSTANCE.json beside
it. Or `answers` names a stored study's pack, and `digests` has the digest of the answer in it.

Nothing out of an entry is imported or run: answers are arrays and numbers, and options are looked up by name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.graph import GraphError
from graphopt.core.utils.limits import MIB, read_bytes
from graphopt.core.utils.terminal import Bar, short
from graphopt.problems.cost_model import lack_of_memory
from graphopt.problems.problem import Decided, Solution
from graphopt.report.leaderboard.contests import (
    BoardInstance,
    Contest,
    answers_in,
    mapping,
    number,
    pack_of,
    read_yaml,
    text,
)
from graphopt.run.records.answer_file import load, match

ENTRY = "entry.yaml"
SAME = 1e-9  # relative: a claimed cost and the one found
WORDS = ("title", "by", "method", "budget", "hardware")
TEXT_BYTES = 64 * MIB
LONGEST = 500  # characters of a reason


@dataclass(frozen=True, slots=True)
class Score:
    """Of an entry on an instance. cost: None where the answer was refused or there is none; reason: why."""

    instance: str
    cost: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """name: of its folder; words: its own description; refusal: why none of it was read."""

    name: str
    words: Mapping[str, str]
    scores: tuple[Score, ...]
    refusal: str = ""

    def cost_of(self, instance: str) -> float | None:
        return next((score.cost for score in self.scores if score.instance == instance), None)

    @property
    def refusals(self) -> list[str]:
        """Parts that do not count, with the reason."""
        whole = [f"{self.name}: {self.refusal}"] if self.refusal else []
        return whole + [f"{self.name}, {s.instance}: {s.reason}" for s in self.scores if s.cost is None]


class Refused(Exception):
    """Why an answer does not count."""


def judged_entries(contest: Contest, root: Path) -> list[BoardEntry]:
    """All entries of a problem, by name."""
    folders = sorted(file.parent for file in contest.folder.glob(f"*/{ENTRY}"))
    with Bar(f"leaderboard {contest.name}", len(folders)) as bar:
        found = []
        for folder in folders:
            found.append(judged_entry(contest, folder, root))
            bar.step(folder.name)
    return found


def judged_entry(contest: Contest, folder: Path, root: Path) -> BoardEntry:
    """One entry. Unreadable ones are refused with the reason; others go on."""
    try:
        return _judged(contest, folder, root)
    except Exception as error:  # a folder may hold anything
        return BoardEntry(folder.name, {}, (), _reason(error, folder))


def _reason(error: Exception, place: Path) -> str:
    """The message of an exception about a file or a folder, without its path."""
    foreseen = isinstance(error, Refused | UserError | GraphError)
    said = str(error) if foreseen else f"{type(error).__name__}: {error}"
    return said.replace(f"{place}", place.name)[:LONGEST]


def _judged(contest: Contest, folder: Path, root: Path) -> BoardEntry:
    """Raises UserError, and any other exception by odd files."""
    if folder.resolve().parent != contest.folder.resolve():
        raise Unreadable(f"{folder} is a link: an entry lies in its problem's folder")
    source = _own(folder / ENTRY)
    said = mapping(read_yaml(source), str(source))
    words = {key: text(said, key, str(source)) for key in WORDS}
    claims = mapping(said.get("costs"), f"costs of {source}")
    known = {instance.name for instance in contest.instances} | {*contest.absent}
    for name in claims:
        if name not in known:
            raise Unreadable(f"{source}: there is no instance {short(name)[:80]!r}")
    places = {file.stem: file for suffix in (".json", ".npz") for file in folder.glob(f"*{suffix}")}
    if "answers" in said:
        pack = pack_of(said, source, root)
        places = {**answers_in(pack, said.get("digests"), f"digests of {source}"), **places}
    scores = [_score(instance, places.get(instance.name), claims.get(instance.name)) for instance in contest.instances]
    return BoardEntry(folder.name, words, tuple(scores))


def _own(file: Path) -> Path:
    """A file of an entry, which is no link to another place. Raises Unreadable."""
    if file.is_symlink():
        raise Unreadable(f"{file} is a link: an entry's files lie in its folder")
    return file


def _score(instance: BoardInstance, place: Path | None, claim: Any) -> Score:
    if place is None:
        return Score(instance.name, None, "no answer" if claim is None else "a cost is claimed, and there is no answer")
    try:
        return Score(instance.name, _price(instance, _own(place), claim), "")
    except Exception as error:  # a file may hold anything; whatever is wrong with one, the others are priced
        return Score(instance.name, None, f"{place.name}: {_reason(error, place)}")


def _price(instance: BoardInstance, place: Path, claim: Any) -> float:
    """The cost of an answer. Raises Refused, UserError."""
    decided, claims = _read(instance, place)
    decided.must_fit(instance.graph, instance.task, place.name)
    differs = decided.departs(instance.original, instance.task, instance.equality)  # of programs
    if differs:
        raise Refused(differs)
    solution = Solution(instance.graph, instance.task, decided)
    cost = solution.price(instance.cost).cost
    wrong = solution.violations()
    if wrong:
        raise Refused(wrong[0])
    if not math.isfinite(cost):
        why = lack_of_memory(solution.plans, instance.cost, instance.task.machine)
        raise Refused(why or "it does not fit into memory")
    claimed = number(claim)
    if claimed is None:
        raise Refused("entry.yaml claims no cost for it")
    for said, where in ((claimed, "entry.yaml claims"), *((value, "the file claims") for value in claims)):
        if not math.isclose(said, cost, rel_tol=SAME):
            raise Refused(f"{where} a cost of {said!r}, and it costs {cost!r}")
    return cost


def _read(instance: BoardInstance, place: Path) -> tuple[Decided, list[float]]:
    """(the decision of a file, its claimed costs)."""
    kind: type[Decided] = instance.task.decided
    if place.suffix == ".json":
        decided, claims = kind.from_text(read_bytes(place, TEXT_BYTES), place.name)
        return decided, list(claims)
    decided = load(place)
    match(decided, instance.graph, place.name)
    if not isinstance(decided, kind):
        raise Refused(f"it is an answer of another kind than {kind.format!r}")
    return decided, [decided.prices["judged"]]
