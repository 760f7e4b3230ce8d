"""`Profiled`: TASO's cost model. Every distinct op is measured alone on this machine, once; a program costs their sum.

What was measured is kept in a table on disk, one JSON line per op and environment (library, device, threads): median
and spread of several blocks. A table that travels with results makes their prices replayable on any machine.
"""

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Literal

from graphopt import cache_dir
from graphopt.costs.additive import Additive
from graphopt.errors import UserError
from graphopt.rewrite.vocabulary import Operation, TensorType, text_of

# Without these, page faults of fresh allocations made one kernel read 0.86x and 1.99x in two processes.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
             "MALLOC_TOP_PAD_": "268435456"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """blocks: the median of so many counts, their interquartile range is the spread. block_seconds: least duration of
    each. threads: of the library, on a CPU."""

    device: Literal["cpu", "cuda"]
    threads: int
    blocks: int
    block_seconds: float


class Profiled(Additive):
    """table: file of measured ops; null: profiled/ in $GRAPHOPT_CACHE, else in ~/.cache/graphopt.

    An opaque op costs nothing: rewriting never changes it.
    """

    def __init__(self, *, name: str, table: str | None, measuring: Measuring) -> None:
        self.name, self._measuring = name, measuring
        self._environment = environment(measuring)
        self._path = cache_dir() / "profiled" / "ops.jsonl" if table is None else Path(table)
        self._known = read_table(self._path)
        self._worker: subprocess.Popen[str] | None = None

    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        return 0.0 if operation.name == "opaque" else float(self.measured(operation, inputs)["seconds"])

    def measured(self, operation: Operation, inputs: Sequence[TensorType]) -> Mapping[str, Any]:
        """The table's line of an op: seconds, spread (relative), blocks. Measures it where it is not known yet."""
        signature = signature_of(operation, inputs)
        key = (signature, self._environment)
        if key not in self._known:
            given = self._foreign(signature)
            self._known[key] = self._measure(operation, inputs, signature) if given is None else given
        return self._known[key]

    def _foreign(self, signature: str) -> Mapping[str, Any] | None:
        """Of a table that came from another machine: its only line for the op."""
        lines = [line for (known, _), line in self._known.items() if known == signature]
        return lines[0] if len(lines) == 1 and self._path.name != "ops.jsonl" else None

    def _measure(self, operation: Operation, inputs: Sequence[TensorType], signature: str) -> Mapping[str, Any]:
        if self._worker is None or self._worker.poll() is not None:
            self._worker = start_worker(self._measuring)
        answer = ask(self._worker, {"name": operation.name, "params": operation.params, "inputs": list(inputs)})
        if "error" in answer:
            raise UserError(f"cost={self.name} cannot measure {signature}: {answer['error']}")
        line = {"op": signature, "environment": self._environment, **answer}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line


def environment(measuring: Measuring) -> str:
    """What a measurement depends on besides the op."""
    where = processor() if measuring.device == "cpu" else "cuda"
    return f"torch {version('torch')}, {where}, {measuring.device}, {measuring.threads} threads"


def processor() -> str:
    """The processor's name, as Linux knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def signature_of(operation: Operation, inputs: Sequence[TensorType]) -> str:
    """An op and what it reads, e.g. `conv [1,1] [0,0,0,0] none | float32 [1,3,8,8] | float32 [4,3,1,1]`."""
    return " | ".join([str(operation), *(f"{t.dtype} {text_of(t.shape)}" for t in inputs)])


def read_table(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """(op, environment) -> line; lines that were cut short are left out."""
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    damaged = 0
    for text in path.read_text().splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            known[line["op"], line["environment"]] = {**line, "seconds": float(line["seconds"])}
        except (ValueError, KeyError, TypeError):
            damaged += 1
    if damaged:
        warnings.warn(f"{path}: {damaged} lines cannot be read and are measured again", stacklevel=2)
    return known


def start_worker(measuring: Measuring) -> "subprocess.Popen[str]":
    """A process of its own: pinned, with a steady allocator, nothing else running in it."""
    command = [sys.executable, "-m", "graphopt.rewrite.op_worker", measuring.device, str(measuring.threads),
               str(measuring.blocks), str(measuring.block_seconds)]  # fmt: skip
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={**os.environ, **ALLOCATOR})  # fmt: skip


def ask(worker: "subprocess.Popen[str]", question: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's answer: seconds, spread, blocks; or error."""
    stdin, stdout = _pipe(worker.stdin), _pipe(worker.stdout)
    try:
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        line = stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise UserError("the process that measures ops has ended: out of memory? measure smaller models")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
