"""One ONNX operator, built: every schema of every operator set, with inputs, types, shapes and attributes that fit, are
odd, or are missing."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.defs import OpSchema

from ..judge import Format
from ..mutate import Draw, number, text
from .onnx_models import read_as_graph, read_as_program

_KINDS = [kind for kind in TensorProto.DataType.values() if kind]
_USUAL = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING)
_SIZES = (1, 2, 3, 3, 4, 5, 8, 0, -1, 2**31, 2**62, "n", None)
_WHOLE = (0, 1, 2, 3, -1, -2, 5, 64, 10**6, 2**31, 2**62, 2**63 - 1, -(2**63))


@lru_cache(maxsize=1)
def schemas() -> tuple[OpSchema, ...]:
    """In a fixed order."""
    known = onnx.defs.get_all_schemas_with_history()
    return tuple(sorted(known, key=lambda s: (s.domain, s.name, s.since_version)))


def _shape(rng: Draw) -> list[Any] | None:
    """None: of no known rank."""
    if rng.random() < 0.15:
        return None
    odd = rng.random() < 0.3
    return [rng.choice(_SIZES if odd else _SIZES[:7]) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 4, 5, 70 * odd)))]


def _typed(rng: Draw, name: str) -> ValueInfoProto:
    """A tensor's statement; sometimes without a type, or of what is no tensor."""
    what = rng.random()
    kind = rng.choice(_USUAL if rng.random() < 0.8 else _KINDS)
    if what < 0.12:
        return ValueInfoProto(name=name)
    tensor = helper.make_tensor_type_proto(kind, _shape(rng))
    if what < 0.16:
        tensor.tensor_type.ClearField("elem_type")
    elif what < 0.2:
        tensor = helper.make_sequence_type_proto(tensor)
    elif what < 0.24:
        tensor = helper.make_optional_type_proto(tensor)
    elif what < 0.28:
        tensor = helper.make_map_type_proto(rng.choice((TensorProto.INT64, TensorProto.STRING, 0)), tensor)
    return helper.make_value_info(name, tensor)


def _stored(rng: Draw, name: str) -> TensorProto:
    """A weight: often a list of sizes or axes."""
    shape = rng.choice(([], [1], [2], [3], [4], [6], [2, 3], [0], [1, 1, 3, 3]))
    if rng.random() < 0.6:
        return onnx.numpy_helper.from_array(np.array([rng.choice(_WHOLE) for _ in range(int(np.prod(shape)))],
                                                     np.int64).reshape(shape), name)  # fmt: skip
    made = onnx.numpy_helper.from_array(np.ones(shape, rng.choice((np.float32, np.int32, np.bool_, np.uint8))), name)
    if rng.random() < 0.2:
        made.data_type = rng.choice(_KINDS)
    return made


def _inputs(rng: Draw, schema: OpSchema) -> list[str]:
    """Names: x... are inputs of the model, w... weights, u... made by an unknown operator; empty where left out."""
    most = min(schema.max_input, 6)
    count = rng.randint(min(schema.min_input, most), most) if rng.random() < 0.8 else rng.randint(0, 7)
    return [f"{kind}{i}" if (kind := rng.choice("xxxxwwwu-")) != "-" else "" for i in range(count)]


def _body(rng: Draw) -> GraphProto:
    """A branch or the body of a loop, which may have nothing of what is needed."""
    inputs = [_typed(rng, f"b{i}") for i in range(rng.choice((0, 0, 2, 3)))]
    nodes = [
        helper.make_node(rng.choice(("Identity", "Relu", "Add", "Shape", "Loop")), [f"b{i}" for i in range(2)], ["c"])
    ]
    return helper.make_graph(
        nodes[: rng.choice((0, 1, 1))], "body", inputs, [_typed(rng, rng.choice(("c", "b0", "x0")))]
    )


def _value(rng: Draw, kind: Any) -> Any:
    few = range(rng.choice((0, 1, 2, 2, 3, 4, 8)))
    of: dict[Any, Any] = {
        AttributeProto.INT: lambda: rng.choice(_WHOLE), AttributeProto.FLOAT: lambda: number(rng) % 1e9,
        AttributeProto.STRING: lambda: rng.choice((text(rng), "linear", "NOTSET", "SAME_UPPER", "ab,bc->ac", "MAX")),
        AttributeProto.INTS: lambda: [rng.choice(_WHOLE) for _ in few], AttributeProto.FLOATS: lambda: [0.5] * len(few),
        AttributeProto.STRINGS: lambda: [rng.choice(("a", "b", "")) for _ in few],
        AttributeProto.TENSOR: lambda: _stored(rng, "t"), AttributeProto.GRAPH: lambda: _body(rng),
        AttributeProto.GRAPHS: lambda: [_body(rng) for _ in few],
        AttributeProto.TENSORS: lambda: [_stored(rng, "t") for _ in few],
    }  # fmt: skip
    return of.get(kind, of[AttributeProto.INT])()


def _attribute(rng: Draw, name: str, kind: Any) -> AttributeProto | None:
    other = rng.choice((AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING, AttributeProto.GRAPH))
    try:
        made = helper.make_attribute(name, _value(rng, kind if rng.random() < 0.9 else other))
    except (ValueError, TypeError, OverflowError):  # an empty list has no type; the field cannot hold that
        return AttributeProto(name=name, type=kind)
    if rng.random() < 0.03:
        made.type = rng.choice(AttributeProto.AttributeType.values())
    return made


def _node(rng: Draw, schema: OpSchema) -> NodeProto:
    made = min(schema.max_output, 4)
    outputs = [f"y{i}" if i == 0 or rng.random() < 0.9 else "" for i in range(rng.randint(min(1, made), max(made, 1)))]
    node = helper.make_node(schema.name, _inputs(rng, schema), outputs, domain=schema.domain)
    for name, stated in schema.attributes.items():
        if rng.random() < (0.9 if stated.required else 0.5):
            attribute = _attribute(rng, name, int(stated.type.value))
            node.attribute.extend([attribute] if attribute else [])
    return node


def built(rng: Draw) -> ModelProto:
    if rng.sound:
        return helper.make_model(helper.make_graph(
            [helper.make_node("Relu", ["x0"], ["y0"])], "g",
            [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [2, 3])],
            [helper.make_tensor_value_info("y0", TensorProto.FLOAT, [2, 3])],
        ), opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    schema = rng.choice(schemas())
    node = _node(rng, schema)
    names = {*node.input, "b0", "b1"}
    nodes = [helper.make_node("Strange", [], [name], domain="my.ops") for name in sorted(names) if name[:1] == "u"]
    outputs = [_typed(rng, name) for name in node.output if name][: rng.choice((1, 1, 4))]
    kind, read = rng.choice(("Relu", "Shape", "Identity", "Reshape")), [*(o.name for o in outputs[:1]), "w0"]
    follows = [helper.make_node(kind, read[: rng.choice((1, 2))], ["z"])] if rng.random() < 0.3 else []
    graph = helper.make_graph([*nodes, node, *follows], "g",
                              [_typed(rng, name) for name in sorted(names) if name[:1] in ("x", "b")], outputs,
                              [_stored(rng, name) for name in sorted({*names, "w0"}) if name[:1] == "w"])  # fmt: skip
    if rng.random() < 0.1:  # within a branch, which reads what is around it
        inner = helper.make_graph([node], "branch", [], list(outputs))
        del graph.node[len(nodes) :]
        graph.node.extend(
            [helper.make_node("If", ["go"], [o.name for o in outputs], then_branch=inner, else_branch=inner)]
        )
        graph.input.extend([helper.make_tensor_value_info("go", TensorProto.BOOL, [])])
    standard = schema.since_version if schema.domain == "" else rng.choice((9, 13, 17, 21))
    versions = {"": standard, schema.domain: schema.since_version, "my.ops": 1}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in versions.items()])


def write(rng: Draw, folder: Path) -> Path:
    file = folder / "model.onnx"
    file.write_bytes(built(rng).SerializeToString())
    return file


ONNX_OPERATORS = (
    Format("onnx_operator", write, read_as_graph),
    Format("onnx_operator_rewrite", write, read_as_program),
)
