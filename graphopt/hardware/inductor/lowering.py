"""A program through TorchInductor's lowering, with decisions, to source that compiles: without its compiler's cost.

The post-grad graph is lowered as it is, so neither autograd nor the passes before run again.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import IRNode
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode

from graphopt.core.compiler import options
from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.program_file import FxProgram, load_program
from graphopt.graphs.readers.pytorch.program_inputs import raw
from graphopt.hardware.inductor.code_features import features
from graphopt.hardware.inductor.hooks import Request, Requests, carried_out, check_version, replaced

# One thread, nothing in the background, no benchmark beside the code, and what `compile_fx` sets for CPUs.
BASE: dict[str, Any] = {"compile_threads": 1, "cpp.threads": 1, "benchmark_harness": False,
                        "comprehensive_padding": False, "fx_graph_cache": False}  # fmt: skip
_COMMENT = re.compile(r"^\s*(#(?! *include| *pragma)|//).*\n", re.MULTILINE)
_KERNEL_NAME = re.compile(r"\bcpp_fused_\w*?_(\d+)\b")


@dataclass(frozen=True, slots=True)
class Lowered:
    """Generated source, which needs nothing but torch to run: `call(list of inputs)` of the module."""

    source: str
    digest: str  # of the source without comments and names
    stored: frozenset[str]  # names of nodes whose values are realised
    features: dict[str, float]
    seconds: float  # of this processor, that the lowering took


def lower(program: FxProgram, requests: Mapping[str, Request], knobs: Mapping[str, int]) -> Lowered:
    """requests: names of nodes of `program.gm` -> what is asked of them; the others Inductor decides. knobs: name ->
    which of its values. Raises GraphError where Inductor cannot lower it."""
    check_version()
    start, settings, asked = thread_time(), options(knobs), Requests(requests)
    chosen = config.patch({**BASE, **settings})
    with _in_words(), chosen, _started(program) as (graph, examples), carried_out(asked), _set_once():
        graph.run(*examples)
        stored = asked.stored
        code = graph.codegen()[0].value
        found = features(graph, code)
    source = _complete(code, options(knobs, compiling=True), graph.constants)
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
    with _in_words(), config.patch(BASE), _started(program) as (graph, examples), carried_out(asked):
        graph.run(*examples)
    return asked


@contextmanager
def _in_words() -> Iterator[None]:
    """Raises GraphError for whatever goes wrong in the block."""
    try:
        yield
    except (MemoryError, KeyboardInterrupt, GraphError):
        raise
    except Exception as error:
        raise GraphError(f"TorchInductor cannot lower it: {type(error).__name__}: {error}") from error


def output_strides(program: FxProgram) -> list[tuple[int, ...] | None]:
    """Of what the compiled program returns: Inductor lays out some tensors otherwise than operators do."""
    with config.patch(BASE), _started(program) as (graph, examples):
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
    def cpp_pybinding(self, *kernel):
        with config.patch(%r):
            return super().cpp_pybinding(*kernel)

async_compile = _Compiler()
"""


def _complete(code: str, settings: Mapping[str, Any], constants: Mapping[str, torch.Tensor]) -> str:
    """The source with the options that its kernels are compiled with, and with its constants."""
    if code.count(_COMPILER) != 1:
        raise GraphError("TorchInductor's source does not compile its kernels where it should; install `torch==2.13.*`")
    compiling = code.replace(_COMPILER, _WITH_OPTIONS % {**BASE, **settings})
    return "\n".join([compiling, *(_constant(name, tensor) for name, tensor in constants.items()), ""])


def _constant(name: str, tensor: torch.Tensor) -> str:
    text = base64.b64encode(raw(tensor)).decode()
    shape, stride, dtype = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
    return (f"import base64\n{name} = torch.empty_strided({shape}, {stride}, dtype={dtype}).copy_(torch.frombuffer("
            f"bytearray(base64.b64decode('{text}')), dtype={dtype}).reshape({shape}))")  # fmt: skip


def digest_of(source: str) -> str:
    """Sources of one digest compute the same in the same way: comments and kernels' names do not count."""
    plain = _KERNEL_NAME.sub(r"kernel_\1", _COMMENT.sub("", source))
    return hashlib.sha256(plain.encode()).hexdigest()


def compile_source(lowered: Lowered) -> Path:
    """Compiles the kernels; the module's file, which any process may load from then on at no great cost."""
    key, path = PyCodeCache.write(lowered.source)
    PyCodeCache.load_by_key_path(key, path, set_sys_modules=False)
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
    """given: what `lower_request` answered. Any process can load the module from now on at no great cost."""
    PyCodeCache.load_by_key_path(given["key"], given["source"], set_sys_modules=False)
    return {"source": given["source"]}
