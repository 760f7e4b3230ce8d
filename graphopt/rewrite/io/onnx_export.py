"""Programs as ONNX models: weights kept, terms of weights alone computed, opaque nodes copied back.

Names and types of inputs and outputs, operator sets and metadata are those of the model that the program was read
from. The metadata entry `graphopt.rules` lists the rules that were applied.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphopt.core.errors import UserError
from graphopt.rewrite.equivalence import compare, random_inputs, run_onnx
from graphopt.rewrite.io.onnx_call import TORCH_OPSET, OnnxCall, OnnxOrigin
from graphopt.rewrite.ir.terms import Program, reachable
from graphopt.rewrite.ir.vocabulary import Operation, TensorType

RULES_KEY = "graphopt.rules"
SINGLE = 1e-3  # tolerance of the comparison: ONNX Runtime computes in single precision, and fuses on its own
_PLAIN = OnnxOrigin((("", TORCH_OPSET),), 8, "graphopt", (), (), ())  # of programs that were not read from ONNX
# Nothing to round.
MOVES = frozenset({"weight", "transpose", "reshape", "concat", "split", "item", "enlarge", "gather", "pad"})
_LARGEST = 1 << 30  # bytes of weights within the file; a model must stay below 2 GiB


def export_onnx(program: Program, *, rules: Sequence[str] = ()) -> ModelProto:
    """The model of a program. Raises UserError for an opaque operation that ONNX does not have."""
    return _Export(program).model(rules)


def save_onnx(program: Program, path: Path, *, rules: Sequence[str] = ()) -> None:
    """Writes the model; where weights are large, they go to a file beside it."""
    model = export_onnx(program, rules=rules)
    large = sum(len(w.raw_data) for w in model.graph.initializer) > _LARGEST
    onnx.save_model(model, str(path), save_as_external_data=large, location=f"{path.name}.weights")


def deliver(original: Program, best: Program, rules: Sequence[str], path: Path, *, seed: int = 0) -> list[str]:
    """Writes `best` with the rules that led there; returns its errors, in sentences.

    Where ONNX Runtime is installed (extra `onnx`), both models run in it on random inputs and must agree within
    `SINGLE` of the largest value of each output.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    save_onnx(best, path, rules=rules)
    if find_spec("onnxruntime") is None:
        return []
    given = random_inputs(original, np.random.default_rng(seed))
    names = [str(original.terms.operation[leaf].params[0]) for leaf in original.inputs]
    inputs = dict(zip(names, given, strict=True))
    try:
        before = run_onnx(export_onnx(original), inputs)
    except UserError as error:  # ONNX Runtime has no kernel for one of its operators: nothing to compare with
        warnings.warn(f"{path.name} is not compared in ONNX Runtime: {error}", stacklevel=2)
        return []
    try:
        compare(before, run_onnx(str(path), inputs), original.output_names, SINGLE)
    except UserError as error:
        return [f"{path.name} in ONNX Runtime: {error}"]
    return []


class _Export:
    """One program on its way. names: the tensor of every term that makes one."""

    def __init__(self, program: Program) -> None:
        self.program, self.terms = program, program.terms
        self.origin: OnnxOrigin = program.origin if isinstance(program.origin, OnnxOrigin) else _PLAIN
        self.opset = dict(self.origin.opsets).get("", 17)
        self.live = program.live()
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.names = {leaf: str(self.terms.operation[leaf].params[0]) for leaf in program.inputs}
        inner = {n for call in program.opaque.values() if isinstance(call, OnnxCall) for n in call.inner_names()}
        self.taken = {*self.names.values(), *program.output_names, *inner}
        self._numbers = count()
        self.subgraphs = dict[int, Any]()  # of terms that are calls of torch

    def model(self, rules: Sequence[str]) -> ModelProto:
        self._statics()
        for name, term in zip(self.program.output_names, self.program.outputs, strict=True):
            self.names.setdefault(term, name)
        items: dict[int, list[int]] = {}
        for term in self.live:
            if self.terms.operation[term].name == "item":
                items.setdefault(self.terms.inputs[term][0], []).append(term)
        self.subgraphs = self._torch_calls(items)
        for term in self.live:
            if self.terms.runs[term]:
                self._term(term, items.get(term, []))
        for name, term in zip(self.program.output_names, self.program.outputs, strict=True):
            if self.names[term] != name:
                self.node("Identity", [self.names[term]], [name])
        return self._packed(rules)

    def node(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str] | None = None, **attributes: Any
    ) -> str:
        """Adds a node; its first output, which has a new name if none is given. attributes: of the operator in the
        model's operator set; another name raises ValueError."""
        known = _attributes(operator, self.opset)
        if known is not None and not known.issuperset(attributes):
            raise ValueError(f"{operator} {self.opset} has no {', '.join(set(attributes) - known)}")
        made = list(outputs) if outputs is not None else [self.fresh("t")]
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), made, **attributes))
        return made[0]

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """The name of a new constant."""
        name = self.fresh("c")
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def fresh(self, wish: str) -> str:
        """A name that is not taken: the wish, if it may be one, else with a number."""
        name = wish if len(wish) > 1 else f"{wish}{next(self._numbers)}"
        while name in self.taken:
            name = f"{wish}_{next(self._numbers)}"
        self.taken.add(name)
        return name

    def _statics(self) -> None:
        """Weights that are read, and terms of weights alone; sums and products in double precision."""
        from graphopt.rewrite.ir.execution import frontier, static_values, to_array  # torch

        wanted = frontier(self.program)
        made = [t for t in wanted if self.terms.operation[t].name != "weight"]
        counts = any(self.terms.operation[t].name not in MOVES for t in reachable(self.terms, made))
        values = static_values(self.program, made, double=counts)
        for term in wanted:
            operation = self.terms.operation[term]
            stored = operation.name == "weight"
            self.names[term] = self.fresh(operation.params[0] if stored else "w")
            array = self.program.weights[operation.params[0]] if stored else to_array(values[term])
            self._weight(self.names[term], array.astype(self.terms.type_of(term).dtype, copy=False))

    def _weight(self, name: str, array: NDArray[Any]) -> None:
        """An initialiser; one value for many elements stays a node that spreads it."""
        if array.size > 1 and not any(array.strides) and self.opset >= 9:
            value = onnx.numpy_helper.from_array(array.flat[0].reshape(1), "value")
            self.node("ConstantOfShape", [self.constant(array.shape)], [name], value=value)
        else:
            self.weights.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))

    def _term(self, term: int, items: Sequence[int]) -> None:
        operation = self.terms.operation[term]
        inputs = [self.names[i] for i in self.terms.inputs[term]]
        if operation.name in ("split", "opaque"):
            made = {self.terms.operation[item].params[0]: item for item in items}
            for item in items:
                self.names[item] = self.names.get(item) or self.fresh("t")
            outputs = [self.names[made[i]] if i in made else self.fresh("t")
                       for i in range(len(self.terms.types[term]))]  # fmt: skip
            if operation.name == "opaque":
                self._opaque(term, inputs, outputs)
            elif self.opset < 13:
                self.node("Split", inputs, outputs, axis=operation.params[0], split=operation.params[1])
            else:
                self.node("Split", [*inputs, self.constant(operation.params[1])], outputs, axis=operation.params[0])
            return
        self.names[term] = name = self.names.get(term) or self.fresh("t")
        shapes = [self.terms.shape(i) for i in self.terms.inputs[term]]
        WRITERS[operation.name](OnnxWriting(self, operation, inputs, shapes, name))

    def _opaque(self, term: int, inputs: list[str], outputs: list[str]) -> None:
        call = self.subgraphs.get(term) or self.program.opaque[self.terms.operation[term].params[0]]
        nodes, constants = call.placed(inputs, outputs, self.fresh("opaque"))
        self.nodes.extend(nodes)
        self.weights.extend(constants)

    def _torch_calls(self, items: Mapping[int, Sequence[int]]) -> dict[int, Any]:
        """Subgraphs for terms that are calls of torch, all made at once. items: terms of results that are read."""
        opaque = [term for term in self.live if self.terms.operation[term].name == "opaque"]
        calls = {term: self.program.opaque[self.terms.operation[term].params[0]] for term in opaque}
        calls = {term: call for term, call in calls.items() if not isinstance(call, OnnxCall)}
        if not calls:
            return {}
        from graphopt.rewrite.io.torch_to_onnx import TypedCall, subgraphs  # torch

        typed = [
            TypedCall(call, tuple(self.terms.type_of(i) for i in self.terms.inputs[term]), self.terms.types[term],
                      tuple(sorted({self.terms.operation[item].params[0] for item in items[term]})))
            for term, call in calls.items()
        ]  # fmt: skip
        return dict(zip(calls, subgraphs(typed), strict=True))

    def _packed(self, rules: Sequence[str]) -> ModelProto:
        types = dict(zip(self.program.output_names, (self.terms.type_of(t) for t in self.program.outputs)))
        types |= {self.names[t]: self.terms.type_of(t) for t in self.program.inputs}
        stated = {v.name: v for v in (*self.origin.inputs, *self.origin.outputs)}
        given = [self.names[t] for t in self.program.inputs]
        inputs, outputs = (
            [_value(name, types[name], stated.get(name)) for name in names]
            for names in (given, self.program.output_names)
        )
        graph = onnx.helper.make_graph(self.nodes, self.origin.name or "graphopt", inputs, outputs, self.weights)
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self.origin.opsets]
        # the original's, but not newer than its operators need, or than 10: runtimes lag behind
        needed = max(onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True), 10)
        version = max(min(self.origin.ir_version, needed), 4)
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="graphopt")
        metadata = dict(self.origin.metadata) | ({RULES_KEY: json.dumps(list(rules))} if rules else {})
        if metadata:
            onnx.helper.set_model_props(model, metadata)
        return model


@lru_cache(maxsize=256)
def _attributes(operator: str, opset: int) -> frozenset[str] | None:
    """Attributes that a node of that operator may state; None of an operator that the set does not have."""
    try:
        return frozenset(onnx.defs.get_schema(operator, opset).attributes)
    except onnx.defs.SchemaError:
        return None


def _value(name: str, kind: TensorType, stated: ValueInfoProto | None) -> ValueInfoProto:
    """An input or output as the original states it, with its shape if that is known."""
    if stated is not None and (not stated.type.HasField("tensor_type") or 0 in kind.shape
                               or stated.type.tensor_type.HasField("shape")):  # fmt: skip
        return stated
    bits = kind.dtype == "bfloat16"
    element = TensorProto.BFLOAT16 if bits else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    return onnx.helper.make_tensor_value_info(name, element, kind.shape)


@dataclass(frozen=True)
class OnnxWriting:
    """One operation of the vocabulary on its way. shapes: of its inputs. name: of its result."""

    export: _Export
    operation: Operation
    inputs: list[str]
    shapes: list[tuple[int, ...]]
    name: str

    @property
    def params(self) -> tuple[Any, ...]:
        return self.operation.params

    def last(self, operator: str, inputs: Sequence[str] | None = None, **attributes: Any) -> None:
        """The node that makes the result."""
        self.export.node(operator, self.inputs if inputs is None else inputs, [self.name], **attributes)

    def activated(self, activation: str, operator: str, **attributes: Any) -> None:
        if activation == "none":
            self.last(operator, **attributes)
        else:
            self.last(activation.capitalize(), [self.export.node(operator, self.inputs, **attributes)])

    def conv(self) -> None:
        strides, pads, activation = self.params
        x, w = self.shapes[:2]
        self.activated(activation, "Conv", strides=strides, pads=pads, group=x[1] // w[1], kernel_shape=w[2:],
                       dilations=(1, 1))  # fmt: skip

    def pool(self, operator: str) -> None:
        kernel, strides, pads = self.params
        self.last(operator, kernel_shape=kernel, strides=strides, pads=pads)

    def pad(self, before: Sequence[int], after: Sequence[int]) -> None:
        pads = (*before, *after)
        if self.export.opset < 11:
            self.last("Pad", pads=pads)
        else:
            self.last("Pad", [*self.inputs, self.export.constant(pads)])

    def enlarge(self) -> None:
        sides = (0, 0, *((new - old) // 2 for new, old in zip(self.params[0], self.shapes[0][2:])))
        self.pad(sides, sides)

    def merge_groups(self) -> None:
        """Kernels side by side as often as groups are merged, times a mask: 1 in the place of each one's group."""
        groups, count_ = self.params
        rows, width = self.shapes[0][:2]
        place = np.arange(rows) // (rows // groups) % count_
        mask = np.repeat(place[:, None] == np.arange(count_)[None], width, axis=1)[:, :, None, None]
        repeated = self.export.node("Concat", self.inputs * count_, axis=1)
        self.last("Mul", [repeated, self.export.constant(mask, np.float32)])

    def softmax(self) -> None:
        """Before operator set 13 it goes over all axes from one on, so that axis is made the last."""
        axis, last, node = self.params[0], len(self.shapes[0]) - 1, self.export.node
        if self.export.opset >= 13 or axis == last:
            self.last("Softmax", axis=axis)
            return
        order = [*range(axis), last, *range(axis + 1, last), axis]
        self.last("Transpose", [node("Softmax", [node("Transpose", self.inputs, perm=order)], axis=last)], perm=order)


WRITERS: dict[str, Callable[[OnnxWriting], None]] = {
    **dict.fromkeys(("add", "mul", "relu", "tanh", "sigmoid"), lambda w: w.last(w.operation.name.capitalize())),
    "matmul": lambda w: w.activated(w.params[0], "MatMul"),
    "concat": lambda w: w.last("Concat", axis=w.params[0]),
    "transpose": lambda w: w.last("Transpose", perm=w.params[0]),
    "reshape": lambda w: w.last("Reshape", [*w.inputs, w.export.constant(w.params[0])]),
    "pool_max": lambda w: w.pool("MaxPool"),
    "pool_avg": lambda w: w.pool("AveragePool"),
    "batch_norm": lambda w: w.last("BatchNormalization", epsilon=w.params[0]),
    "layer_norm": lambda w: w.last("LayerNormalization", epsilon=w.params[0]),
    "gather": lambda w: w.last("Gather", axis=w.params[0]),
    "pad": lambda w: w.pad(*w.params),
    "conv": OnnxWriting.conv,
    "enlarge": OnnxWriting.enlarge,
    "merge_groups": OnnxWriting.merge_groups,
    "softmax": OnnxWriting.softmax,
}
