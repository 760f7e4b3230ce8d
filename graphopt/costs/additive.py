"""Cost models that sum what each op costs alone, as TASO's does: blind to how ops act on one another.

Ops that read weights alone cost nothing, since they run once, before the program; so do views: reshape and, as in
TASO, split, whose readers see parts of one tensor.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Annotated

from graphopt import cache_dir
from graphopt.core.graph import DTYPE_BYTES, DTYPES
from graphopt.core.machine import Machine
from graphopt.measure.price_table import Environment, Line, TableFile
from graphopt.measure.rounds import error_of_median
from graphopt.measure.service import Service
from graphopt.measure.target import Measuring, Target
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import ACTIVATION_FLOP, Operation, TensorType, text_of, window_flop
from graphopt.rewrite.program_cost import ProgramCost, TermPrice

FREE = frozenset({"input", "weight", "fill", "identity_kernel", "item", "reshape", "split"})
GRID = 2.0**-50  # seconds; prices are multiples, so sums below 8 s are exact and do not depend on their order
BYTES = dict(zip(DTYPES, DTYPE_BYTES))
_PER_ELEMENT = {**ACTIVATION_FLOP, "add": 1.0, "mul": 1.0, "batch_norm": 2.0, "opaque": 1.0}


class Additive(ProgramCost):
    """`runtime` of a program on one device as a sum over its ops; `op_seconds` is the model."""

    objective = "runtime"
    provides = frozenset({"prices of single ops"})

    @abstractmethod
    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Seconds of one op alone."""

    def price_program(self, program: Program) -> float:
        return float(sum(map(self.term_price(program.terms), program.live())))

    def term_price(self, terms: Terms) -> TermPrice:
        known: dict[int, float] = {}

        def of(term: int) -> float:
            seconds = known.get(term)
            if seconds is None:
                known[term] = seconds = round(self._term_seconds(terms, term) / GRID) * GRID
            return seconds

        return of

    def _term_seconds(self, terms: Terms, term: int) -> float:
        if is_free(terms, term):
            return 0.0
        return self.op_seconds(terms.operation[term], input_types(terms, term), terms.types[term])


def is_free(terms: Terms, term: int) -> bool:
    """Whether a term costs nothing."""
    return terms.operation[term].name in FREE or bool(terms.static[term])


def input_types(terms: Terms, term: int) -> list[TensorType]:
    """What a term reads."""
    return [terms.types[i][0] for i in terms.inputs[term]]


class Flops(Additive):
    """The roofline of the machine's first device: launch overhead + the longer of arithmetic and memory traffic.

    Arithmetic of matmul and conv runs at `contraction_flops`, all other at `vector_flops`. Traffic is every input and
    every result once. Padding, boundaries and caches do not count.
    """

    def __init__(self, *, name: str, machine: Machine) -> None:
        self.name, self._device = name, machine.devices[0]

    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        device, heavy = self._device, operation.name in ("matmul", "conv")
        peak = device.contraction_flops if heavy else device.vector_flops
        traffic = sum(prod(t.shape) * BYTES.get(t.dtype, 4) for t in (*inputs, *results))
        return device.launch + max(flop(operation, inputs, results) / peak, traffic / device.bandwidth)


def flop(operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
    """Floating-point operations of one op, a multiply-add being two; 0 where data only moves."""
    window = window_flop(operation, inputs, results)
    elements = sum(prod(result.shape) for result in results)
    return window if window is not None else elements * _PER_ELEMENT.get(operation.name, 0.0)


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
