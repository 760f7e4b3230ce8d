"""`Profiled`: TASO's cost model. Every distinct op is measured alone on this machine, once; a program costs their sum.

What was measured is kept in a table on disk, one JSON line per op and environment (library, device, threads): median
and spread of several blocks. A table that travels with results makes their prices replayable on any machine.
"""

import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from graphopt import cache_dir
from graphopt.costs.additive import Additive, input_types, is_free
from graphopt.errors import UserError
from graphopt.measure.op_process import Measuring, OpProcess
from graphopt.measure.op_table import Line, OpTable
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.ir.vocabulary import Operation, TensorType, text_of


class Profiled(Additive):
    """table: file of measured ops; null: profiled/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt.

    environment: null: this machine's, and ops that the table lacks are measured here. Otherwise only the table's lines
    of that environment count and nothing is measured: so stored answers are priced again. An opaque op costs nothing:
    rewriting never changes it.
    """

    def __init__(self, *, name: str, table: str | None, environment: str | None, measuring: Measuring) -> None:
        self.name = name
        self.environment = environment or environment_here(measuring)
        self._measures = environment is None
        self._table = OpTable(cache_dir() / "profiled" / "ops.jsonl" if table is None else Path(table))
        self._process = OpProcess(measuring)

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.environment}

    @staticmethod
    def settled(node: Mapping[str, object], near: Path) -> Mapping[str, object]:
        """Prices come from lines that are there: the table is looked for, the environment must be stored."""
        if not isinstance(node.get("environment"), str):
            raise UserError(f"{near} does not say in which environment its ops were measured: solve the graph again")
        return {**node, "table": str(found_table(node.get("table"), near))}

    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        return 0.0 if operation.name == "opaque" else float(self.measured(operation, inputs)["seconds"])

    def noise_of(self, program: Program) -> tuple[float, int]:
        """Errors of different ops are independent; one that runs several times was measured once, so its errors add up.
        What one process measures misses how processes differ: it is a lower bound."""
        terms, runs = program.terms, dict[str, list[Line]]()
        for term in program.live():
            if not is_free(terms, term) and terms.operation[term].name != "opaque":
                line = self.measured(terms.operation[term], input_types(terms, term))
                runs.setdefault(line["op"], []).append(line)
        seconds = sum(len(same) * same[0]["seconds"] for same in runs.values())
        error = math.hypot(*(len(same) * same[0]["seconds"] * standard_error(same[0]) for same in runs.values()))
        return error / seconds if seconds else 0.0, sum(int(same[0].get("blocks", 1)) for same in runs.values())

    def measured(self, operation: Operation, inputs: Sequence[TensorType]) -> Line:
        """The table's line of an op: seconds, spread (relative), blocks. Measures it where it is not known yet."""
        op = signature_of(operation, inputs)
        return self._table.find(op, self.environment) or self._measure(op, operation, inputs)

    def _measure(self, op: str, operation: Operation, inputs: Sequence[TensorType]) -> Line:
        if not self._measures:
            raise UserError(self._lack(op))
        with self._table.turn():
            known = self._table.find(op, self.environment)  # by another process meanwhile
            if known is None:
                request = {"name": operation.name, "params": operation.params, "inputs": list(inputs)}
                known = {"op": op, "environment": self.environment, **self._process.ask(op, request)}
                self._table.add(known)
            return known

    def _lack(self, op: str) -> str:
        there = self._table.environments()
        holds = f"it has those of {'; '.join(there)}" if there else "it is empty or missing"
        return (
            f"{self._table.path} has no line of the op {op!r} in the environment {self.environment!r}: {holds}. "
            f"Run where the table lies, bring it there, or set {self.name}'s environment=null to measure here"
        )


def standard_error(line: Line) -> float:
    """Relative, of a median of blocks whose middle half spreads over `spread` of it, the blocks being normal: their
    standard deviation is spread / 1.349, that of their median 1.253 times as large over the root of their number."""
    return float(1.253 / 1.349 * line.get("spread", 0.0) / math.sqrt(line.get("blocks", 1)))


def found_table(stored: object, near: Path) -> Path:
    """The table that a file was priced by, which is only read: one of that name in a folder above the file, or the path
    below this installation; a file without one was priced by this user's own."""
    if not isinstance(stored, str):
        return cache_dir() / "profiled" / "ops.jsonl"
    places = [folder / Path(stored).name for folder in near.resolve().parents]
    if not Path(stored).is_absolute() and ".." not in Path(stored).parts:
        places.append(Path(__file__).resolve().parents[2] / stored)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UserError(f"{near} was priced by a table of measured ops, {Path(stored).name!r}, which is in no folder "
                        "above it: bring it there")  # fmt: skip
    return found


def environment_here(measuring: Measuring) -> str:
    """What a measurement depends on besides the op."""
    where = processor() if measuring.device == "cpu" else "cuda"
    return f"torch {version('torch')}, {where}, {measuring.device}, {measuring.threads} threads"


def processor() -> str:
    """The processor's name, as Linux knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def signature_of(operation: Operation, inputs: Sequence[TensorType]) -> str:
    """An op and what it reads, e.g. `conv [1,1] [0,0,0,0] none | float32 [1,3,8,8] | float32 [4,3,1,1]`."""
    return " | ".join([str(operation), *(f"{t.dtype} {text_of(t.shape)}" for t in inputs)])
