"""Execution traces of PyTorch (`torch.profiler.ExecutionTraceObserver`, the JSON that Chakra reads) to `Graph`.

A trace is a tree of calls. Of each branch the outermost operator with a kind of ours is one op (`addmm`, not the
operators that it calls); a branch without any is one opaque op for each leaf. Operators that only make room are none.
Values follow storages: a read depends on the last write into the tensor's storage, whichever view made it. Values that
nothing wrote are inputs; values that nothing reads are outputs. Collectives are opaque. Times are not read, since these
traces hold none.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder, known_dtype
from graphopt.core.utils.limits import JSON_BYTES, read_json
from graphopt.graphs.readers.pytorch.aten_table import KIND, flops, kind_of

FURTHER = {  # operators that are opened where programs are captured
    "native_layer_norm": "layer_norm", "native_group_norm": "layer_norm", "native_batch_norm": "layer_norm",
    "cudnn_batch_norm": "layer_norm", "native_layer_norm_backward": "layer_norm", "_softmax": "softmax",
    "native_batch_norm_backward": "layer_norm", "_log_softmax": "softmax", "_softmax_backward_data": "softmax",
    "_log_softmax_backward_data": "softmax", "native_dropout": "random", "leaky_relu": "relu", "t": "transpose",
    "max_pool2d_with_indices": "pool_max", "gelu_backward": "gelu", "embedding_dense_backward": "scatter",
}  # fmt: skip
ROOM = frozenset(("empty", "empty_strided", "empty_like", "new_empty", "resize", "set", "zero_numel"))
SAME = frozenset(
    (
        "detach",
        "alias",
        "resolve_conj",
        "resolve_neg",
        "lift_fresh",
        "contiguous",
        "to",
        "item",
        "_local_scalar_dense",
        "is_nonzero",
    )
)  # no work unless they call an operator that copies
DTYPES = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "int": "int32",
          "long int": "int64", "long": "int64", "short int": "int16", "short": "int16", "signed char": "int8",
          "unsigned char": "uint8", "bool": "bool", "c10::complex<float>": "complex64",
          "c10::complex<double>": "complex128"}  # fmt: skip
_TENSOR = re.compile(r"Tensor\((.*)\)$")
MOST_DEPTH = 500


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of a trace. key: its number and its storage's."""

    key: tuple[int, int]
    shape: tuple[int, ...]
    dtype: str


@dataclass(slots=True)
class _Called:
    """schema: empty for other calls than operators."""

    number: int
    name: str
    schema: str
    arguments: list[Any]
    inputs: list[_Value]
    outputs: list[_Value]
    children: "list[_Called]" = field(default_factory=list)


def read_execution_trace(path: str | Path) -> Graph:
    """Raises GraphError, in one sentence, on a file that is none."""
    path = Path(path)
    try:
        data = read_json(path, JSON_BYTES)
        name = path.name.removesuffix(".gz").removesuffix(".json")
        return _Written(name).graph(_calls(data["nodes"]))
    except (Unreadable, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise GraphError(f"{path} is no execution trace of PyTorch ({error!r})") from None


def _calls(nodes: list[Any]) -> list[_Called]:
    """Those that no other call makes, in the order of their numbers, which is that of time."""
    made, parent = dict[int, _Called](), dict[int, int]()
    for node in sorted(nodes, key=lambda node: int(node["id"])):
        schema = next((str(a["value"]) for a in node.get("attrs", []) if a["name"] == "op_schema"), "")
        number = int(node["id"])
        if number in made:
            raise ValueError(f"two nodes have the id {number}")
        made[number] = _Called(number, str(node["name"]), schema, list(node["inputs"]["values"]),
                             list(_values(node["inputs"])), list(_values(node["outputs"])))  # fmt: skip
        parent[number] = int(node["ctrl_deps"])
    for number, call in made.items():
        if parent[number] in made and parent[number] < number:
            made[parent[number]].children.append(call)
    return [call for number, call in made.items() if parent[number] not in made or parent[number] >= number]


def _values(side: Mapping[str, Any]) -> Iterator[_Value]:
    for kind, value, shape in zip(side["types"], side["values"], side["shapes"], strict=True):
        yield from _tensors(str(kind), value, shape)


def _tensors(kind: str, value: Any, shape: Any) -> Iterator[_Value]:
    if kind.startswith("GenericList[") and isinstance(value, list):
        inner = kind.removeprefix("GenericList[").removesuffix("]").split(",")
        for each, part, dims in zip(inner, value, shape):
            yield from _tensors(each, part, dims)
    elif (found := _TENSOR.match(kind)) is not None:
        dims = tuple(int(dim) for dim in shape)
        yield _Value((int(value[0]), int(value[1])), dims, known_dtype(DTYPES.get(found[1], "int8")))


class _Written:
    """The ops so far."""

    def __init__(self, name: str) -> None:
        self._builder = GraphBuilder(name)
        self._tensor: dict[tuple[int, int], int] = {}  # of tensors that are as the last write left them
        self._views: dict[int, set[tuple[int, int]]] = defaultdict(set)  # storage -> those
        self._last: dict[int, int] = {}  # storage -> the tensor that was written last
        self._read = set[int]()
        self._made: list[int] = []

    def graph(self, calls: list[_Called]) -> Graph:
        for call in calls:
            self._walk(call, 0)
        for tensor in self._made:
            if tensor not in self._read:
                self._builder.output(tensor)
        return self._builder.build()

    def _walk(self, call: _Called, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise ValueError("its calls are nested too deeply")
        name = call.name.rpartition("::")[2]
        plain = name.removesuffix("_") if name not in KIND else name
        if call.schema and plain in ROOM:
            return
        overload = call.schema.split("(")[0].rpartition(".")[2] if "." in call.schema.split("(")[0] else ""
        kind = kind_of(plain, overload, tuple(call.arguments)) or FURTHER.get(plain) if call.schema else None
        inner = [child for child in call.children if self._works(child)]
        if kind is not None and plain not in SAME:
            self._op(call, plain, kind)
        elif inner:
            for child in inner:
                self._walk(child, depth + 1)
        elif plain in SAME:
            for made, given in zip(call.outputs, call.inputs):
                self._alias(made, given)
        elif call.outputs and (call.schema or call.inputs):
            self._op(call, plain, "opaque")

    def _works(self, call: _Called) -> bool:
        return bool(call.outputs or call.children)

    def _op(self, call: _Called, plain: str, kind: str) -> None:
        writes = "!)" in call.schema and "Tensor(a!" in call.schema
        inputs = [self._reading(value) for value in call.inputs]
        outputs = call.outputs or (call.inputs[:1] if writes else [])
        storages = {value.key[1] for value in call.inputs}
        made = []
        for value in dict.fromkeys(outputs):
            made.append(self._builder.tensor(value.shape, value.dtype))
            self._put(value, made[-1], fresh=writes or value.key[1] not in storages)
        counted = flops(plain, kind, call.arguments, call.inputs, call.outputs) if kind != "opaque" else 0.0
        self._builder.op(kind, inputs, made, flops=counted, name=f"{plain}_{call.number}")
        self._read.update(inputs)
        self._made += made

    def _reading(self, value: _Value) -> int:
        storage = value.key[1]
        if value.key in self._tensor:
            return self._tensor[value.key]
        if storage in self._last:  # a view that no op made, or one from before the last write
            return self._last[storage]
        tensor = self._builder.tensor(value.shape, value.dtype)
        self._put(value, tensor, fresh=True)
        return tensor

    def _put(self, value: _Value, tensor: int, *, fresh: bool) -> None:
        """fresh: the storage has new content, so that older views of it are read no more."""
        storage = value.key[1]
        if fresh:
            for key in self._views.pop(storage, set()):
                self._tensor.pop(key, None)
            self._last[storage] = tensor
        self._tensor[value.key] = tensor
        self._views[storage].add(value.key)

    def _alias(self, made: _Value, given: _Value) -> None:
        if prod(made.shape) == prod(given.shape):
            self._put(made, self._reading(given), fresh=False)
