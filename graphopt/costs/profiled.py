"""`profiled`: sums of what ops cost alone, each measured once."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from graphopt import cache_dir
from graphopt.costs.additive import Additive, input_types, is_free
from graphopt.measure.price_table import Environment, Line, TableFile
from graphopt.measure.rounds import error_of_median
from graphopt.measure.service import Service
from graphopt.measure.target import Measuring, Target
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.ir.vocabulary import Operation, TensorType, text_of

OPS = Path("profiled") / "ops.jsonl"  # below the cache folder
OpsTable = Annotated[str | None, TableFile(usual=OPS)]


class Profiled(Additive):
    """TASO's cost model: every distinct op is measured alone on this machine, once, and a program costs their sum.

    table: file of measured ops; null: profiled/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt.

    environment: null: this machine's, and ops that the table lacks are measured here. Otherwise only the table's lines
    of that environment count and nothing is measured: so stored answers are priced again. An opaque op costs nothing:
    rewriting never changes it.
    """

    def __init__(self, *, name: str, table: OpsTable, environment: Environment, measuring: Measuring) -> None:
        self.name = name
        file = cache_dir() / OPS if table is None else Path(table)
        self.service = Service(measuring, table=file, environment=environment, name=name)

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.service.environment}

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
        payload = {"name": operation.name, "params": operation.params, "inputs": list(inputs)}
        return self.service.alone(Target("op", signature_of(operation, inputs), payload))


def standard_error(line: Line) -> float:
    """Relative, of a measured op."""
    return float(error_of_median(line.get("spread", 0.0), line.get("blocks", 1)))


def signature_of(operation: Operation, inputs: Sequence[TensorType]) -> str:
    """An op and what it reads, e.g. `conv [1,1] [0,0,0,0] none | float32 [1,3,8,8] | float32 [4,3,1,1]`."""
    return " | ".join([str(operation), *(f"{t.dtype} {text_of(t.shape)}" for t in inputs)])
