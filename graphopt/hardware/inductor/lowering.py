"""A program through TorchInductor's lowering, with decisions, to source that compiles: without its compiler's cost.

The post-grad graph is lowered as it is, so neither autograd nor the passes before run again.

A value is stored when its `StorageBox` is realised. Inductor decides that after every node, from the reads and
operations of the box. The hooks answer in its place for the nodes that were decided; for the others they let it answer.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from inspect import signature
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import BaseView, ComputedBuffer, IRNode, MutableBox, Pointwise, StorageBox
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node

from graphopt.core.compiler import options
from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.program_file import FxProgram, load_program
from graphopt.graphs.readers.pytorch.program_inputs import raw
from graphopt.hardware.inductor.code_features import features
from graphopt.hardware.inductor.truth_values import missed_shares

KNOWN = ("2.11", "2.12", "2.13")  # versions of torch with which the tests of tests/hardware pass


def check_version() -> None:
    """Raises UserError unless this torch's Inductor is one whose internals are known here."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in KNOWN:
        raise UserError(f"decisions are carried out inside TorchInductor of torch {' and '.join(KNOWN)}, and this is "
                        f"torch {torch.__version__}; install `torch=={KNOWN[-1]}.*`")  # fmt: skip


# Methods that ask, or say, whether a box had better be stored -> the answer for a box that is to be inlined.
_HINTS = {"should_realize_on_reuse": False, "has_exceeded_max_reads": False, "realize_hint": None}
USUAL = {"realize_reads_threshold": 4, "realize_opcount_threshold": 30, "realize_acc_reads_threshold": 8}
LARGEST_TREE = 150  # nodes of an expression with inlined parts: lowering takes time exponential in its depth


class Request(Enum):
    """A request for one node. STORE: its value is written to memory. INLINE: it is computed wherever it is read, as far
    as its readers can take that. CUT: stored, and computed in another kernel than whatever reads it."""

    STORE = "store"
    INLINE = "inline"
    CUT = "cut"


class Requests:
    """Requests and observations of one lowering."""

    def __init__(self, asked: Mapping[str, Request]) -> None:
        self.inline = {name for name, request in asked.items() if request is Request.INLINE}
        self.store = set(asked) - self.inline
        self.cut = {name for name, request in asked.items() if request is Request.CUT}
        self.full = set[str]()  # nodes that were stored since inlining had made them too large
        self._owner: dict[int, tuple[StorageBox, Node]] = {}  # by id of the box, which is kept alive
        self._tree: dict[Node, int] = {}  # nodes with inlined parts, not stored at first -> size of their expression
        self._box: dict[Node, StorageBox] = {}  # of these

    @property
    def stored(self) -> frozenset[str]:
        """Names of the nodes whose value, or a part of it, has been stored so far."""
        owned = [(box, node) for box, node in self._owner.values() if node.op == "call_function"]
        return frozenset(node.name for box, node in owned if IRNode.is_realized_node(box.data))

    @property
    def loops(self) -> frozenset[str]:
        """Names of the nodes whose value is computed element by element, so that it can be stored or inlined."""
        return frozenset(node.name for box, node in self._owner.values() if isinstance(_loop(box), Pointwise))

    def cut_buffers(self) -> set[str]:
        owned = [box for box, node in self._owner.values() if node.name in self.cut]
        return {box.data.get_name() for box in owned if IRNode.is_realized_node(box.data)}

    def inlines(self, box: StorageBox) -> bool:
        """Whether a box belongs to a node, or is made for the node just now, that is to be inlined."""
        known = self._owner.get(id(box))
        node = known[1] if known else V.graph.current_node
        return node is not None and node.name in self.inline

    def lowered(self, node: Node, made: object) -> None:
        """A node was lowered to a box, or several."""
        for result in made if isinstance(made, (list, tuple)) else [made]:
            box = _box(result)
            owner = node if box is None else self._owner.setdefault(id(box), (box, node))[1]
            if box is not None and owner is node:
                self._decide(node, box)
            elif owner in self._tree:  # another view of its value
                self._tree[node], self._box[node] = self._tree[owner], self._box[owner]

    def _decide(self, node: Node, box: StorageBox) -> None:
        if node.name in self.store:
            box.realize()
        elif (self.inline or _inlines_more()) and node.op == "call_function" and not IRNode.is_realized_node(box.data):
            self._limit(node, box)

    def _limit(self, node: Node, box: StorageBox) -> None:
        """Stores values that have grown too large by inlining: requested ones, or, where Inductor itself inlines more
        than usual, any."""
        given = [n for n in node.all_input_nodes if n in self._tree and not IRNode.is_realized_node(self._box[n].data)]
        if given or node.name in self.inline or _inlines_more():
            size = 1 + sum(self._tree[n] for n in given for _ in range(_uses(node, n)))
            if size > LARGEST_TREE:
                box.realize()
                self.full.add(node.name)
            else:
                self._tree[node], self._box[node] = size, box


def _inlines_more() -> bool:
    """Whether a threshold of Inductor's, as it is set now, lets it inline more than it does by itself."""
    now = ((getattr(config, name), usual) for name, usual in USUAL.items())
    return any(value is not None and value > usual for value, usual in now)


def _uses(node: Node, given: Node) -> int:
    return sum(argument is given for argument in node.args) or 1


def _box(result: object) -> StorageBox | None:
    while isinstance(result, (MutableBox, BaseView)) and not isinstance(result, StorageBox):
        result = result.data
    return result if isinstance(result, StorageBox) else None


def _loop(box: StorageBox) -> object:
    """The computation of a box, stored or not."""
    return box.data.data if isinstance(box.data, ComputedBuffer) else box.data


@contextmanager
def carried_out(requests: Requests) -> Iterator[None]:
    """Within the block a lowering carries out requests and notes the values that it stores."""
    run_inner = GraphLowering.run_node

    def run_node(graph: GraphLowering, n: Node) -> Any:
        made = run_inner(graph, n)
        requests.lowered(n, made)
        return made

    def unless_inlined(inner: Callable[..., Any], answer: Any) -> Callable[..., Any]:
        return lambda box, *args, **given: answer if requests.inlines(box) else inner(box, *args, **given)

    with ExitStack() as stack:
        stack.enter_context(replaced(GraphLowering, "run_node", run_node))
        for name, answer in _HINTS.items():
            method = unless_inlined(getattr(StorageBox, name), answer)
            stack.enter_context(replaced(StorageBox, name, method))
        stack.enter_context(V.set_choices_handler(_Choices(requests) if requests.cut else InductorChoices()))
        yield


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Within the block an attribute of a class or module is another."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Choices(InductorChoices):
    """Inductor's own choices of fusions, except that cut nodes stay apart from their readers."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def can_fuse(self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:  # type: ignore[override]
        return not self._cut(node1, node2) and InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score)

    def _cut(self, node1: Any, node2: Any) -> bool:
        return any(
            not self._requests.cut_buffers().isdisjoint(maker.get_buffer_names() & reader.used_buffer_names())
            for maker, reader in ((node1, node2), (node2, node1))
        )


# One thread, nothing in the background, no benchmark beside the code, and the options of `compile_fx` for CPUs.
BASE: dict[str, Any] = {"compile_threads": 1, "cpp.threads": 1, "benchmark_harness": False,
                        "comprehensive_padding": False, "fx_graph_cache": False}  # fmt: skip
_COMMENT = re.compile(r"^\s*(#(?! *include| *pragma)|//).*\n", re.MULTILINE)
_KERNEL_NAME = re.compile(r"\b(?:cpp|triton_[a-z]+)_fused_\w*?_(\d+)\b")


def base_of(program: FxProgram) -> dict[str, Any]:
    """Options of all its lowerings. On a GPU `compile_fx` leaves padding as it is."""
    on_gpu = any(node.meta["val"].is_cuda for node in program.gm.graph.find_nodes(op="placeholder"))
    return {name: value for name, value in BASE.items() if not (on_gpu and name == "comprehensive_padding")}


@dataclass(frozen=True, slots=True)
class Lowered:
    """Generated source, which needs nothing but torch to run: `call(list of inputs)` of the module."""

    source: str
    digest: str  # of the source without comments and names
    stored: frozenset[str]  # names of nodes whose values are realised
    features: dict[str, float]
    seconds: float  # of this processor, that the lowering took


def lower(program: FxProgram, requests: Mapping[str, Request], knobs: Mapping[str, int]) -> Lowered:
    """requests: names of nodes of `program.gm` -> request; Inductor decides the others. knobs: name -> which of its
    values. Raises GraphError where Inductor cannot lower it."""
    check_version()
    missed = missed_shares(program)
    start, settings, asked = thread_time(), options(knobs), Requests(requests)
    base = base_of(program)
    chosen = config.patch({**base, **settings})
    with in_words(), chosen, _started(program) as (graph, examples), carried_out(asked), _set_once():
        graph.run(*examples)
        stored = asked.stored
        code = graph.codegen()[0].value
        found = features(graph, code, missed)
    source = _complete(code, options(knobs, compiling=True), graph.constants, base)
    return Lowered(source, digest_of(source), stored, found, thread_time() - start)


def own_choices(program: FxProgram) -> dict[str, bool]:
    """Nodes that Inductor may as well store as inline -> whether it stores them, left alone. The others are calls of
    libraries, reductions or views, or their readers or the caller need them stored. Raises GraphError."""
    check_version()
    default = _run(program, Requests({}))
    inlined = _run(program, Requests(dict.fromkeys(default.loops, Request.INLINE)))
    free = default.loops - (inlined.stored - inlined.full)
    return {name: name in default.stored for name in sorted(free)}


def _run(program: FxProgram, asked: Requests) -> Requests:
    """Lowers without writing code."""
    with in_words(), config.patch(base_of(program)), _started(program) as (graph, examples), carried_out(asked):
        graph.run(*examples)
    return asked


@contextmanager
def in_words() -> Iterator[None]:
    """Raises GraphError for any exception in the block."""
    try:
        yield
    except (MemoryError, KeyboardInterrupt, GraphError):
        raise
    except Exception as error:
        raise GraphError(f"TorchInductor cannot lower it: {type(error).__name__}: {error}") from error


def output_strides(program: FxProgram) -> list[tuple[int, ...] | None]:
    """Of the compiled program's results: Inductor lays out some tensors otherwise than operators do."""
    with config.patch(base_of(program)), _started(program) as (graph, examples):
        graph.run(*examples)
        tensors = [isinstance(out, IRNode) and out.has_tensor_output() for out in graph.graph_outputs]
        return [tuple(int(s) for s in out.get_layout().stride) if tensor else None
                for out, tensor in zip(graph.graph_outputs, tensors)]  # fmt: skip


@contextmanager
def _started(program: FxProgram) -> Iterator[tuple[GraphLowering, list[Any]]]:
    """A lowering that is ready to run, and its example inputs."""
    examples = [node.meta["val"] for node in program.gm.graph.find_nodes(op="placeholder")]
    mode = next((example.fake_mode for example in examples), None) or FakeTensorMode()
    with torch.no_grad(), V.set_fake_mode(mode), DebugContext():
        graph = GraphLowering(program.gm, example_inputs=examples, is_inference=program.phase == "inference",
                              is_backward=program.phase == "backward", inputs_to_check=[])  # fmt: skip
        graph.bw_donated_idxs = list(program.donated) or None
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            yield graph, examples


@contextmanager
def _set_once() -> Iterator[None]:
    """Within the block Inductor does not fill its one table of result types anew for every operation: a sixth of the
    time."""
    DtypePropagationOpsHandler()
    with replaced(DtypePropagationOpsHandler, "__init__", lambda self: None):
        yield


_COMPILER = "async_compile = AsyncCompile()\n"  # of the source: what compiles its kernels
_WITH_OPTIONS = """from torch._inductor import config

class _Compiler(AsyncCompile):
    def %(method)s(self, %(given)s):
        with config.patch(%(options)r):
            return super().%(method)s(%(given)s)

async_compile = _Compiler()
"""
_CPP, _TRITON = ({"method": "cpp_pybinding", "given": "*kernel"}, {"method": "triton", "given": "*kernel, **given"})


def _complete(code: str, settings: Mapping[str, Any], constants: Mapping[str, torch.Tensor],
              base: Mapping[str, Any] = BASE) -> str:  # fmt: skip
    """The source with the options that its kernels are compiled with, and with its constants."""
    if code.count(_COMPILER) != 1:
        raise GraphError("TorchInductor's source does not compile its kernels where it should; install `torch==2.13.*`")
    kind = _TRITON if "async_compile.triton(" in code else _CPP
    compiling = code.replace(_COMPILER, _WITH_OPTIONS % {**kind, "options": {**base, **settings}})
    return "\n".join([compiling, *(_constant(name, tensor) for name, tensor in constants.items()), ""])


def _constant(name: str, tensor: torch.Tensor) -> str:
    text = base64.b64encode(raw(tensor.cpu())).decode()
    place = ", device='cuda'" if tensor.is_cuda else ""
    shape, stride, dtype = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
    return (f"import base64\n{name} = torch.empty_strided({shape}, {stride}, dtype={dtype}{place}).copy_("
            f"torch.frombuffer(bytearray(base64.b64decode('{text}')), dtype={dtype}).reshape({shape}))")  # fmt: skip


def digest_of(source: str) -> str:
    """Sources of one digest compute the same in the same way: comments and kernels' names do not count."""
    plain = _KERNEL_NAME.sub(r"kernel_\1", _COMMENT.sub("", source))
    return hashlib.sha256(plain.encode()).hexdigest()


def _load(key: str, path: str) -> None:
    """Compiles a module's kernels; from torch 2.13 on without a place in `sys.modules`."""
    quiet: dict[str, Any] = {"set_sys_modules": False}
    known = signature(PyCodeCache.load_by_key_path).parameters
    PyCodeCache.load_by_key_path(key, path, **(quiet if quiet.keys() <= known.keys() else {}))


def compile_source(lowered: Lowered) -> Path:
    """Compiles the kernels; the module's file, which any process may load from then on at no great cost."""
    key, path = PyCodeCache.write(lowered.source)
    _load(key, path)
    return Path(path)


HELD = 4  # programs


@lru_cache(maxsize=HELD)
def _program(path: str) -> FxProgram:
    return load_program(path)


def lower_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """given: `program`, path of its file; `requests`, node -> store, inline or cut; `knobs`, name -> which value. The
    answer: `digest`, `features`, and the path `source` of the module, not compiled yet. Raises GraphError."""
    requests = {name: Request(word) for name, word in given["requests"].items()}
    lowered = lower(_program(given["program"]), requests, given["knobs"])
    key, path = PyCodeCache.write(lowered.source)
    return {"digest": lowered.digest, "features": lowered.features, "key": key, "source": path,
            "stored": sorted(lowered.stored), "seconds": lowered.seconds, "program": given["program"]}  # fmt: skip


def compile_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """given: an answer of `lower_request`. Any process can load the module from now on at no great cost."""
    _load(given["key"], given["source"])
    return {"source": given["source"]}
