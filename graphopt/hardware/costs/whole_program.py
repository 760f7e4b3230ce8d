"""Cost models that run programs: `WholeProgram`, whole, and so they see how ops act on one another (X-RLflow's
end-to-end reward); `Profiled`, op by op. The price of a whole program is its ratio to the original, by turns in the
same rounds, times the original's seconds."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from graphopt import cache_dir
from graphopt.core.errors import ConfigError, Unmeasured, UserError
from graphopt.core.utils.marks import Between
from graphopt.hardware.measure.price_table import Environment, Line, TableFile
from graphopt.hardware.measure.rounds import error_of_median
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Comparing, Failure, Measured, Measuring, Target
from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.ir.digests import portable
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import Operation, TensorType, text_of
from graphopt.rewrite.program_cost import Additive, ProgramCost, TermPrice, input_types, is_free

Processes = Annotated[int, Between(0, 64)]
TABLE = Path("measured") / "programs.jsonl"  # below the cache folder
Table = Annotated[str | None, TableFile(usual=TABLE)]
OPS = Path("profiled") / "ops.jsonl"  # below the cache folder
OpsTable = Annotated[str | None, TableFile(usual=OPS)]
Optimisations = Literal["default", "off"]  # of ONNX Runtime itself
Runtime = Literal["torch", "onnxruntime", "onnxruntime_off"]
ALONE = Measuring(  # as in cost=profiled
    device="cpu", threads=1, block_seconds=0.003, blocks=7, spread=0.05, op_seconds=0.2, limit_seconds=60
)


class WholeProgram(ProgramCost):
    """table: file of measured programs; null: measured/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt.

    environment: null: this machine's, and programs that the table lacks are measured here. Otherwise only the table's
    lines of that environment count and nothing is measured: so stored answers are priced again. A program that cannot
    be run costs inf; where the original cannot, Unmeasured is raised. fresh_processes: 0: a process that stays
    measures, for searching; else every price is a race with the original in so many fresh processes, for judging.
    """

    objective = "runtime"
    deterministic = False
    provides = frozenset({"prices of single ops"})
    runtime: Runtime

    def __init__(self, *, name: str, table: Table, environment: Environment, fresh_processes: Processes,
                 measuring: Comparing, libraries: tuple[str, ...]) -> None:  # fmt: skip
        self.name, self._device = name, measuring.device
        file = cache_dir() / TABLE if table is None else Path(table)
        self.service = Service(measuring, table=file, environment=environment, name=name, libraries=libraries,
                               processes=fresh_processes)  # fmt: skip
        self._folder: TemporaryDirectory[str] | None = None

    @abstractmethod
    def target(self, program: Program, file: Path) -> Target:
        """The measured target of a program whose ONNX file that is; the digest does not depend on the file."""

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.service.environment}

    def alone(self, terms: Terms) -> TermPrice:
        """The additive model of ops measured one by one where the programs run."""
        how = replace(ALONE, device=self._device)
        ops = Profiled(name=self.name, runtime=self.runtime, table=None, environment=None, measuring=how)
        return ops.term_price(terms)

    def price_program(self, program: Program) -> float:
        return self.price_programs([program])[0]

    def price_programs(self, programs: Sequence[Program]) -> list[float]:
        found = self._measured(programs)
        return [math.inf if isinstance(one, Failure) else one.seconds for one in found]

    def noise_of(self, program: Program) -> tuple[float, int]:
        (found,) = self._measured([program])
        return (0.0, 0) if isinstance(found, Failure) else (found.noise, found.rounds)

    def _measured(self, programs: Sequence[Program]) -> list[Measured]:
        """Of programs made from one another. Only unknown ones are written as files."""
        original = programs[0].original
        default, *targets = (self.target(program, self._file(program)) for program in (original, *programs))
        with ExitStack() as stack:
            if self.service.measures:
                lacking = [p for p, target in zip(programs, targets) if self.service.known(default, target) is None]
                for program in (original, *lacking) if lacking else ():
                    stack.enter_context(self._written(program))
            return self.service.compare(default, targets)

    def _file(self, program: Program) -> Path:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="graphopt-")
        return Path(self._folder.name) / f"{portable(program)}.onnx"

    @contextmanager
    def _written(self, program: Program) -> Iterator[None]:
        """The program's file, as long as it is needed; that of an original stays for the next ones."""
        file = self._file(program)
        try:
            if not file.exists():
                _save(program, file)
            yield
        finally:
            if program.given is not None and program.outputs != program.given:
                for part in (file, Path(f"{file}.weights")):
                    part.unlink(missing_ok=True)


def _save(program: Program, file: Path) -> None:
    try:
        save_onnx(program, file)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise ConfigError(f"no room for a model in {file.parent}: {error.strerror or error}; make some, or set TMPDIR"
                          ) from error  # fmt: skip
    except UserError as error:
        raise Unmeasured(f"the program cannot be written as ONNX, by which it is measured: {error}") from error


class TorchEager(WholeProgram):
    """Op by op in torch (`rewrite.ir.execution`), without a compiler. Operators outside its vocabulary run in ONNX
    Runtime. On a GPU (`cost=gpu`) a program is one CUDA graph, timed by events; operators outside the vocabulary cannot
    run there."""

    runtime = "torch"

    def __init__(self, *, name: str, table: Table, environment: Environment, fresh_processes: Processes,
                 measuring: Comparing) -> None:  # fmt: skip
        super().__init__(name=name, table=table, environment=environment, fresh_processes=fresh_processes,
                         measuring=measuring, libraries=())  # fmt: skip

    def target(self, program: Program, file: Path) -> Target:
        return Target("program", f"torch {portable(program)}", {"path": str(file), "dims": {}})


class OnnxRuntime(WholeProgram):
    """In ONNX Runtime, on one thread. optimisations: ONNX Runtime's own: default or off."""

    def __init__(self, *, name: str, optimisations: Optimisations, table: Table,
                 environment: Environment, fresh_processes: Processes, measuring: Comparing) -> None:  # fmt: skip
        _must_have(environment)
        if measuring.device != "cpu" or measuring.threads != 1:
            raise ConfigError(f"cost={name} runs on one thread of a CPU: set measuring.device=cpu measuring.threads=1")
        libraries = ("onnxruntime",) if environment is None else ()
        super().__init__(name=name, table=table, environment=environment, fresh_processes=fresh_processes,
                         measuring=measuring, libraries=libraries)  # fmt: skip
        self._optimisations: Optimisations = optimisations
        self.runtime = "onnxruntime" if optimisations == "default" else "onnxruntime_off"

    def target(self, program: Program, file: Path) -> Target:
        payload = {"path": str(file), "dims": {}, "optimisations": self._optimisations}
        return Target("onnx", f"onnxruntime {self._optimisations} {portable(program)}", payload)


def _must_have(environment: str | None) -> None:
    if environment is None and find_spec("onnxruntime") is None:
        raise ConfigError("ONNX Runtime is not installed; pip install -e '.[onnx]'")


class Profiled(Additive):
    """TASO's cost model: every distinct op is measured alone on this machine, once, and a program costs their sum.

    runtime: the library that runs the ops. With `onnxruntime` its own profile says the time, and convolutions run in
    its blocked layouts; with `onnxruntime_off` it optimises nothing, and they do not. table: file of measured ops;
    null: profiled/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt.

    environment: null: this machine's, and ops that the table lacks are measured here. Otherwise only the table's lines
    of that environment count and nothing is measured: so stored answers are priced again. An opaque op costs nothing:
    rewriting never changes it.
    """

    def __init__(self, *, name: str, runtime: Runtime, table: OpsTable, environment: Environment,
                 measuring: Measuring) -> None:  # fmt: skip
        self.name, self._runtime, libraries = name, runtime, tuple[str, ...]()
        if runtime != "torch":
            _must_have(environment)
            libraries = ("onnxruntime",) if environment is None else ()
            if measuring.device != "cpu" or measuring.threads != 1:
                raise ConfigError(f"runtime={runtime} runs on one thread of a CPU: set measuring.device=cpu "
                                  "measuring.threads=1")  # fmt: skip
        file = cache_dir() / OPS if table is None else Path(table)
        self.service = Service(measuring, table=file, environment=environment, name=name, libraries=libraries)

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.service.environment}

    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        return 0.0 if operation.name == "opaque" else float(self.measured(operation, inputs)["seconds"])

    def noise_of(self, program: Program) -> tuple[float, int]:
        """Errors of different ops are independent; one that runs several times was measured once, so its errors add up.
        Times of one process miss how processes differ: it is a lower bound."""
        terms, runs = program.terms, dict[str, list[Line]]()
        for term in program.live():
            if not is_free(terms, term) and terms.operation[term].name != "opaque":
                line = self.measured(terms.operation[term], input_types(terms, term))
                runs.setdefault(line["op"], []).append(line)
        seconds = sum(len(same) * same[0]["seconds"] for same in runs.values())
        error = math.hypot(*(len(same) * same[0]["seconds"] * standard_error(same[0]) for same in runs.values()))
        return error / seconds if seconds else 0.0, sum(int(same[0].get("blocks", 1)) for same in runs.values())

    def measured(self, operation: Operation, inputs: Sequence[TensorType]) -> Line:
        """The table's line of an op: seconds, spread (relative), blocks. Measures it where it is not known yet."""
        payload = {"name": operation.name, "params": operation.params, "inputs": list(inputs)}
        signature = signature_of(operation, inputs)
        if self._runtime == "torch":
            return self.service.alone(Target("op", signature, payload))
        payload["optimisations"] = "default" if self._runtime == "onnxruntime" else "off"
        return self.service.alone(Target("onnx_op", f"{self._runtime} {signature}", payload))


def standard_error(line: Line) -> float:
    """Relative, of a measured op."""
    return float(error_of_median(line.get("spread", 0.0), line.get("blocks", 1)))


def signature_of(operation: Operation, inputs: Sequence[TensorType]) -> str:
    """An op and its inputs, e.g. `conv [1,1] [0,0,0,0] none | float32 [1,3,8,8] | float32 [4,3,1,1]`."""
    return " | ".join([str(operation), *(f"{t.dtype} {text_of(t.shape)}" for t in inputs)])
