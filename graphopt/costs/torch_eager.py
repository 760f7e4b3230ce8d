"""`TorchEager`: a whole program in torch, op after op, as its user runs it without a compiler."""

from pathlib import Path

from graphopt.costs.whole_program import Processes, WholeProgram
from graphopt.errors import ConfigError
from graphopt.measure.subject import Comparing, Subject
from graphopt.rewrite.ir.digests import portable
from graphopt.rewrite.ir.terms import Program


class TorchEager(WholeProgram):
    """`rewrite.ir.execution` is what runs. Operators outside its vocabulary run in ONNX Runtime."""

    def __init__(self, *, name: str, table: str | None, environment: str | None, fresh_processes: Processes,
                 measuring: Comparing) -> None:  # fmt: skip
        if measuring.device != "cpu":
            raise ConfigError(f"cost={name} runs rewritten programs on CPUs only: set measuring.device=cpu")
        super().__init__(name=name, table=table, environment=environment, fresh_processes=fresh_processes,
                         measuring=measuring, libraries=())  # fmt: skip

    def subject(self, program: Program, file: Path) -> Subject:
        return Subject("program", f"torch {portable(program)}", {"path": str(file), "dims": {}})
