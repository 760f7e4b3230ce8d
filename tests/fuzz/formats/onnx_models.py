"""ONNX models as graphs (`dataset=onnx`) and as programs to be rewritten: whole ones, damaged; one operator, built."""

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from hostile_models import FLOAT, INT, bombs, model, nested, node, nonsense, value
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.defs import OpSchema

from graphopt.graphs.onnx import OnnxFiles
from graphopt.rewrite.check import inventory
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.io.onnx_export import export_onnx
from graphopt.rewrite.io.onnx_import import import_onnx

from ..judge import Format, Wrong
from ..mutate import Draw, damaged_bytes, number, text
from .graphs import verify


def _stored(name: str, array: Any) -> TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any]) -> ModelProto:
    return model(nodes, [_stored(name, array) for name, array in weights.items()], inputs=inputs, outputs=outputs)


def convnet() -> ModelProto:
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1], strides=[1, 1], kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "s", "b", "b", "s"], ["n"], "norm", epsilon=1e-5), node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]), node("Shape", ["p"], ["size"]),
        node("Gather", ["size", "zero"], ["batch"]), node("Concat", ["batch", "rest"], ["flat"], axis=0),
        node("Reshape", ["p", "flat"], ["q"]), node("Gemm", ["q", "m"], ["y"], transB=1, alpha=0.5),
    ]  # fmt: skip
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype("f"), "b": np.zeros(4, "f"), "s": np.ones(4, "f"),
               "zero": np.array([0]), "rest": np.array([-1]), "m": np.ones((5, 64), "f")}  # fmt: skip
    return _model(nodes, [value("x", FLOAT, [2, 3, 8, 8])], [value("y", FLOAT, [2, 5])], weights)


def constants() -> ModelProto:
    """Arithmetic on shapes, and what computes its own size."""
    nodes = [
        node("Constant", [], ["k"], value=_stored("k", np.array([2, 3], "i8"))),
        node("ConstantOfShape", ["k"], ["z"], value=_stored("v", np.array([1.5], "f"))), node("Add", ["x", "z"], ["a"]),
        node("Expand", ["a", "big"], ["e"]), node("Tile", ["a", "k"], ["t"]),
        node("Range", ["r0", "r1", "r2"], ["seq"]),
        node("Pad", ["a", "pads"], ["padded"]), node("Slice", ["e", "from", "to"], ["cut"]),
        node("Transpose", ["cut"], ["y"], perm=[1, 0]), node("Split", ["padded"], ["s1", "s2"], axis=0),
        node("MyOp", ["t"], ["mine"], domain="d", level=3), node("Softmax", ["s1"], ["soft"], axis=-1),
    ]  # fmt: skip
    weights = {"big": np.array([2, 3]), "pads": np.array([1, 0, 1, 0]), "from": np.array([0, 0]),
               "to": np.array([2, 2]), "r0": np.array(0), "r1": np.array(6), "r2": np.array(1)}  # fmt: skip
    outputs = [value("y", FLOAT, [2, 2]), value("mine", FLOAT, [4, 9]), value("soft", FLOAT, [2, 3]),
               value("seq", INT, [6])]  # fmt: skip
    return _model(nodes, [value("x", FLOAT, [2, 3])], outputs, weights)


def control() -> ModelProto:
    """If, Loop, a quantised product, and an open dimension that is stated."""

    def branch(name: str, kind: str) -> Any:
        return helper.make_graph([node(kind, ["x"], [name])], name, [], [value(name, FLOAT, [2, 2])])

    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Mul", ["v", "v"], ["w"])], "body",
        [value("i", INT, []), value("go", TensorProto.BOOL, []), value("v", FLOAT, [2, 2])],
        [value("on", TensorProto.BOOL, []), value("w", FLOAT, [2, 2])])  # fmt: skip
    nodes = [
        node("If", ["yes"], ["a"], then_branch=branch("t", "Relu"), else_branch=branch("f", "Tanh")),
        node("Loop", ["n", "yes", "a"], ["b"], body=body), node("MatMul", ["b", "m"], ["c"]),
        node("Add", ["c", "m"], ["y"]),
    ]  # fmt: skip
    weights = {"n": np.array(3), "yes": np.array(True), "m": np.eye(2, dtype="f")}
    return _model(nodes, [value("x", FLOAT, [2, 2])], [value("y", FLOAT, [2, 2])], weights)


@lru_cache(maxsize=1)
def models() -> tuple[ModelProto, ...]:
    return convnet(), constants(), control()


@lru_cache(maxsize=1)
def hostiles() -> tuple[ModelProto, ...]:
    """What asks for more than any machine has, and what means nothing."""
    return (*bombs().values(), *nonsense().values())


# -- damage to protobuf messages --


def _spots(message: Message) -> list[tuple[Message, Any]]:
    """Every (message, field that it has) below."""
    found, stack = [], [message]
    while stack:
        top = stack.pop()
        for field, held in top.ListFields():
            found.append((top, field))
            if field.message_type is not None:
                stack.extend(held if _many(field) else [held])
    return found


def _many(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _scalar(rng: Draw, field: Any, old: Any) -> Any:
    if isinstance(old, bytes):
        return rng.choice(
            (
                b"",
                old[:-1],
                old * 2,
                b"\xff" * 8,
                bytes(rng.randrange(256) for _ in range(len(old) % 4096)),
                text(rng).encode(),
            )
        )
    if isinstance(old, str):
        return rng.choice(
            (text(rng), old + "x", rng.choice(("x", "y", "w", "Conv", "Loop", "Reshape", "MatMul", "axis", "../x")))
        )
    if isinstance(old, float):
        return rng.choice((number(rng), -old))
    return rng.choice((number(rng), old + 1, -old, old * 2**31, rng.randrange(-3, 30)))


def _change(rng: Draw, message: Message, field: Any) -> None:
    many = _many(field)
    held = getattr(message, field.name)
    what = rng.randrange(5)
    if what == 0:
        message.ClearField(field.name)
    elif many and what == 1:
        del held[rng.randrange(len(held))]
    elif many and what == 2:
        held.append(rng.choice(held)) if field.message_type is None else held.add().CopyFrom(rng.choice(held))
    elif field.message_type is None and many:
        at = rng.randrange(len(held))
        held[at] = _scalar(rng, field, held[at])
    elif field.message_type is None:
        setattr(message, field.name, _scalar(rng, field, held))
    elif many and len(held) > 1:
        a, b = rng.randrange(len(held)), rng.randrange(len(held))
        held[a].CopyFrom(held[b])


def damaged_model(rng: Draw, sound: ModelProto) -> ModelProto:
    """A copy with one to three changes of fields."""
    model = ModelProto()
    model.CopyFrom(sound)
    for _ in range(0 if rng.sound else rng.choice((1, 1, 2, 3))):
        spots = _spots(model)
        if spots:
            try:
                _change(rng, *rng.choice(spots))
            except (ValueError, TypeError, OverflowError):
                continue  # the field cannot hold that
    return model


def _external(rng: Draw, model: ModelProto) -> None:
    """A weight that says it lies in another file."""
    weight = rng.choice(model.graph.initializer)
    weight.data_location = TensorProto.EXTERNAL
    place = rng.choice(("weights.bin", "../weights.bin", "/etc/passwd", "/dev/zero", "", "\x00"))
    for key, entry in (("location", place), ("offset", str(number(rng))), ("length", str(number(rng)))):
        weight.external_data.add(key=key, value=entry)


def write(rng: Draw, folder: Path) -> Path:
    hostile = rng.random() < 0.1 and not rng.sound
    sound = rng.choice(list(hostiles())) if hostile else rng.choice(models())
    model = sound if hostile and rng.random() < 0.5 else damaged_model(rng, sound)
    file = folder / "model.onnx"
    if rng.random() < 0.03 and not rng.sound and model.graph.initializer:
        _external(rng, model)
    content = model.SerializeToString()
    if rng.random() < 0.1:
        content = damaged_bytes(rng, content)
    file.write_bytes(nested(rng.choice((50, 2000))) if rng.random() < 0.01 and not rng.sound else content)
    return file


def read_as_graph(file: Path) -> None:
    for graph in OnnxFiles(name="onnx", path=str(file), dims={"batch": 2}, train=[], val=[]).graphs("test"):
        verify(graph, file.parent)


def read_as_program(file: Path) -> None:
    """The program can be listed, priced as a graph, and exported to a model that is read again."""
    program = import_onnx(file, {"batch": 2})
    if not inventory(program):
        raise Wrong("nothing is listed")
    graph_of(program, name="program", family="program")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx.save(export_onnx(program), file.parent / "again.onnx")
    again = import_onnx(file.parent / "again.onnx", {"batch": 2})
    if again.num_ops() > program.num_ops() or len(again.outputs) != len(program.outputs):
        raise Wrong(f"{program.num_ops()} ops became {again.num_ops()} on the way out and in")


ONNX = (Format("onnx", write, read_as_graph), Format("onnx_rewrite", write, read_as_program))


# --- One operator, built: every schema of every operator set, with inputs, types, shapes and attributes that fit, are
# odd, or are missing.


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


def _weight(rng: Draw, name: str) -> TensorProto:
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
        AttributeProto.TENSOR: lambda: _weight(rng, "t"), AttributeProto.GRAPH: lambda: _body(rng),
        AttributeProto.GRAPHS: lambda: [_body(rng) for _ in few],
        AttributeProto.TENSORS: lambda: [_weight(rng, "t") for _ in few],
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
                              [_weight(rng, name) for name in sorted({*names, "w0"}) if name[:1] == "w"])  # fmt: skip
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


def write_built(rng: Draw, folder: Path) -> Path:
    file = folder / "model.onnx"
    file.write_bytes(built(rng).SerializeToString())
    return file


ONNX_OPERATORS = (
    Format("onnx_operator", write_built, read_as_graph),
    Format("onnx_operator_rewrite", write_built, read_as_program),
)
