"""ONNX nodes outside the vocabulary: kept as they are, with names of their own, runnable one by one."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from graphopt.core.errors import UserError
from graphopt.graphs.readers.onnx.folding import STANDARD
from graphopt.graphs.readers.onnx.model import made_in, plain_attributes, subgraphs
from graphopt.graphs.readers.onnx.onnx_operators import NodeShapes, formula_of, kind_of, work_of
from graphopt.rewrite.ir.vocabulary import TensorType

Array = NDArray[Any]
RUN_SECONDS = 600.0
TORCH_OPSET = 18  # of programs that come from torch: the first that torch.onnx writes
Run = Callable[[dict[str, Any]], list[Any]]
_INPUT, _CONSTANT, _OUTPUT = "graphopt.x", "graphopt.c", "graphopt.y"  # names inside a call


@dataclass(frozen=True)
class OnnxOrigin:
    """Facts for export about the model that a program was read from."""

    opsets: tuple[tuple[str, int], ...]
    ir_version: int
    name: str
    inputs: tuple[ValueInfoProto, ...]
    outputs: tuple[ValueInfoProto, ...]
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class OnnxCall:
    """One node. It reads graphopt.x0, x1, ... (`types`, as serialized TypeProtos) and its own constants, and makes
    graphopt.y0, y1, ...; optional outputs that are left out do not count."""

    node: bytes  # NodeProto
    constants: tuple[bytes, ...]  # TensorProtos: shapes, axes and the like, which belong to the operation
    types: tuple[bytes, ...]
    opsets: tuple[tuple[str, int], ...]

    @property
    def proto(self) -> NodeProto:
        node = NodeProto()
        node.ParseFromString(self.node)
        return node

    @property
    def label(self) -> str:
        node = self.proto
        return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"

    @property
    def kind(self) -> str:
        node = self.proto
        return kind_of(node.domain, node.op_type) or "opaque"

    @property
    def key(self) -> str:
        """Equal calls have equal keys."""
        digest = sha256(b"|".join([self.node, *self.constants, *self.types, repr(self.opsets).encode()]))
        return f"{self.label}.{digest.hexdigest()[:12]}"

    def flops(self, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
        """By the operator's formula; loops and branches, whose bodies are not looked at here, by elements."""
        node, shapes = self.proto, [i.shape for i in inputs]
        small = {c.name: tuple(c.dims) for c in self._tensors()}
        places = {f"{_INPUT}{i}": shape for i, shape in enumerate(shapes)}
        read = [places.get(name, small.get(name)) for name in node.input]
        call = NodeShapes(node.op_type, plain_attributes(node), read, [r.shape for r in results], node.domain)
        return work_of(call).flop if formula_of(call) else None

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """By ONNX Runtime where it is installed and knows the operator, else by ONNX's reference implementation."""
        from graphopt.rewrite.ir.execution import to_array  # torch, which reading and writing models does not need

        given = [_cast(value if isinstance(value, list) else to_array(value), kind)
                 for value, kind in zip(inputs, self.types, strict=True)]  # fmt: skip
        runner = _runner(self)
        try:
            return runner({f"{_INPUT}{i}": value for i, value in enumerate(given)})
        except Exception as error:
            said = " ".join(str(error).split())[:160]
            raise UserError(f"operator {self.label} does not run on what it is given ({said}); shapes and the like "
                            "must be constants") from error  # fmt: skip

    def placed(self, inputs: Sequence[str], outputs: Sequence[str], prefix: str
               ) -> tuple[list[NodeProto], list[TensorProto]]:  # fmt: skip
        """The node between tensors of these names, and its constants, whose names begin with the prefix."""
        node, constants = self.proto, self._tensors()
        names = {f"{_INPUT}{i}": name for i, name in enumerate(inputs)}
        names |= {f"{_OUTPUT}{i}": name for i, name in enumerate(outputs)}
        for i, constant in enumerate(constants):
            names[constant.name] = constant.name = f"{prefix}_c{i}"
        rename(node, names)
        return [node], constants

    def inner_names(self) -> set[str]:
        """Names that are used inside the node's subgraphs."""
        return {name for g in subgraphs(self.proto) for name in _names(g)}

    def _tensors(self) -> list[TensorProto]:
        return [TensorProto.FromString(c) for c in self.constants]

    def model(self) -> ModelProto:
        """The node as a model that computes its outputs."""
        node = self.proto
        inputs = [ValueInfoProto(name=f"{_INPUT}{i}", type=TypeProto.FromString(t)) for i, t in enumerate(self.types)]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "one", inputs, outputs, self._tensors())
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self.opsets]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_call(node: NodeProto, operands: Sequence[tuple[str, TypeProto | None]], constants: Mapping[str, Array],
              opsets: Mapping[str, int]) -> OnnxCall:  # fmt: skip
    """The call of a node that reads the operands, in order, and the constants; both by the names it uses."""
    copy = NodeProto.FromString(node.SerializeToString())
    copy.ClearField("name")
    copy.ClearField("doc_string")
    names = {name: f"{_INPUT}{i}" for i, (name, _) in enumerate(operands)}
    names |= {name: f"{_CONSTANT}{i}" for i, name in enumerate(constants)}
    names |= {name: f"{_OUTPUT}{i}" for i, name in enumerate(n for n in node.output if n)}
    rename(copy, names)
    stored = [onnx.numpy_helper.from_array(np.asarray(a), names[n]).SerializeToString() for n, a in constants.items()]
    return OnnxCall(copy.SerializeToString(deterministic=True), tuple(stored),
                    tuple(_without_shape(kind) for _, kind in operands), tuple(sorted(opsets.items())))  # fmt: skip


def rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Other names for tensors, in place, also where subgraphs read them; names that subgraphs make stay."""
    for listed in (node.input, node.output):
        for i, name in enumerate(listed):
            listed[i] = names.get(name, name)
    for graph in subgraphs(node):
        made = made_in(graph)
        outer = {old: new for old, new in names.items() if old not in made}
        for inner in graph.node:
            rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def _names(graph: GraphProto) -> Iterable[str]:
    yield from (v.name for v in graph.input)
    yield from (w.name for w in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in subgraphs(node):
            yield from _names(inner)


def _without_shape(kind: TypeProto | None) -> bytes:
    if kind is None:
        return b""
    copy = TypeProto.FromString(kind.SerializeToString())
    if copy.HasField("tensor_type"):
        copy.tensor_type.ClearField("shape")
    return bytes(copy.SerializeToString(deterministic=True))


def _cast(value: Any, kind: bytes) -> Any:
    """An array in the element type that the node states."""
    stated = TypeProto.FromString(kind)
    if not isinstance(value, np.ndarray) or not stated.HasField("tensor_type"):
        return value
    return value.astype(onnx.helper.tensor_dtype_to_np_dtype(stated.tensor_type.elem_type), copy=False)


@lru_cache(maxsize=4096)
def _runner(call: OnnxCall) -> Run:
    """Runs one call; made once per call."""
    model = call.model()
    try:
        return onnxruntime_runner(model)
    except Exception:  # not installed, or it has no kernel for the operator: the reference may have one
        from onnx.reference import ReferenceEvaluator

        try:
            evaluator = ReferenceEvaluator(model)
        except Exception as error:
            raise UserError(f"operator {call.label} cannot be run here ({' '.join(str(error).split())[:160]}); "
                            "export the model without it") from error  # fmt: skip
        return lambda feeds: list(evaluator.run(None, feeds))


def onnxruntime_runner(model: ModelProto | str) -> Run:
    """Runs a model, or a file, with ONNX Runtime on one thread. Raises the runtime's exception when it refuses it; a
    run that takes longer than `RUN_SECONDS` (a loop may have 10^12 trips) is stopped and is such an error too."""
    import onnxruntime

    session = onnxruntime_session(model)

    def run(feeds: dict[str, Any]) -> list[Any]:
        options = onnxruntime.RunOptions()
        stop = threading.Timer(RUN_SECONDS, setattr, (options, "terminate", True))
        stop.daemon = True
        stop.start()
        try:
            return list(session.run(None, feeds, options))
        finally:
            stop.cancel()

    return run


def onnxruntime_session(model: ModelProto | str, *, optimisations: str = "default", profile: str = "",
                        written: str = "") -> Any:  # fmt: skip
    """A model, or a file, made ready on one thread. optimisations: ONNX Runtime's own, `default`, `off`, or the name of
    one that is left out. profile: how the name of the file begins that tells the time of each kernel. written: where
    the optimised model goes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if written:
        options.optimized_model_filepath = written
    if optimisations == "off":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, str) else model.SerializeToString()
    without = [] if optimisations in ("default", "off") else [optimisations]
    return onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"], disabled_optimizers=without)
