"""Prices stored decisions again, and compares with their own prices and with the rows that claim them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.graph import GraphError
from graphopt.report.answer import EXACT, PRICES, Answer, Mismatch, agree
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.run.records import packed

Claims = dict[Path, list[Mapping[str, Any]]]  # answer -> the rows whose it is


def replay_all(claims: Claims, unanswered: Iterable[Mismatch]) -> Iterator[tuple[Path, list[Mismatch]]]:
    """(answer or rows file, mismatches) of claims of `claims_of`.

    A row must have an answer, and its prices must be those of the answer, which must come out again.
    """
    yield from ((wrong.path, [wrong]) for wrong in unanswered)
    for file, claiming in claims.items():
        yield file, _check_file(file, claiming)


def claims_of(place: Path) -> tuple[Claims, list[Mismatch]]:
    """(every answer at or below a place with the rows that claim it, those about one graph after each other, and the
    solved rows without an answer)."""
    rows = [row for row in read_rows(row_files(place))[0] if row.get("status", "ok") == "ok"]
    rows.sort(key=lambda row: str(row.get("graph_hash")))  # so that each graph is read once
    claims, unanswered = Claims(), []
    for row in rows:
        if row.get("decision"):
            claims.setdefault(decision_of(row), []).append(row)
        else:
            label = f"{row.get('algo')} on {row.get('graph')}, seed {row.get('seed')}"
            unanswered.append(Mismatch(Path(row["_file"]), f"row without a decision file: {label}"))
    for file in _answers_below(place) if place.is_dir() else ():
        claims.setdefault(file, [])
    return claims, unanswered


def _answers_below(place: Path) -> Iterator[Path]:
    yield from (file.resolve() for file in sorted(place.rglob("decisions/*.npz")))
    for pack in (file.resolve() for file in sorted(place.rglob(packed.NAME))):
        try:
            found = [*packed.digests(pack)]
        except Unreadable:
            found = [""]  # the pack as an answer, whose error says why
        yield from (packed.path_of(pack, digest) for digest in found)


def decision_of(row: Mapping[str, Any]) -> Path:
    """The decision file of a row: below the row's own folder, wherever the row says it is."""
    cell = Path(row["_file"]).parent.resolve()
    file = (cell / str(row["decision"])).resolve()
    return file if file.is_relative_to(cell) else cell / "decisions" / file.name


def _check_file(file: Path, rows: list[Mapping[str, Any]]) -> list[Mismatch]:
    try:
        answer = Answer.load(file)
        stored = answer.decided.prices
        false = [
            Mismatch(file, f"{key}: the row says {row[key]!r}, the decision {stored[key]!r}")
            for row in rows
            for key in PRICES
            if row.get(key) is not None and not agree(float(row[key]), stored[key], EXACT)
        ]
        return false + answer.check()
    except Exception as error:  # a file may hold anything; whatever is wrong with one, the others still replay
        foreseen = isinstance(error, UserError | GraphError)
        return [Mismatch(file, str(error) if foreseen else f"{type(error).__name__}: {error}"[:300])]
