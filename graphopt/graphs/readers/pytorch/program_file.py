"""Programs of tensor operators, and files of them: JSON, read as data.

A program file names operators of torch, never functions. Shapes and types are found again when it is read, by running
it on fake tensors; strides are kept, since a compiler's passes leave others than would follow.
"""

import gzip
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args
from unittest import mock

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_map_only

from graphopt.core.compiler import Device
from graphopt.core.errors import Unreadable
from graphopt.core.graph import GraphError
from graphopt.core.utils.limits import machine_memory, parse_json, read_bytes, unpack_gzip
from graphopt.core.utils.process import CopyCrash, rehearse
from graphopt.core.utils.whole import whole_file
from graphopt.graphs.readers.pytorch.nested_tensors import tensors_in
from graphopt.graphs.readers.pytorch.program_inputs import (
    InputSpec,
    describe,
    extent,
    from_raw,
    make_inputs,
    raw,
    torch_dtype,
)
from graphopt.graphs.readers.pytorch.program_operators import (
    GETITEM,
    check_call,
    check_parts,
    decode,
    encode,
    operator_of,
    target_name,
    target_of,
)

__all__ = [
    "FxProgram",
    "InputSpec",
    "describe",
    "key_of",
    "load_program",
    "make_inputs",
    "packed_program",
    "program_device",
    "save_program",
    "unpacked_program",
]  # fmt: skip

Phase = Literal["inference", "forward", "backward"]
FORMAT = 1  # of the file; a reader refuses others
FILE_BYTES = 256 * 2**20  # unpacked
CONSTANT_BYTES = 32 * 2**20  # of all constant tensors of a program
MOST_NODES = 50_000
READING = 2 * 2**30  # bytes of memory to find the shapes of a program in, beside its file
ENDING = ".program.json.gz"
_NAME = re.compile(r"[A-Za-z_]\w{0,200}", re.ASCII)  # it becomes part of Python and C++ sources
_SHAPED: set[bytes] = set()  # digests of contents whose shapes have been found here
_CAPTURED: set[bytes] = set()  # of those that come from no file
_OPS = ("placeholder", "get_attr", "call_function", "output")


@dataclass(frozen=True, eq=False)
class FxProgram:
    """A graph of tensor operators with fixed shapes, and its inputs.

    gm: flat tensors in, a flat tuple or list of tensors (or None) out; `meta["val"]` of its nodes are fake tensors. It
    may write into inputs (`aten.copy_`). phase, donated: facts for a compiler beside the graph: which part of a
    training step this is, and the inputs whose memory may be used for results. device: where all inputs lie. choices:
    nodes that the compiler may as well store as inline -> whether it stores them, where that is known. Without a GPU it
    cannot be asked about programs of one.
    """

    gm: GraphModule
    inputs: tuple[InputSpec, ...]
    phase: Phase = "inference"
    donated: tuple[int, ...] = ()
    device: Device = "cpu"
    choices: Mapping[str, bool] | None = None

    def __post_init__(self) -> None:
        for node in self.gm.graph.nodes:  # passes of TorchInductor leave some operators without their overload
            if isinstance(node.target, torch._ops.OpOverloadPacket) and hasattr(node.target, "default"):
                node.target = node.target.default


def save_program(path: str | Path, program: FxProgram) -> None:
    """Writes the program, all or nothing. Raises GraphError when it holds other calls than tensor operators, or large
    constants."""
    content = packed_program(program)
    with whole_file(Path(path)) as file:
        file.write(content)


def packed_program(program: FxProgram) -> bytes:
    """The content of a program's file. Raises GraphError as `save_program`."""
    content = gzip.compress(json.dumps(_to_json(program), separators=(",", ":")).encode(), mtime=0)
    _SHAPED.add(sha256(content).digest())
    if "read" not in program.gm.meta:
        _CAPTURED.add(sha256(content).digest())
    return content


def captured_here(content: bytes) -> bool:
    """Whether this process has captured the program of that content, which then comes from no file."""
    return sha256(content).digest() in _CAPTURED


def key_of(gm: GraphModule, phase: Phase) -> str:
    """Equal for the same nodes, by their names, on inputs of the same shapes, types and devices, for any values. A
    program has the same key in its file. Raises GraphError as `save_program`, and for open shapes."""
    given = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    sizes = [size for value in given for size in getattr(value, "shape", ("none",))]
    if not all(type(size) is int for size in sizes):
        raise GraphError("a program of changing shapes has no key; give inputs of fixed shapes")
    inputs = [[list(value.shape), str(value.dtype), *([] if value.device.type == "cpu" else [str(value.device)])]
              for value in given]  # fmt: skip
    nodes = [{k: v for k, v in _node_to_json(node).items() if k != "of"} for node in gm.graph.nodes]
    return sha256(json.dumps([phase, inputs, nodes], sort_keys=True).encode()).hexdigest()[:24]


def _to_json(program: FxProgram) -> dict[str, Any]:
    nodes = list(program.gm.graph.nodes)
    constants = {str(n.target): _constant(program.gm, str(n.target)) for n in nodes if n.op == "get_attr"}
    if sum(t.nbytes for t in constants.values()) > CONSTANT_BYTES:
        raise GraphError(f"a program with constants of more than {CONSTANT_BYTES:,} bytes is not stored; "
                         "make them inputs")  # fmt: skip
    return {
        "format": FORMAT,
        "phase": program.phase,
        "donated": list(program.donated),
        "inputs": [_spec_to_json(spec) for spec in program.inputs],
        "constants": {
            name: {
                "dtype": str(t.dtype).removeprefix("torch."),
                "shape": list(t.shape),
                "values": _text(raw(t.cpu())),
                **({"device": "cuda"} if t.is_cuda else {}),
            }
            for name, t in constants.items()
        },
        "nodes": [_node_to_json(node) for node in nodes],
        "visible": list(nodes[-1].meta.get("user_visible_output_idxs", [])),
        "strides": nodes[-1].meta.get("original_output_strides"),
        **({} if program.device == "cpu" else {"device": program.device}),
        **({} if program.choices is None else {"choices": dict(program.choices)}),
    }


def _constant(gm: GraphModule, name: str) -> torch.Tensor:
    value = getattr(gm, name, None)
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"constant {name} is no tensor, so the program cannot be stored")
    return value.detach()


def _text(values: bytes) -> str:
    return b64encode(values).decode()


def _spec_to_json(spec: InputSpec) -> dict[str, Any]:
    return {"shape": spec.shape, "stride": spec.stride, "dtype": spec.dtype, "fill": spec.fill,
            "numbers": spec.numbers, "values": _text(spec.values)}  # fmt: skip


def _node_to_json(node: Node) -> dict[str, Any]:
    call = node.op == "call_function"
    made: dict[str, Any] = {"name": node.name, "op": node.op,
                            "target": target_name(node.target) if call else str(node.target)}  # fmt: skip
    if call or node.op == "output":
        made |= {"args": [encode(a) for a in node.args], "kwargs": {k: encode(v) for k, v in node.kwargs.items()}}
    if call:
        _check_call(node.target, node.args, node.kwargs)
        made["strides"] = _strides(node.meta.get("val"))
        made["of"] = _origin(node)
    return made


def _check_call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphError where arguments are not of the kinds that an operator takes."""
    if isinstance(target, torch._ops.OpOverload):
        check_call(target, args, kwargs)
    elif len(args) != 2 or kwargs or not isinstance(args[0], Node) or type(args[1]) is not int:
        raise GraphError(f"{GETITEM} takes one of several results by its number")


def _strides(value: Any) -> Any:
    """Strides of a tensor, or a list of those of several."""
    if isinstance(value, tuple | list):
        return {"several": [_strides(v) for v in value]}
    return list(value.stride()) if isinstance(value, torch.Tensor) else None


def _origin(node: Node) -> str | None:
    """The operator of the user's program that a node stems from: kernels are named after it."""
    try:
        return str(operator_of(str(node.meta.get("original_aten"))))
    except GraphError:
        return None


def load_program(path: str | Path) -> FxProgram:
    """Reads a file of `save_program`. Raises GraphError, in one sentence, when the file is none, or damaged."""
    try:
        content = read_bytes(path, FILE_BYTES)
    except Unreadable as error:
        raise GraphError(str(error)) from None
    return unpacked_program(content, str(path))


def unpacked_program(content: bytes, path: str) -> FxProgram:
    """The same of a file's content in memory. path: for messages."""
    if sha256(content).digest() not in _SHAPED:
        try:
            rehearse(
                lambda: _unpacked(content, path),
                READING + 16 * len(content),
                f"{path}: finding the shapes of this program",
            )
        except CopyCrash as error:
            raise GraphError(str(error)) from None
        _SHAPED.add(sha256(content).digest())
    program = _unpacked(content, path)
    for name in program.gm.meta["on_gpu"] if torch.cuda.is_available() else ():
        program.gm.register_buffer(name, getattr(program.gm, name).cuda())
    return program


def program_device(content: bytes, path: str) -> Device:
    """Where the program of a file's content runs. Raises GraphError for other content."""
    try:
        stored = parse_json(unpack_gzip(content, FILE_BYTES, path), path, FILE_BYTES)
    except Unreadable as error:
        raise GraphError(str(error)) from None
    return "cuda" if isinstance(stored, dict) and stored.get("device") == "cuda" else "cpu"


def _unpacked(content: bytes, path: str) -> FxProgram:
    try:
        stored = parse_json(unpack_gzip(content, FILE_BYTES, path), path, FILE_BYTES)
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise GraphError(f"it has another format than this version reads, {FORMAT}")
        program = _from_json(stored)
        program.gm.meta["read"] = True
        program.gm.meta["on_gpu"] = {name for name, of in stored["constants"].items() if of.get("device") == "cuda"}
        _propagate(program, stored)
        return program
    except Unreadable as error:
        raise GraphError(str(error)) from None
    except MemoryError:
        raise
    except Exception as error:  # any exception of operators on arguments that do not fit
        said = " ".join(f"{type(error).__name__}: {error}".split()).partition(" While executing %")[0][:300]  # FX's own
        raise GraphError(f"{path} holds no program ({said}); write it anew") from None


def _from_json(stored: Mapping[str, Any]) -> FxProgram:
    if not isinstance(stored["nodes"], list) or len(stored["nodes"]) > MOST_NODES:
        raise GraphError(f"a program has at most {MOST_NODES:,} nodes")
    inputs = tuple(_spec(spec) for spec in stored["inputs"])
    gm = GraphModule(_constants(stored["constants"]), _graph(stored["nodes"]))
    if len(gm.graph.find_nodes(op="placeholder")) != len(inputs):
        raise GraphError("its inputs are not those that it describes")
    last = next(iter(reversed(gm.graph.nodes)))
    last.meta["user_visible_output_idxs"] = _whole(stored["visible"])
    strides = stored["strides"]
    last.meta["original_output_strides"] = strides and [None if s is None else _whole(s) for s in strides]
    if stored["phase"] not in get_args(Phase):
        raise GraphError(f"{stored['phase']!r} is no phase of a program")
    device, choices = stored.get("device", "cpu"), stored.get("choices")
    if device not in get_args(Device):
        raise GraphError(f"{str(device)[:50]!r} is no device of a program")
    if choices is not None:
        choices = {_name(name): bool(value) for name, value in dict(choices).items()}
    return FxProgram(gm, inputs, stored["phase"], tuple(_whole(stored["donated"])), device, choices)


def _whole(values: Any) -> tuple[int, ...]:
    """Whole numbers of which none is negative. Raises GraphError."""
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 2**48 for v in values):
        raise GraphError(f"{str(values)[:100]} are no sizes")
    return tuple(values)


def _spec(stored: Mapping[str, Any]) -> InputSpec:
    first, second = map(float, stored["numbers"])
    spec = InputSpec(_whole(stored["shape"]), _whole(stored["stride"]), stored["dtype"], stored["fill"],
                     (first, second), b64decode(stored["values"], validate=True))  # fmt: skip
    if len(spec.shape) != len(spec.stride) or spec.fill not in ("normal", "uniform", "exact"):
        raise GraphError("an input is described badly")
    if spec.bytes > machine_memory():
        raise GraphError(f"an input of {spec.bytes:,} bytes does not fit into this machine's memory")
    return spec


def _constants(stored: Mapping[str, Any]) -> nn.Module:
    module = nn.Module()
    for name, of in stored.items():
        tensor = from_raw(b64decode(of["values"], validate=True), _whole(of["shape"]), of["dtype"])
        module.register_buffer(_name(name), tensor)
    return module


def _name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise GraphError(f"{str(name)[:100]!r} is no name of a node")
    return name


def _graph(stored: list[Mapping[str, Any]]) -> FxGraph:
    graph, nodes = FxGraph(), dict[str, Node]()
    for of in stored:
        name, op = _name(of["name"]), of["op"]
        if op not in _OPS or name in nodes or (op == "output") != (of is stored[-1]):
            raise GraphError(f"node {name} is not in its place")
        target = target_of(of["target"]) if op == "call_function" else _name(of["target"])
        args = tuple(decode(a, nodes) for a in of.get("args", ()))
        kwargs = {_name(k): decode(v, nodes) for k, v in of.get("kwargs", {}).items()}
        if op == "call_function":
            _check_call(target, args, kwargs)
        nodes[name] = node = graph.create_node(op, target, args, kwargs, name=name)
        if node.name != name:
            raise GraphError(f"{name} is no name of a node")
        if of.get("of") is not None:
            node.meta["original_aten"] = operator_of(of["of"])
    return graph


class _Propagation(Interpreter):
    """Runs a graph on fake tensors and keeps the results of every node."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self._on_gpu = gm.meta["on_gpu"]

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return torch.empty_like(value, device="cuda:0") if target in self._on_gpu else value

    def run_node(self, n: Node) -> Any:
        made = super().run_node(n)
        n.meta["val"] = tree_map_only(torch.Tensor, torch.Tensor.detach, made)
        return made

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_parts(target, args, kwargs)
        memories = [t.untyped_storage() for t in tensors_in((args, kwargs))]
        sizes = [memory.nbytes() for memory in memories]
        made = super().call_function(target, args, kwargs)
        if [memory.nbytes() for memory in memories] != sizes:  # fake memory grows with a view, real memory does not
            raise GraphError(f"{target} makes a view that goes beyond its memory")
        return made


def _propagate(program: FxProgram, stored: Mapping[str, Any]) -> None:
    """`meta["val"]` of all nodes, with the strides that were stored, or those that follow where none were."""
    mode, device = FakeTensorMode(allow_non_fake_inputs=True), "cpu" if program.device == "cpu" else "cuda:0"
    # Fake tensors would begin to use the GPU, which a copy of a process cannot do.
    with mock.patch.object(fake_tensor, "init_gpu_context", lambda _: None), mode, torch.no_grad():
        fakes = [torch.empty_strided(i.shape, i.stride, dtype=torch_dtype(i.dtype), device=device)
                 for i in program.inputs]  # fmt: skip
        _Propagation(program.gm).run(*fakes)
        for node, of in zip(program.gm.graph.nodes, stored["nodes"]):
            if node.op == "call_function":
                node.meta["val"] = _restrided(node.meta["val"], of["strides"])


def _restrided(value: Any, strides: Any) -> Any:
    if isinstance(value, tuple | list):
        several = [None] * len(value) if strides is None else strides["several"]
        return type(value)(_restrided(v, s) for v, s in zip(value, several, strict=True))
    if not isinstance(value, torch.Tensor):
        return value
    strides = list(value.stride()) if strides is None else strides
    if len(_whole(strides)) != value.dim() or extent(value.shape, strides) * value.element_size() > machine_memory():
        raise GraphError(f"no tensor of shape {list(value.shape)}, strides {strides} fits into this machine's memory")
    if tuple(value.stride()) == tuple(strides):
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
