"""ONNX models as graphs: one op per compute node; initialisers and results of constants alone are weights.

Weights are read by shape and type only, so a model's external weight files need not be there.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.limits import machine_memory, read_bytes
from graphopt.graphs.readers.onnx.folding import SMALL
from graphopt.graphs.readers.onnx.inference import inlined, settled
from graphopt.graphs.readers.onnx.model import BITS, put_in_order, stored_in, vet
from graphopt.graphs.readers.onnx.translation import Translation

MOST_BYTES = 2**31  # of a file; the format has no larger ones


@dataclass(frozen=True)
class OnnxProgram:
    """Where the executable model is. `load` reads it whole, external weights too, with the given dimensions fixed."""

    path: Path
    dims: tuple[tuple[str, int], ...]

    def load(self) -> ModelProto:
        model = parse(self.path, external=True)
        fix_dims(model, dict(self.dims), self.path)
        return model


def read_onnx(path: str | Path, *, family: str | None = None, dims: Mapping[str, int] | None = None) -> Graph:
    """Reads a model. Unknown operators become opaque ops, with one warning per model that counts them.

    dims fixes open input dimensions by name (unnamed ones: `<input>_<axis>`). The family defaults to the file's name.
    Raises GraphError for a file that is no model, or has open dimensions, a cycle, no op or an input without maker.
    """
    path, dims = Path(path), dict(dims or {})
    model = parse(path, external=False)
    fix_dims(model, dims, path)
    model = inferred(model, path)
    program = OnnxProgram(path.resolve(), tuple(sorted(dims.items())))
    return Translation(model, path.stem, family).build(program)


def parse(path: Path, *, external: bool) -> ModelProto:
    """The model in a file, its weights from other files too with `external`. Raises GraphError as `read_onnx`."""
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of an ONNX model")
    try:
        model = onnx.load_model_from_string(read_bytes(path, MOST_BYTES), format="protobuf")
    except (DecodeError, UnicodeDecodeError) as error:
        raise GraphError(f"{path} is not an ONNX model, or is damaged ({_short(error)}); export it again") from error
    model = checked(model, path)
    if external:
        _load_weights(model, path)
    return model


def _load_weights(model: ModelProto, path: Path) -> None:
    """Fetches the weights that lie in other files, which have to be in the model's folder, in place."""
    try:
        stored = [t for t in stored_in(model, str(path)) if uses_external_data(t)]
        if sum(map(_claimed, stored)) > machine_memory():
            raise ValueError("they are larger than this machine's memory")
        for tensor in stored:
            where = {entry.key: entry.value for entry in tensor.external_data}
            if int(where.get("length", _claimed(tensor))) != _claimed(tensor):
                raise ValueError(f"{tensor.name!r} has another length than its shape")
            if "length" not in where:
                tensor.external_data.add(key="length", value=str(_claimed(tensor)))
            if not (path.parent / where.get("location", "")).is_file():  # a pipe could be waited for for ever
                raise ValueError(f"{where.get('location', '')!r} is no file")
            load_external_data_for_tensor(tensor, str(path.parent))
    except Exception as error:  # the system's, and those of onnx, which checks paths and sizes
        raise GraphError(
            f"{path} needs weight files that cannot be read ({_short(error)}); put them next to it"
        ) from error


def _claimed(tensor: TensorProto) -> int:
    """Bytes of a tensor of its shape."""
    bits: int = prod(tensor.dims) * BITS.get(tensor.data_type, 8)
    return (bits + 7) // 8


def checked(model: ModelProto, path: Path) -> ModelProto:
    """The model, functions inlined, nodes in order. Raises GraphError when it is none, or is empty or cyclic."""
    if not model.HasField("graph") or not model.opset_import:
        raise GraphError(f"{path} is not an ONNX model (it has no graph or names no operator set); export it again")
    if not model.graph.node:
        raise GraphError(f"{path} holds no operators: there is nothing to optimise")
    vet(model, str(path))
    model = inlined(model, str(path)) if model.functions else model
    put_in_order(model.graph, str(path))
    return model


def fix_dims(model: ModelProto, dims: Mapping[str, int], path: Path) -> None:
    """Fixes open dimensions of inputs in place, everywhere by name; drops stated shapes that stay open."""
    graph = model.graph
    weights = {w.name for w in graph.initializer}
    open_dims: dict[str, str] = {}
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value < 0:  # some exporters write -1
                dim.ClearField("dim_value")
            if not dim.HasField("dim_value"):
                label = dim.dim_param or f"{value.name}_{axis}"
                if label in dims:
                    dim.dim_value = dims[label]
                elif value.name not in weights:
                    open_dims.setdefault(label, value.name)
    if open_dims:
        fix = ", ".join(f"{label}: 1" for label in list(open_dims)[:8])
        label, value_name = next(iter(open_dims.items()))
        raise GraphError(f"{path}: dimension {label!r} of input {value_name!r} is not fixed; "
                         f"give sizes, for example '+dataset.dims={{{fix}}}' (in Python: settings=[...])")  # fmt: skip
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
        if any(not d.HasField("dim_value") or d.dim_value < 0 for d in value.type.tensor_type.shape.dim):
            value.type.tensor_type.ClearField("shape")


def inferred(model: ModelProto, path: Path) -> ModelProto:
    """The model with shapes, without the payload of its large weights, which are dropped in place."""
    for weight in model.graph.initializer:
        if prod(weight.dims) > SMALL:
            for payload in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                weight.ClearField(payload)
    model, said = settled(model, str(path))
    if said:
        warnings.warn(f"{path}: shape inference says {said!r}; stated shapes are used there", stacklevel=3)
    return model


def _short(error: Exception) -> str:
    return repr(" ".join(str(error).split())[:160])
