"""A whole ONNX file in ONNX Runtime, on one thread of a CPU. payload: `path`; `dims`, sizes of open dimensions;
`optimisations` of ONNX Runtime, default or off. Inputs are random, the same for all files with the same inputs."""

from typing import Any

import numpy as np

from graphopt.core.errors import ConfigError
from graphopt.hardware.measure.rounds import Runner
from graphopt.rewrite.equivalence import random_array
from graphopt.rewrite.io.onnx_call import onnxruntime_session

ELEMENTS = {"float": "float32", "double": "float64", "string": "object"}  # names of ONNX Runtime that numpy has not


def begin(threads: int) -> None:
    """Sessions have one thread each."""


def load_onnx(payload: dict[str, Any], device: str) -> Runner:
    if device != "cpu":
        raise ConfigError("ONNX Runtime is run on CPUs only: choose measuring.device=cpu")
    session = onnxruntime_session(payload["path"], optimised=payload["optimisations"] == "default")
    rng, feeds = np.random.default_rng(0), {}
    for given in session.get_inputs():
        inner = given.type.removeprefix("tensor(").removesuffix(")")
        feeds[given.name] = random_array(_shape(given, payload["dims"]), ELEMENTS.get(inner, inner), rng)
    return Runner(lambda: session.run(None, feeds))


def _shape(given: Any, dims: dict[str, int]) -> tuple[int, ...]:
    for size in given.shape:
        if not isinstance(size, int) and size not in dims:
            raise ValueError(f"input {given.name!r} has the open dimension {size or 'without a name'}; give its size")
    return tuple(size if isinstance(size, int) else dims[size] for size in given.shape)
