"""The process behind `inference.py`: ONNX's C++ on models that may crash it, within limits of memory and time."""

import math
import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, inliner

from graphopt.measure.process import Tell, serve
from graphopt.readers.onnx.folding import settle_shapes
from graphopt.readers.onnx.model import subgraphs


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
    """Of the whole process, beyond what it has used so far; what is stricter stays."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = math.ceil(used.ru_utime + used.ru_stime)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, wanted in ((resource.RLIMIT_AS, has + memory), (resource.RLIMIT_CPU, spent + seconds)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def main(arguments: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what the C++ says when it dies is no sentence
        os.dup2(silence, stream)
    return serve(arguments, answer)
