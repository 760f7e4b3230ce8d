"""`OnnxRuntime`: a whole program in ONNX Runtime, on one thread."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from graphopt.costs.tables import Environment
from graphopt.costs.whole_program import Processes, Table, WholeProgram
from graphopt.errors import ConfigError
from graphopt.measure.subject import Comparing, Subject
from graphopt.rewrite.ir.digests import portable
from graphopt.rewrite.ir.terms import Program


class OnnxRuntime(WholeProgram):
    """optimisations: ONNX Runtime's own: default or off."""

    def __init__(self, *, name: str, optimisations: Literal["default", "off"], table: Table,
                 environment: Environment, fresh_processes: Processes, measuring: Comparing) -> None:  # fmt: skip
        if environment is None and find_spec("onnxruntime") is None:
            raise ConfigError("ONNX Runtime is not installed; pip install -e '.[onnx]'")
        if measuring.device != "cpu" or measuring.threads != 1:
            raise ConfigError(f"cost={name} runs on one thread of a CPU: set measuring.device=cpu measuring.threads=1")
        libraries = ("onnxruntime",) if environment is None else ()
        super().__init__(name=name, table=table, environment=environment, fresh_processes=fresh_processes,
                         measuring=measuring, libraries=libraries)  # fmt: skip
        self._optimisations = optimisations

    def subject(self, program: Program, file: Path) -> Subject:
        payload = {"path": str(file), "dims": {}, "optimisations": self._optimisations}
        return Subject("onnx", f"onnxruntime {self._optimisations} {portable(program)}", payload)
