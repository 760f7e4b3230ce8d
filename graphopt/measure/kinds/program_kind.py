"""A whole rewriting program op by op in torch (`rewrite.ir.execution`); on a GPU as one CUDA graph, so that launches do
not count. payload: `path` of its ONNX file."""

from typing import Any

import numpy as np
import torch

from graphopt.measure.kinds.torch_process import begin
from graphopt.measure.rounds import Runner
from graphopt.rewrite.equivalence import random_inputs
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.execution import Executor

__all__ = ["begin", "load"]
WARM_UP = 3  # runs before a CUDA graph is captured: libraries choose their kernels in them


def load(payload: dict[str, Any], device: str) -> Runner:
    program = import_onnx(payload["path"], payload["dims"])
    executor, inputs = Executor(program, device=device), random_inputs(program, np.random.default_rng(0))
    return Runner(lambda: executor(inputs)) if device == "cpu" else _cuda_graph(executor, inputs)


def _cuda_graph(executor: Executor, inputs: list[Any]) -> Runner:
    """Replays all kernels by one launch. Inputs, results and what lies between stay in the graph's own memory."""
    given, beside, graph = executor.given(inputs), torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP):
            executor.results(given)
    torch.cuda.current_stream().wait_stream(beside)
    with torch.cuda.graph(graph):
        results = executor.results(given)
    return Runner(_Replay(graph, given, results))


class _Replay:
    """Runs the graph; what it reads and writes lives as long."""

    def __init__(self, graph: torch.cuda.CUDAGraph, *kept: object) -> None:
        self._graph, self._kept = graph, kept

    def __call__(self) -> None:
        self._graph.replay()
