"""An FX program op by op in torch. payload: `program`, the path of its file; `seed` of its inputs."""

from typing import Any

from graphopt.measure.kinds.tensors import runner_of
from graphopt.measure.kinds.torch_process import begin
from graphopt.measure.rounds import Runner
from graphopt.readers.pytorch.program_file import load_program, make_inputs

__all__ = ["begin", "load"]


def load(payload: dict[str, Any], device: str) -> Runner:
    program = load_program(payload["program"])
    inputs = [tensor.to(device) for tensor in make_inputs(program.inputs, payload["seed"])]
    return runner_of(lambda given: program.gm(*given), inputs)
