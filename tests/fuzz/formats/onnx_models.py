"""ONNX models as graphs (`dataset=onnx`) and as programs to be rewritten: whole ones, damaged; one operator, built."""

import copy
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hostile_models import bombs, nested, nonsense
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.defs import OpSchema

from graphopt.graphs.onnx import OnnxFiles
from graphopt.rewrite.check import inventory
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.io.onnx_export import export_onnx
from graphopt.rewrite.io.onnx_import import import_onnx

from ..judge import Format, Wrong
from ..mutate import Draw, damaged, damaged_bytes, number, text
from .graphs import verify

HEAD = '<ir_version: 8, opset_import: ["": 17, "d": 1, "ai.onnx.ml": 3]>'
# A convolutional network; arithmetic on shapes, and what computes its own size; If and Loop.
MODELS = (
    """g (float[2,3,8,8] x) => (float[2,5] y)
    <float[4] b = {0,0,0,0}, float[4] s = {1,1,1,1}, int64[1] rest = {-1}, int64[1] first = {0}>
    {
        [conv] c = Conv <pads=[1,1,1,1], strides=[1,1], kernel_shape=[3,3]> (x, w, b)
        [norm] n = BatchNormalization <epsilon=0.00001> (c, s, b, b, s)
        r = Relu(n)
        p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)
        size = Shape(p)
        batch = Gather(size, first)
        flat = Concat <axis=0> (batch, rest)
        q = Reshape(p, flat)
        y = Gemm <transB=1, alpha=0.5> (q, m)
    }""",
    """g (float[2,3] x) => (float[2,2] y, float[4,9] mine, float[2,3] soft, int64[6] seq)
    <int64[2] big = {2,3}, int64[4] pads = {1,0,1,0}, int64[2] from = {0,0}, int64[2] to = {2,2},
     int64 r0 = {0}, int64 r1 = {6}, int64 r2 = {1}>
    {
        k = Constant <value = int64[2] {2,3}> ()
        z = ConstantOfShape <value = float[1] {1.5}> (k)
        a = Add(x, z)
        e = Expand(a, big)
        t = Tile(a, k)
        seq = Range(r0, r1, r2)
        padded = Pad(a, pads)
        cut = Slice(e, from, to)
        y = Transpose <perm=[1,0]> (cut)
        s1, s2 = Split <axis=0> (padded)
        mine = d.MyOp <level=3> (t)
        soft = Softmax <axis=-1> (s1)
    }""",
    """g (float[2,2] x) => (float[2,2] y)
    <int64 n = {3}, bool yes = {1}, float[2,2] m = {1,0,0,1}>
    {
        a = If (yes) <then_branch = t () => (float[2,2] t) { t = Relu(x) },
                      else_branch = f () => (float[2,2] f) { f = Tanh(x) }>
        b = Loop <body = body (int64 i, bool go, float[2,2] v) => (bool on, float[2,2] w)
                         { on = Identity(go) w = Mul(v, v) }> (n, yes, a)
        c = MatMul(b, m)
        y = Add(c, m)
    }""",
)


@lru_cache(maxsize=1)
def models() -> tuple[ModelProto, ...]:
    found = tuple(onnx.parser.parse_model(HEAD + source) for source in MODELS)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("m", (5, 64))):
        weight = onnx.numpy_helper.from_array(rng.standard_normal(shape).astype("f"), name)
        found[0].graph.initializer.append(weight)
    return found


@lru_cache(maxsize=1)
def hostiles() -> tuple[ModelProto, ...]:
    """What asks for more than any machine has, and what means nothing."""
    return (*bombs().values(), *nonsense().values())


def _external(rng: Draw, model: ModelProto) -> None:
    """A weight that says it lies in another file."""
    weight = rng.choice(model.graph.initializer)
    weight.data_location = TensorProto.EXTERNAL
    place = rng.choice(("weights.bin", "../weights.bin", "/etc/passwd", "/dev/zero", "", "\x00"))
    for key, entry in (("location", place), ("offset", str(number(rng))), ("length", str(number(rng)))):
        weight.external_data.add(key=key, value=entry)


def write(rng: Draw, folder: Path) -> Path:
    hostile = rng.random() < 0.1 and not rng.sound
    sound = rng.choice(hostiles() if hostile else models())
    model = copy.deepcopy(sound) if hostile and rng.random() < 0.5 else damaged(rng, sound)
    if not isinstance(model, ModelProto):  # the damage of a nest may replace it as a whole
        model = ModelProto()
    if rng.random() < 0.03 and not rng.sound and model.graph.initializer:
        _external(rng, model)
    content = damaged_bytes(rng, model.SerializeToString()) if rng.random() < 0.1 else model.SerializeToString()
    file = folder / "model.onnx"
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
    node = helper.make_node(rng.choice(("Identity", "Relu", "Add", "Shape", "Loop")), ["b0", "b1"], ["c"])
    output = _typed(rng, rng.choice(("c", "b0", "x0")))
    return helper.make_graph([node][: rng.choice((0, 1, 1))], "body", inputs, [output])


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
        return onnx.parser.parse_model(HEAD + "g (float[2,3] x0) => (float[2,3] y0) { y0 = Relu(x0) }")
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
        chosen = helper.make_node("If", ["go"], [o.name for o in outputs], then_branch=inner, else_branch=inner)
        graph.node.append(chosen)
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
