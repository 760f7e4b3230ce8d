"""Program files: what is read is written and read again, and runs on inputs made for it."""

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphopt.readers.pytorch.program_file import (
    FxProgram,
    describe,
    load_program,
    make_inputs,
    packed_program,
    save_program,
)

from ..judge import Format, Wrong
from ..mutate import Draw, damaged, damaged_bytes, gzip_bomb, json_text
from .archives import BOMB

SMALL = 10**6  # elements of all values: more is not run


@lru_cache(maxsize=1)
def sound() -> str:
    """A small program with a constant, indices, several results of one operator, and a write into an input."""
    table = torch.tensor([[0.5, 2.0, -1.0]])

    def run(x: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        best, place = torch.topk(x * table, 2)
        x.copy_(torch.where(mask, x, x.clamp(-0.25)))
        return [best.to(torch.float64).t(), place, x[index].sum(0, keepdim=True), x.contiguous()]

    inputs = [torch.randn(4, 3), torch.tensor([3, 0]), torch.ones(4, 1, dtype=torch.bool)]
    gm = make_fx(run, tracing_mode="real")(*[t.clone() for t in inputs])
    return gzip.decompress(packed_program(FxProgram(gm, tuple(map(describe, inputs))))).decode()


def write(rng: Draw, folder: Path) -> Path:
    file = folder / "p.program.json.gz"
    content = json_text(damaged(rng, json.loads(sound()))).encode(errors="surrogatepass")
    content = gzip.compress(content)
    if rng.random() < 0.1:
        content = damaged_bytes(rng, content)
    if rng.random() < 0.02 and not rng.sound:
        content = gzip_bomb(BOMB)
    file.write_bytes(content)
    return file


def read(file: Path) -> None:
    program = load_program(file)
    round_trip(program, file)
    values = [value for node in program.gm.graph.nodes for value in tensors_of(node.meta.get("val"))]
    if sum(value.numel() for value in values) < SMALL:
        program.gm(*make_inputs(program.inputs, 0))


def round_trip(program: FxProgram, file: Path) -> None:
    """The program is the same after another file of it."""
    save_program(file.with_name("again.program.json.gz"), program)
    if packed_program(load_program(file.with_name("again.program.json.gz"))) != packed_program(program):
        raise Wrong("the program changes on its way through a file")


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors that a node makes."""
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in tensors_of(part)]
    return [value] if isinstance(value, torch.Tensor) else []


PROGRAMS = (Format("program", write, read),)
