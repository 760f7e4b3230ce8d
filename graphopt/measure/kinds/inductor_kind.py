"""A module that TorchInductor generated here, in a build of ours. payload: `source`, its path; `digest`; `program`, the
path of the FX program that it was made of, which says what its inputs are; `seed` of these."""

from typing import Any

from torch._inductor.codecache import PyCodeCache

from graphopt.measure.kinds.tensors import runner_of
from graphopt.measure.kinds.torch_process import begin
from graphopt.measure.rounds import Runner
from graphopt.readers.pytorch.program_file import load_program, make_inputs

__all__ = ["begin", "load"]


def load(payload: dict[str, Any], device: str) -> Runner:
    module = PyCodeCache.load_by_key_path(payload["digest"], payload["source"])
    inputs = [tensor.to(device) for tensor in make_inputs(load_program(payload["program"]).inputs, payload["seed"])]
    return runner_of(module.call, inputs)
