"""Programs of XLA (HLO, StableHLO) to `Graph`, from modules that `hlo_text`, `hlo_protobuf` and `stable_hlo` read.

Calls and fusions are opened, so that a compiler's decisions do not count: an instruction is an op, named after the
calls that it is in. Choices of ours:

- a loop is one opaque op with the FLOP of all its trips; where nothing says how many, there is one, with a warning
- a conditional is one opaque op with the FLOP of its most expensive branch
- a constant with one value everywhere is an immediate of its elementwise readers; others are weights
- an unknown instruction, a collective and a custom call are opaque; sparse shapes and dynamic sizes count as stated

FLOP of dot and convolution: twice the results times the terms of each sum; of others, the operator's own count.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder, known_dtype
from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category

DTYPES = {"pred": "bool", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "s8": "int8",
          "s16": "int16", "s32": "int32", "s64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
          "u64": "uint64", "c64": "complex64", "c128": "complex128", "f8e4m3fn": "float8_e4m3fn",
          "f8e5m2": "float8_e5m2"}  # fmt: skip
_NAMES = {  # operator kind: the opcodes that are it
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "maximum": "maximum", "minimum": "minimum",
    "abs": "abs", "neg": "negate", "compare": "compare is-finite", "select": "select", "clamp": "clamp",
    "logical": "and or xor not shift-left shift-right-arithmetic shift-right-logical popcnt count-leading-zeros",
    "cast": "convert bitcast-convert reduce-precision stochastic-convert", "round": "floor ceil round-nearest-afz "
    "round-nearest-even", "sign": "sign", "copy": "copy real imag", "exp": "exponential exponential-minus-one",
    "log": "log log-plus-one", "sigmoid": "logistic", "tanh": "tanh", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "pow": "power cbrt atan2 complex", "sin": "sine tan", "cos": "cosine", "remainder": "remainder", "erf": "erf",
    "reshape": "reshape bitcast dynamic-reshape", "transpose": "transpose", "slice": "slice", "broadcast": "broadcast",
    "reverse": "reverse", "concat": "concatenate", "pad": "pad", "gather": "gather dynamic-slice", "iota": "iota",
    "scatter": "scatter dynamic-update-slice select-and-scatter", "sort": "sort", "topk": "topk",
    "random": "rng rng-bit-generator", "matmul": "dot ragged-dot", "conv": "convolution", "sum": "reduce",
    "pool_max": "reduce-window", "affine": "batch-norm-inference", "layer_norm": "batch-norm-training batch-norm-grad",
}  # fmt: skip
KIND = {opcode: kind for kind, opcodes in _NAMES.items() for opcode in opcodes.split()}
REDUCE = {"add": "sum", "maximum": "amax", "minimum": "amin", "multiply": "prod", "and": "amin", "or": "amax"}
POOL = {"add": "pool_avg"}  # others are pool_max
SAME = {"optimization-barrier", "add-dependency", "copy-start", "copy-done", "domain"}  # their first operand
OPENED = {"call", "fusion", "async-start"}
NOTHING = {"after-all", "partition-id", "replica-id", "get-dimension-size"}  # no data that counts
MOST_OPS, MOST_CALLS, MOST_TRIPS = 10**6, 200, 10**12
Shape: TypeAlias = "tuple[str, tuple[int, ...]] | list[Shape]"  # element type and dimensions, or a tuple of shapes


@dataclass(frozen=True, slots=True)
class Instruction:
    """shape: of the result. operands: names in its computation. calls: computations. index: of a parameter, or of an
    item of a tuple. summed: of a dot or convolution, how many products each result sums. value: of a whole constant.
    trips: of a loop, if the file says."""

    name: str
    opcode: str
    shape: "Shape"
    operands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    index: int = 0
    summed: float = 1.0
    value: int | None = None
    trips: int | None = None
    direction: str = ""


@dataclass(frozen=True)
class Module:
    """computations: name -> instructions, each after its operands. roots: name -> the instruction that is returned."""

    name: str
    entry: str
    computations: Mapping[str, Sequence[Instruction]]
    roots: Mapping[str, str]


@dataclass(frozen=True, eq=False, slots=True)
class Data:
    """One tensor. tensor: None for a constant with one value everywhere, which is none until something reads it; value:
    of a whole one."""

    shape: tuple[str, tuple[int, ...]]
    tensor: int | None
    value: int | None = None


Value: TypeAlias = "Data | list[Value]"


def graph_of(module: Module) -> Graph:
    """Raises GraphError where parts do not fit together."""
    builder = GraphBuilder(module.name, module.name)
    walk = _Walk(module, builder, [0])
    entry = module.computations[module.entry]
    given = {one.index: walk.fresh(one.shape) for one in entry if one.opcode == "parameter"}
    result = walk.run(module.entry, given, "", 0)
    for leaf in _leaves(result):
        builder.output(walk.read(leaf))
    return builder.build()


class _Walk:
    """Writes the ops of computations into a builder. count: of ops so far, shared by walks within this one."""

    def __init__(self, module: Module, builder: GraphBuilder, count: list[int]) -> None:
        self._module, self._builder, self._count = module, builder, count
        self.flops = 0.0
        self._constants: dict[Data, int] = {}

    def fresh(self, shape: "Shape") -> "Value":
        """Tensors that nothing made."""
        if isinstance(shape, list):
            return [self.fresh(part) for part in shape]
        return Data(shape, self._tensor(shape))

    def read(self, leaf: Data) -> int:
        """The tensor; a constant becomes a weight."""
        if leaf.tensor is not None:
            return leaf.tensor
        if leaf not in self._constants:
            self._constants[leaf] = self._tensor(leaf.shape, weight=True)
        return self._constants[leaf]

    def run(self, name: str, given: "Mapping[int, Value]", prefix: str, depth: int) -> "Value":
        """The results of a computation. given: its parameters."""
        if name not in self._module.computations or depth > MOST_CALLS:
            raise GraphError(f"{self._module.name}: computation {name[:80]} is missing, or calls itself")
        known: dict[str, Value] = {}
        for one in self._module.computations[name]:
            try:
                operands = [known[operand] for operand in one.operands]
                known[one.name] = self._value(one, operands, given, prefix, depth)
            except (KeyError, IndexError) as error:
                raise GraphError(f"{self._module.name}: {one.opcode[:40]} {one.name[:80]} reads {error}, which is not "
                                 "there before it") from None  # fmt: skip
        return known[self._module.roots[name]]

    def _value(self, one: Instruction, operands: "Sequence[Value]", given: "Mapping[int, Value]", prefix: str,
               depth: int) -> "Value":  # fmt: skip
        opcode = one.opcode
        if opcode == "parameter":
            return given[one.index]
        if opcode == "tuple":
            return list(operands)
        if opcode == "get-tuple-element":
            return operands[0][one.index] if isinstance(operands[0], list) else operands[0]
        if opcode in SAME or opcode in ("async-done", "async-update"):
            return operands[0]
        if opcode in OPENED and one.calls:
            return self.run(one.calls[0], dict(enumerate(operands)), f"{prefix}{one.name}/", depth + 1)
        if opcode == "constant" or opcode in NOTHING:
            uniform = one.value is not None or (not isinstance(one.shape, list) and prod(one.shape[1]) == 1)
            return self._immediate(one.shape, one.value) if uniform or opcode in NOTHING else self._weight(one.shape)
        if opcode in ("while", "conditional"):
            return self._repeated(one, operands, prefix, depth)
        return self._op(one, [leaf for value in operands for leaf in _leaves(value)], prefix)

    def _op(self, one: Instruction, leaves: list[Data], prefix: str, flops: float | None = None) -> "Value":
        kind = self._kind(one) if flops is None else "opaque"
        category = OPERATORS[OPERATOR_ID[kind]].category
        follows = category in (Category.ELEMENTWISE, Category.VIEW)
        if follows and leaves and all(leaf.tensor is None for leaf in leaves) and not isinstance(one.shape, list):
            return self._immediate(one.shape)
        if follows or kind in ("pad", *REDUCE.values(), "pool_max", "pool_avg"):  # others read constants from memory
            leaves = [leaf for leaf in leaves if leaf.tensor is not None] or leaves
        result = self.fresh(one.shape)
        if one.opcode in ("dot", "convolution"):
            flops = 2.0 * sum(prod(leaf.shape[1]) for leaf in _leaves(result)) * one.summed
        outputs = [self.read(leaf) for leaf in _leaves(result)]
        inputs = [self.read(leaf) for leaf in leaves]
        counted = self._builder.default_flops(kind, inputs, outputs) if flops is None and outputs else flops or 0.0
        self._count[0] += 1
        if self._count[0] > MOST_OPS:
            raise GraphError(f"{self._module.name} has more than {MOST_OPS:,} instructions when calls are opened")
        self.flops += counted
        self._builder.op(kind, inputs, outputs, flops=counted, name=f"{prefix}{one.name}")
        return result

    def _kind(self, one: Instruction) -> str:
        if one.opcode in ("reduce", "reduce-window"):
            body = self._module.computations.get(one.calls[0], ()) if one.calls else ()
            opcode = next((b.opcode for b in body if b.name == self._module.roots[one.calls[0]]), "")
            if isinstance(one.shape, list):
                return "argmax"
            return REDUCE.get(opcode, "sum") if one.opcode == "reduce" else POOL.get(opcode, "pool_max")
        return KIND.get(one.opcode, "opaque")

    def _repeated(self, one: Instruction, operands: "Sequence[Value]", prefix: str, depth: int) -> "Value":
        """A loop or a conditional, as one op."""
        counted = []
        for place, name in enumerate(one.calls):
            inner = _Walk(self._module, GraphBuilder("inner"), self._count)
            parameters = {p.index: p.shape for p in self._module.computations.get(name, ()) if p.opcode == "parameter"}
            inner.run(name, {i: inner.fresh(kind) for i, kind in parameters.items()}, f"{place}/", depth + 1)
            counted.append(inner.flops)
        flops = max(counted, default=0.0)
        if one.opcode == "while":
            trips = one.trips if one.trips is not None else self._trips(one, operands)
            if trips is None:
                warnings.warn(f"{self._module.name}: nothing says how often loop {one.name[:80]} runs; it counts once",
                              stacklevel=2)  # fmt: skip
            flops = sum(counted) * min(1 if trips is None else trips, MOST_TRIPS)
        return self._op(one, [leaf for value in operands for leaf in _leaves(value)], prefix, flops)

    def _trips(self, one: Instruction, operands: "Sequence[Value]") -> int | None:
        """Of a condition `i < constant` whose i starts at a constant and grows by another one, as loops of JAX do."""
        (condition, until), (body, last) = (self._by_name(name) for name in (*one.calls, "", "")[:2])
        if until is None or until.opcode != "compare" or until.direction not in ("LT", "LE") or last is None:
            return None
        counter, limit = (condition.get(name) for name in (*until.operands, "", "")[:2])
        if counter is None or counter.opcode != "get-tuple-element" or limit is None or not operands:
            return None
        state = operands[0]
        if not isinstance(state, list) or max(counter.index + 1, 1) > min(len(state), len(last.operands)):
            return None
        start, grown = state[counter.index], body.get(last.operands[counter.index])
        if grown is None or grown.opcode != "add" or not isinstance(start, Data):
            return None
        added = [body[name] for name in grown.operands if name in body]
        steps = [each.value for each in added if each.value is not None]
        same = any(each.opcode == "get-tuple-element" and each.index == counter.index for each in added)
        if start.value is None or limit.value is None or not same or len(steps) != 1 or (step := steps[0]) < 1:
            return None
        return max(0, -((start.value - limit.value - (until.direction == "LE")) // step))

    def _by_name(self, computation: str) -> tuple[dict[str, Instruction], Instruction | None]:
        """The instructions of a computation, and its result."""
        found = {one.name: one for one in self._module.computations.get(computation, ())}
        return found, found.get(self._module.roots.get(computation, ""))

    def _immediate(self, shape: "Shape", value: int | None = None) -> "Value":
        return [self._immediate(part) for part in shape] if isinstance(shape, list) else Data(shape, None, value)

    def _weight(self, shape: "Shape") -> "Value":
        if isinstance(shape, list):
            return [self._weight(part) for part in shape]
        return Data(shape, self._tensor(shape, weight=True))

    def _tensor(self, shape: tuple[str, tuple[int, ...]], weight: bool = False) -> int:
        dtype = known_dtype(DTYPES.get(shape[0], "int8"))
        return self._builder.tensor(shape[1], dtype, weight=weight, num_bytes=0 if shape[0] == "token" else None)


def _leaves(value: "Value") -> Iterator[Data]:
    if isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value
