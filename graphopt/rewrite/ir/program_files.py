"""Programs as plain JSON values: terms in topological order. Weights by name and shape, without their values; of opaque
operations their names and costs, so a stored program can be priced and drawn, but not run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from graphopt.core.errors import UserError
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import Operation, ShapeError, TensorType

FORMAT = "graphopt program 1"
MOST_ELEMENTS = 2**53  # of all tensors: sums are exact. Nothing here makes arrays of them


@dataclass(frozen=True)
class Stored:
    """The stored facts of an opaque operation (an `OpaqueCall`)."""

    label: str
    kind: str
    flop: float | None

    def flops(self, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
        return self.flop

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        raise UserError(f"a stored program cannot run its {self.label}; solve the graph again to have its model")


def to_json(program: Program) -> dict[str, Any]:
    """The live terms: `[operator, [parameters], [inputs]]` each, inputs as positions in the list."""
    terms = program.terms
    live = sorted({*program.live(), *program.inputs})
    place = {term: i for i, term in enumerate(live)}
    lines, opaque = [], {}
    for term in live:
        operation, inputs = terms.operation[term], terms.inputs[term]
        lines.append([operation.name, list(operation.params), [place[i] for i in inputs]])
        if operation.name == "opaque":
            call = program.opaque[operation.params[0]]
            flop = call.flops([terms.types[i][0] for i in inputs], terms.types[term])
            opaque[operation.params[0]] = [call.label, call.kind, flop]
    return {
        "format": FORMAT, "terms": lines, "outputs": [place[o] for o in program.outputs],
        "output_names": list(program.output_names), "inputs": [place[i] for i in program.inputs], "opaque": opaque,
    }  # fmt: skip


def from_json(stored: dict[str, Any], terms: Terms | None = None) -> Program:
    """The program of `to_json`, in a store of its own unless one is given. Raises UserError for anything else."""
    try:
        if stored["format"] != FORMAT:
            raise UserError(f"a stored program has the format {stored['format']!r}, this version reads {FORMAT!r}")
        terms = Terms() if terms is None else terms
        ids: list[int] = []
        elements = 0
        for name, params, inputs in stored["terms"]:
            ids.append(terms.add(Operation(name, _hashable(params)), [ids[i] for i in inputs]))
            elements += sum(prod(result.shape) for result in terms.types[ids[-1]])
            if elements > MOST_ELEMENTS:
                raise UserError(f"a stored program has tensors of more than {MOST_ELEMENTS:,} elements together")
        places = ([ids[i] for i in stored[key]] for key in ("outputs", "inputs"))
        outputs, leaves = map(tuple, places)
        opaque = {key: Stored(*of) for key, of in stored["opaque"].items()}
        return Program(terms, outputs, tuple(stored["output_names"]), leaves, opaque=opaque)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, ShapeError) as error:
        raise UserError(f"a stored program is damaged ({error}); solve the graph again") from None


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
