"""A whole rewriting program op by op in torch (`rewrite.ir.execution`). payload: `path` of its ONNX file."""

from typing import Any

import numpy as np

from graphopt.errors import ConfigError
from graphopt.measure.kinds.torch_process import begin
from graphopt.measure.rounds import Runner
from graphopt.rewrite.equivalence import random_inputs
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.execution import Executor

__all__ = ["begin", "load"]


def load(payload: dict[str, Any], device: str) -> Runner:
    if device != "cpu":
        raise ConfigError("rewritten programs are run on CPUs only: choose measuring.device=cpu")
    program = import_onnx(payload["path"], payload["dims"])
    executor, inputs = Executor(program), random_inputs(program, np.random.default_rng(0))
    return Runner(lambda: executor(inputs))
