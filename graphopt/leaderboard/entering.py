"""Makes an entry of a finished study: the answers of one algorithm to the instances of a problem."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from graphopt.errors import UserError, writing
from graphopt.leaderboard.contests import Contest
from graphopt.leaderboard.judging import ENTRY
from graphopt.records import packed
from graphopt.records.answer_file import copy
from graphopt.reporting.replay import decision_of
from graphopt.reporting.tables.read_rows import read_rows, row_files
from graphopt.utils.whole import whole_folder


def enter(
    contest: Contest, study: Path, target: Path, root: Path, *, algo: str, evals: int | None, seed: int
) -> list[str]:
    """Writes the entry; returns the names of the instances that it has answers to. Answers of a packed study
    below `results` are named, others are copied. Raises UserError."""
    read = [row for row in read_rows(row_files(study))[0] if row.get("status") == "ok"]
    rows = [row for row in read if _is(row, algo, evals, seed)]
    of = {str(row["graph_hash"]): row for row in rows}
    found = {i.name: of[i.graph.hash] for i in contest.instances if i.graph.hash in of}
    if not found:
        held = ", ".join(sorted({str(row["algo"]) for row in read})) or "nobody"
        raise UserError(f"{study} holds no answer of {algo} to an instance of {contest.name}, whose graphs are of "
                        f"dataset={' or '.join(contest.datasets)}; it holds those of {held}")  # fmt: skip
    if target.exists():
        raise UserError(f"{target} exists: move it away, or give another name")
    with writing(target), whole_folder(target.absolute()) as folder:
        costs = {name: float(row["judged"]) for name, row in found.items()}
        words = {"title": algo, "by": os.environ.get("USER") or "unknown", "method": f"algo={algo}",
                 "budget": _budget(found.values()), "hardware": "not said"}  # fmt: skip
        places = {name: decision_of(row) for name, row in found.items()}
        (folder / ENTRY).write_text(yaml.safe_dump({**words, "costs": costs, **_answers(places, folder, root)},
                                                   sort_keys=False, width=110))  # fmt: skip
    return list(found)


def _is(row: Mapping[str, Any], algo: str, evals: int | None, seed: int) -> bool:
    return row.get("algo") == algo and row.get("seed") == seed and evals in (None, row.get("evals_cap"))


def _budget(rows: Any) -> str:
    rows = list(rows)
    seconds = max(float(row["seconds"]) for row in rows)
    return f"at most {max(int(row['evals']) for row in rows):,} evaluations and {seconds:.3g} s an instance"


def _answers(places: Mapping[str, Path], folder: Path, root: Path) -> dict[str, Any]:
    packs = {place[0] if (place := packed.place_of(path)) else None for path in places.values()}
    pack = packs.pop() if len(packs) == 1 else None
    if pack is not None and pack.resolve().is_relative_to((root / "results").resolve()):
        digests = {name: path.name.partition("#")[2] for name, path in places.items()}
        return {"answers": str(pack.resolve().relative_to(root.resolve())), "digests": digests}
    for name, path in places.items():
        copy(path, folder / f"{name}.npz")
    return {}
