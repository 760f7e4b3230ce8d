"""ONNX's shape inference and its inlining of functions, which are C++ that a file can crash: in a process of their own.

A node without a type, or a shape of 2^62 sizes, ends such a process or takes all memory. The process has limits of
memory and of time, is begun with the first model, and serves all others. Models pass as files of bytes.
"""

import math
import os
import resource
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import GraphProto, ModelProto, inliner

from graphopt.core.errors import writing
from graphopt.core.graph import GraphError
from graphopt.core.graph_builder import RANK
from graphopt.core.utils.process import AnswerTimeout, Process, ProcessEnd, Tell, serve
from graphopt.graphs.readers.onnx.folding import settle_shapes
from graphopt.graphs.readers.onnx.model import subgraphs

CPU_SECONDS, SECONDS = 120, 900.0  # of one request: of the process's own time, and by the clock
MEMORY, PER_BYTE = 2 * 2**30, 8  # bytes of memory, and of each byte of a model besides
ANSWER, GROWTH = 64 * 2**20, 4  # bytes of an answer, and of each byte of a model besides

Request = Literal["settle", "infer", "inline"]


class InferenceDied(GraphError):
    """The process that asked ONNX about a model died of it, or needed too much memory or time."""


class _Child:
    """The process of one process of ours: a fork has its own. One request at a time."""

    def __init__(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        root = str(Path(__file__).parents[4])
        found = {
            "PYTHONSAFEPATH": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        }
        self.process = Process("graphopt.graphs.readers.onnx.inference", {}, {**os.environ, **threads, **found})
        self.turn = threading.Lock()


_CHILDREN: dict[int, _Child] = {}  # by the process that asks; never dropped, since that would end a parent's process


def settled(model: ModelProto, source: str) -> tuple[ModelProto, str]:
    """The model with the shapes of its tensors, small constants computed, and the message of a strict inference."""
    return _asked("settle", model, source, False)


def inferred_once(model: ModelProto, source: str, *, follow: bool) -> ModelProto:
    """The model with shapes, by one inference. follow: whether it follows values."""
    return _asked("infer", model, source, follow)[0]


def inlined(model: ModelProto, source: str) -> ModelProto:
    """The model with its functions written out."""
    return _asked("inline", model, source, False)[0]


def _asked(what: Request, model: ModelProto, source: str, follow: bool) -> tuple[ModelProto, str]:
    """Raises InferenceDied, and GraphError with ONNX's message on a malformed model."""
    if os.getpid() not in _CHILDREN:
        _CHILDREN[os.getpid()] = _Child()
    child = _CHILDREN[os.getpid()]
    try:
        content = model.SerializeToString()
    except (EncodeError, ValueError):
        raise GraphError(
            f"{source} takes more than 2 GiB without its weights; export it with smaller constants"
        ) from None
    memory = MEMORY + PER_BYTE * len(content)
    with writing(tempfile.gettempdir()), tempfile.TemporaryDirectory(prefix="graphopt_") as folder:
        file = Path(folder) / "model"
        file.write_bytes(content)
        request = {"do": what, "model": str(file), "follow": follow, "memory": memory, "seconds": CPU_SECONDS,
                   "answer": ANSWER + GROWTH * len(content), "rank": RANK}  # fmt: skip
        try:
            with child.turn:
                answer = child.process.ask(request, SECONDS)
        except (ProcessEnd, AnswerTimeout):
            raise InferenceDied(
                f"{source} cannot be read: ONNX crashes on it, or needs more than {memory >> 20:,} MiB or "
                f"{CPU_SECONDS} s; state the types and shapes of all tensors and export it again"
            ) from None
        if "error" in answer:
            raise GraphError(f"{source} is malformed: ONNX says {answer['error'][:200]!r}; export it again")
        try:
            return ModelProto.FromString(file.read_bytes()), str(answer["said"])
        except DecodeError:
            raise InferenceDied(f"{source}: ONNX's answer of its shapes is damaged; export the model again") from None


# --- The process.


def _infer(strict: bool, model: ModelProto, follow: bool) -> ModelProto:
    return onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=follow)


def _settle(model: ModelProto, follow: bool) -> tuple[ModelProto, str]:
    """Strictly, which finds more shapes; where ONNX refuses that, node by node."""
    try:
        return settle_shapes(model, partial(_infer, True)), ""
    except Exception as error:  # onnx and the C++ beneath it have many
        said = " ".join(str(error).split())[:160]
    return settle_shapes(model, partial(_infer, False)), said


def _once(model: ModelProto, follow: bool) -> tuple[ModelProto, str]:
    return _infer(False, model, follow), ""


def _inline(model: ModelProto, follow: bool) -> tuple[ModelProto, str]:
    return inliner.inline_local_functions(model), ""


WORK: dict[str, Callable[[ModelProto, bool], tuple[ModelProto, str]]] = {
    "settle": _settle, "infer": _once, "inline": _inline,
}  # fmt: skip


def answer(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Puts the model that was made in the file of the one that was given."""
    _limit(request["memory"], request["seconds"])
    file = Path(request["model"])
    model, said = WORK[request["do"]](ModelProto.FromString(file.read_bytes()), request["follow"])
    _check_ranks(model.graph, request["rank"])
    content = model.SerializeToString()
    if len(content) > request["answer"]:
        raise ValueError(f"its shapes take {len(content):,} bytes")
    file.write_bytes(content)
    return {"said": said}


def _check_ranks(graph: GraphProto, most: int) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if len(value.type.tensor_type.shape.dim) > most:
            raise ValueError(f"a tensor of {len(value.type.tensor_type.shape.dim):,} dimensions")
    for node in graph.node:
        for inner in subgraphs(node):
            _check_ranks(inner, most)


def _limit(memory: int, seconds: int) -> None:
    """Of the whole process, beyond its usage so far; stricter limits stay."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = math.ceil(used.ru_utime + used.ru_stime)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, wanted in ((resource.RLIMIT_AS, has + memory), (resource.RLIMIT_CPU, spent + seconds)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def main(arguments: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the last words of C++ are no sentence
        os.dup2(silence, stream)
    return serve(arguments, answer)
