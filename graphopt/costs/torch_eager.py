"""`TorchEager`: a whole program in torch, op after op, as its user runs it without a compiler."""

from pathlib import Path

from graphopt.costs.tables import Environment
from graphopt.costs.whole_program import Processes, Table, WholeProgram
from graphopt.errors import ConfigError
from graphopt.measure.subject import Comparing, Subject
from graphopt.rewrite.ir.digests import portable
from graphopt.rewrite.ir.terms import Program


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


class TorchEager(WholeProgram):
    """`rewrite.ir.execution` is what runs. Operators outside its vocabulary run in ONNX Runtime. On a GPU (`cost=gpu`)
    a program is one CUDA graph, timed by events; operators outside the vocabulary cannot run there."""

    def __init__(self, *, name: str, table: Table, environment: Environment, fresh_processes: Processes,
                 measuring: Comparing) -> None:  # fmt: skip
        if measuring.device == "cuda" and environment is None and not has_gpu():
            raise ConfigError(f"cost={name} needs a GPU that torch can use, and there is none here; choose cost=torch")
        super().__init__(name=name, table=table, environment=environment, fresh_processes=fresh_processes,
                         measuring=measuring, libraries=())  # fmt: skip

    def subject(self, program: Program, file: Path) -> Subject:
        return Subject("program", f"torch {portable(program)}", {"path": str(file), "dims": {}})
