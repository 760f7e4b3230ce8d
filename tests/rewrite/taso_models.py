"""TASO's text export of graphs, read into programs: four lines a node (guid, type, inputs, parameters)."""

from pathlib import Path

from graphopt.rewrite.ir.program_builder import same_pads
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import ACTIVATIONS, Operation

INPUT, WEIGHT, CONV, DROPOUT, POOL_MAX, POOL_AVG, RELU = 0, 1, 3, 4, 6, 7, 8
BATCH_NORM, CONCAT, RESHAPE, TRANSPOSE, ADD, MATMUL = 11, 12, 14, 15, 16, 18
ACTIVATION = dict(enumerate(("none", "sigmoid", "relu", "tanh")))


def read_taso(path: Path) -> Program:
    """The graph; outputs are what nothing reads. Weights have no values, pooling's stand-in weights are left out."""
    lines = path.read_text().split("\n")
    terms, made = Terms(), dict[str, int]()
    for start in range(0, len(lines) - 3, 4):
        guid, kind, given, numbers = lines[start : start + 4]
        params = [int(n) for n in numbers.split(",")]
        inputs = [made[g.split(":")[0]] for g in given.split(",") if g.split(":")[0] in made]
        made[guid] = _node(terms, guid, int(kind), inputs, params)
    used = {i for t in made.values() for i in terms.inputs[t]}
    outputs = tuple(t for t in made.values() if t not in used and terms.operation[t].name != "weight")
    leaves = tuple(t for t in made.values() if terms.operation[t].name == "input")
    return Program(terms, outputs, tuple(f"y{i}" for i in range(len(outputs))), leaves)


def _node(terms: Terms, guid: str, kind: int, inputs: list[int], params: list[int]) -> int:
    def add(name: str, *fixed: object, of: list[int] = inputs) -> int:
        return terms.add(Operation(name, fixed), tuple(of))

    match kind:
        case 0 | 1:
            return add("input" if kind == INPUT else "weight", f"t{guid}", tuple(params), "float32", of=[])
        case 3:
            strides, same, activation = tuple(params[8:10]), params[10] == 0, ACTIVATION[params[11]]
            assert activation in ACTIVATIONS
            return add("conv", strides, _pads(params[2:4], params[6:8], strides, same), activation)
        case 4:
            return inputs[0]
        case 6 | 7:
            kernel, strides, same = tuple(params[5:7]), tuple(params[7:9]), params[9] == 0
            pads = _pads(params[2:4], kernel, strides, same)
            return add("pool_max" if kind == POOL_MAX else "pool_avg", kernel, strides, pads, of=inputs[:1])
        case 8:
            return add("relu")
        case 12:
            return add("concat", params[0])
        case 14:
            same_shape = terms.shape(inputs[0]) == tuple(params)
            return inputs[0] if same_shape else add("reshape", tuple(params))
        case 15:
            rank = len(terms.shape(inputs[0]))
            first = len(params) - rank - 1  # files of different age have the rank in front, or not
            return add("transpose", tuple(params[first : first + rank]))
        case 18:
            return add("matmul", ACTIVATION[params[0]])
    raise ValueError(f"type {kind} of node {guid}")


def _pads(size: list[int], kernel: object, strides: object, same: bool) -> tuple[int, ...]:
    if not same:
        return (0, 0, 0, 0)
    (top, bottom), (left, right) = (same_pads(n, k, s) for n, k, s in zip(size, kernel, strides))  # type: ignore[call-overload]
    return (top, left, bottom, right)
