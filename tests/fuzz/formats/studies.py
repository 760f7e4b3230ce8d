"""Studies that the command made: small, whole, and the source of what is damaged. Made once per process."""

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from commands import command

from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.ir.program_builder import ProgramBuilder

SMALL = ("dataset=synthetic", "dataset.families=[layered]", "dataset.ops=[12]", "dataset.train=2", "dataset.val=1",
         "dataset.test=2", "logger=none")  # fmt: skip
ASSIGNING = {
    "fusion": ("task=fusion", "algo=local", "machine=gpu2", "budget.evals=[6]", "compare=[default]"),
    "placement": ("task=placement", "algo=local", "machine=cpu_gpu", "budget.evals=[6]"),
    "keys": ("task=placement_scheduling", "algo=brkga", "algo.evolution.population=4", "machine=gpu2",
             "budget.evals=[8]"),
}  # fmt: skip


@lru_cache(maxsize=1)
def workshop() -> Path:
    """The folder of this process for what is made once."""
    return Path(tempfile.mkdtemp(prefix="fuzz_made_"))


@lru_cache(maxsize=8)
def study(name: str) -> Path:
    """The folder of a finished study: rows, decisions, graphs."""
    if name == "rewriting":
        b, model = ProgramBuilder(), workshop() / "model.onnx"
        x = b.input((4, 8))  # two products share it, the second with a relu that it could take in
        save_onnx(b.build(b.linear(x, 6), b.op("relu", inputs=(b.linear(x, 6),))), model)
        return made(name, "task=rewrite", "algo=rewrite_greedy", "cost=flops", "cost@judge=flops", "budget.evals=[50]",
                    "logger=none", "task.export=false", "dataset=onnx", f"dataset.path={model}")  # fmt: skip
    return made(name, *SMALL, *ASSIGNING[name])


def made(name: str, *words: str) -> Path:
    """The folder of the study that the command makes."""
    answer = command(workshop() / name, *words)
    if answer.code:
        raise RuntimeError(answer.err)
    return next(answer.folder.glob("*"))


@lru_cache(maxsize=32)
def npz_parts(file: Path, texts: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, JSON values) of an npz."""
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return arrays, {name: json.loads(arrays.pop(name).tobytes()) for name in texts}
