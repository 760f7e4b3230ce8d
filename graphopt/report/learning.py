"""Does learning pay? Each learned method against the best method that learns nothing, at the same budget, from stored
studies: `graphopt report results --learning`. conf/learning.yaml says which; graphopt/report/figures.py explains its
words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from graphopt import CONF
from graphopt.core.errors import UserError
from graphopt.report.figures import Figure, Row, exact, figures, select
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.report.tables.table import Table, changes

FILE = CONF / "learning.yaml"
NOTE = (
    "gain: by how many percent the learned method's answers are faster, or smaller, than those of the best method "
    "without learning at the same budget; training: the same over the learner's own search with its network untrained, "
    "off, or replaced by an analytic model. In brackets 95 % intervals over families of graphs and seeds. A star: no "
    "design was chosen after a look at these graphs."
)


@dataclass(frozen=True, slots=True)
class LearnedGain:
    """One learner on one problem at one budget; gains in percent, None where nothing was run to compare with."""

    problem: str
    method: str
    study: str
    budget: str
    graphs: int
    trainings: str
    blind: bool
    best: str  # the unlearned method that is hardest to beat
    gain: Figure | None  # the learned method over that
    training: Figure | None  # over itself untrained
    untrained: Figure | None  # itself untrained over the best unlearned method

    @property
    def verdict(self) -> str:
        """In words. Where the best unlearned method was not run, training alone is judged."""
        judged, trained = self.gain or self.training, self.training
        if judged is None:
            return "not known"
        if judged.high < 0:
            return "no: behind"
        if judged.low <= 0:
            return "not shown"
        return "yes" if trained is None or trained.low > 0 else "yes, but training is not shown to matter"


@lru_cache(maxsize=1)
def learning_lines(place: Path) -> tuple[LearnedGain, ...]:
    """Of all entries whose studies lie in a folder, by folders' names. Raises UserError where there is none."""
    entries = yaml.safe_load(FILE.read_text())
    found = [line for entry in entries for line in _lines(entry, place)]
    if not found:
        raise UserError(f"{place} holds none of the studies that {FILE.name} names, such as {entries[0]['study']}")
    return tuple(found)


def _lines(entry: Mapping[str, Any], place: Path) -> Iterator[LearnedGain]:
    studies = [entry["study"]] if isinstance(entry["study"], str) else entry["study"]
    if not all((place / study).is_dir() for study in studies):
        return
    rows = [row for study in studies for row in _rows(place / study)]
    learned, untrained, traced = entry["learned"], entry.get("untrained"), entry.get("price") == "trace"
    asked = {"untrained": (learned, untrained), **{peer: (learned, peer) for peer in entry["unlearned"]}}
    asked |= {f"untrained/{peer}": (untrained, peer) for peer in entry["unlearned"]}
    specs = [{"name": f"{name}/{evals}", "ours": ours, "over": over, "at": evals,
              "evals": "last" if traced else [evals]}  # of a trace one row has all budgets
             for evals in entry["evals"] for name, (ours, over) in asked.items() if ours and over]  # fmt: skip
    found = {each.name: each for each in figures({**entry, "figures": specs}, rows)}
    at = {} if traced else {"evals_cap": entry["evals"]}
    own = select(select(select(rows, entry.get("where", {})), learned), at)
    graphs = len({row["graph"] for row in own})
    for evals in entry["evals"]:
        over = {peer: found[f"{peer}/{evals}"] for peer in entry["unlearned"] if f"{peer}/{evals}" in found}
        best = min(over, key=lambda peer: over[peer].value, default="")
        itself = exact("", 0) if best and best == untrained else found.get(f"untrained/{best}/{evals}")
        yield LearnedGain(
            entry["problem"], entry["method"], studies[0], f"{evals:,}", graphs, str(entry["trainings"]),
            entry.get("blind", False), best, over.get(best), found.get(f"untrained/{evals}"), itself,
        )  # fmt: skip


@lru_cache(maxsize=2)
def _rows(study: Path) -> list[Row]:
    return [row for row in read_rows(row_files(study))[0] if row.get("status") == "ok"]


def learning_table(lines: Sequence[LearnedGain]) -> Table:
    """The lines in the order of the file; a problem and a method stand once."""
    keys = [(line.problem, line.method) for line in lines]
    rows = [
        [f"{line.problem}{'*' if line.blind else ''} ({line.graphs})", line.method, line.best, line.study, line.budget,
         _said(line.gain), _said(line.training), line.trainings, line.verdict]
        for line in lines
    ]  # fmt: skip
    title = "Does learning pay? Gain over the best method without learning, %"
    columns = ["problem (graphs)", "learned", "best without learning", "study", "evaluations", "gain %", "training %",
               "trainings", "does it pay?"]  # fmt: skip
    shown = {(row, 5) for row, line in enumerate(lines) if line.gain is not None and line.gain.low > 0}
    return Table(title, columns, rows, shown, changes(keys), left=4, note=NOTE, prose=True)


def _said(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    ends = f" [{figure.low:.1f}, {figure.high:.1f}]" if figure.low != figure.high else ""
    return f"{figure.value:+.1f}{ends}"
