"""A graph's program, ready to be run in any order: its inputs, its table, and what its outputs have to be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Literal

import torch
from torch import Tensor

from graphopt.core.graph import I64, Graph, GraphError
from graphopt.errors import UserError
from graphopt.execution.program_steps import ProgramSteps, steps_of
from graphopt.execution.running import execute
from graphopt.execution.storage_table import storage_table
from graphopt.readers.pytorch.program_file import captured_here, make_inputs
from graphopt.readers.pytorch.program_inputs import raw
from graphopt.utils.limits import machine_memory
from graphopt.utils.rehearsal import rehearse


class Session:
    """Inputs are random, the same for the same graph. Raises UserError where there is no such device."""

    def __init__(self, graph: Graph, device: Literal["cpu", "cuda"], threads: int) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("cost.device=cuda needs a GPU, and torch sees none here; set cost.device=cpu")
        self.name, self.threads, self.steps = graph.name, threads, steps_of(graph)
        inputs = make_inputs(self.steps.inputs, 0)
        if device == "cpu" and isinstance(graph.program, bytes) and not captured_here(graph.program):
            what = f"running the program of {graph.name}"
            rehearse(lambda: _on_one_thread(self.steps, inputs), machine_memory(), what)
        self.inputs = [value.to(device) for value in inputs]
        with _threads(threads), _runs(graph.name):
            self._warm_up()
            self.table, run = storage_table(graph, self.steps, self.inputs)
            self.expected, self.own_peak = digest(run.outputs), run.peak

    def _warm_up(self) -> None:
        """The first runs of some operators allocate what stays."""
        execute(self.steps, sorted(self.steps.node_of), self.inputs)

    def run(self, order: I64 | Sequence[int]) -> int:
        """Peak bytes of an order, from running it. Raises RuntimeError where its outputs are others."""
        with _threads(self.threads):
            done = execute(self.steps, [int(op) for op in order], self.inputs)
        if digest(done.outputs) != self.expected:
            raise RuntimeError(f"{self.name}: in another order the program computes other bits; report this")
        return done.peak


def _on_one_thread(steps: ProgramSteps, inputs: list[Tensor]) -> None:
    """Threads of a pool are not in a copy of their process."""
    torch.set_num_threads(1)
    execute(steps, sorted(steps.node_of), inputs)


@contextmanager
def _runs(name: str) -> Iterator[None]:
    """What operators raise is one sentence: a program of a file may ask for a row that is not there."""
    try:
        yield
    except (UserError, GraphError, MemoryError):
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"the program of {name} cannot be run: {said}; capture it anew") from None


def digest(outputs: Sequence[Tensor | None]) -> str:
    """Of all bits of the outputs."""
    found = sha256()
    for value in outputs:
        found.update(b"none" if value is None else raw(value.detach().cpu()))
    return found.hexdigest()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
