"""Executes samples of GraphNet, which the package never does: their graphs, to compare with those that are read.

    python tests/graphs/executed_samples.py FOLDER NAME...      a line each: NAME HASH, or NAME - and why it cannot be

A process of its own with limits on memory and time, whose only argument is a folder of samples.
"""

import inspect
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphopt.graphs.readers.pytorch.capture import capture
from graphopt.graphs.readers.pytorch.graphnet.archive import sample_at
from graphopt.graphs.readers.pytorch.graphnet.metadata import number_of, read_metadata
from graphopt.graphs.readers.pytorch.graphnet.sample import read_sample


class Executed(nn.Module):
    """Calls the program with the weights of the sample as it is read, inputs, and numbers."""

    def __init__(self, program: nn.Module, like: nn.Module, numbers: dict[str, Any]) -> None:
        super().__init__()
        for name, weight in like.named_parameters():
            self.register_parameter(name, weight)
        for name, weight in like.named_buffers():
            self.register_buffer(name, weight)
        self.program, self.numbers = (program,), numbers

    def forward(self, *inputs: torch.Tensor) -> Any:
        given, own = iter(inputs), {**self._parameters, **self._buffers, **self.numbers}
        names = inspect.signature(self.program[0].forward).parameters
        return self.program[0].forward(**{name: own[name] if name in own else next(given) for name in names})


class Number:
    """What only `.item()` is asked of."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


def executed(folder: Path, name: str) -> str:
    files = sample_at(str(folder / name))
    sample = read_sample(files, name)
    like, inputs = sample.module(fake=True)
    text = files["model.py"].decode().replace('device(type="cuda", index=0)', 'device(type="cpu")')
    space: dict[str, Any] = {}
    exec(compile(text, "model.py", "exec"), space)
    program = space["GraphModule"]()
    numbers: dict[str, Any] = {}
    described = read_metadata(files["weight_meta.py"], name)
    for argument, of in inspect.signature(program.forward).parameters.items():
        value = number_of(described[argument]) if argument in described else None
        if "SymInt" in str(of.annotation):
            numbers[argument] = value
        elif argument not in sample.specs:
            numbers[argument] = Number(value)  # read by `.item()` alone, or not at all
    return capture(Executed(program, like, numbers), inputs, name=name, family=name, backward=False,
                   keep_program=False).hash  # fmt: skip


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (1800, 1800))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    place = Path(sys.argv[1])
    for each in sys.argv[2:]:
        try:
            print(each, executed(place, each), flush=True)
        except Exception as error:
            print(each, "-", " ".join(str(error).split())[:200], flush=True)
