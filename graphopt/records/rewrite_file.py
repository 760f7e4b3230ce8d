"""Files of rewriting answers, beside decision files and under the same rules: small, portable, replayable.

The file is an npz without pickles:

- `header`: JSON as bytes, as of decision files, and `rules`: the names of the rules that were applied, in order.
- `original`, `best`: JSON as bytes, the programs (`graphopt.rewrite.ir.program_files`), without the values of weights.
- `trace`: float64 [S, 3]: evaluations, seconds, best cost, one line per improvement.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import UserError
from graphopt.records import answer_format, decision_file
from graphopt.records.answer_format import DecisionError
from graphopt.rewrite.ir.program_files import from_json, to_json
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.rewrite_problem import RewriteProblem

FORMAT = "graphopt rewriting 1"


@dataclass(frozen=True, eq=False)
class RewriteFile:
    """The contents of a file of a rewriting answer. The programs share their terms."""

    header: dict[str, Any]
    original: Program
    best: Program
    trace: NDArray[np.float64]  # [S, 3] evaluations, seconds, best cost

    @property
    def prices(self) -> dict[str, float]:
        """initial, searched, judged, noise."""
        return {key: float(value) for key, value in self.header["prices"].items()}

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules that were applied, in order."""
        return tuple(self.header["rules"])


def save(path: Path | str, *, problem: RewriteProblem, judged: float, row: Mapping[str, Any],
         config: Mapping[str, Any]) -> None:  # fmt: skip
    """Writes the best program of a solved problem; arguments as of `graphopt.records.decision_file.save`."""
    common = decision_file.header_of(problem, problem.graph, judged, row, config)
    header = {"format": FORMAT, "rules": list(problem.best_rules), **common}
    programs = {"original": problem.initial, "best": problem.program()}
    decision_file.write_arrays(path, {
        "header": decision_file.json_bytes(header), "trace": decision_file.trace_of(problem),
        **{name: decision_file.json_bytes(to_json(program)) for name, program in programs.items()},
    })  # fmt: skip


def load(path: Path | str) -> RewriteFile:
    """Reads the file. Raises DecisionError when it is missing, damaged or of another format."""
    source = Path(path)
    header, arrays = answer_format.read_answer(source)
    if header.get("format") != FORMAT:
        raise DecisionError(f"{source} has format {str(header.get('format'))[:40]!r}, this reads {FORMAT!r}")
    try:
        answer_format.rule_names(header)
        original = from_json(answer_format.read_text(arrays, "original"))
        best = from_json(answer_format.read_text(arrays, "best"), original.terms)
        return RewriteFile(header, original, best, answer_format.trace(arrays))
    except UserError as error:
        raise answer_format.damaged(source, error) from None


def is_rewriting(path: Path | str) -> bool:
    """Whether the file holds a rewriting answer."""
    return bool(answer_format.read_answer(Path(path))[0].get("format") == FORMAT)
