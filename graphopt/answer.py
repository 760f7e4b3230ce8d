"""`Answer`: what a solve ended with, for programs: the content of one decision file, whatever kind of task made it."""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from graphopt.core.graph import Graph
from graphopt.core.operators import OPERATORS
from graphopt.core.oracles import kernels
from graphopt.core.plan import Plans
from graphopt.core.trace import Trace
from graphopt.costs.simulator import Simulator
from graphopt.errors import UserError, writing
from graphopt.readers.formats.graph_files import save_graph
from graphopt.records.answer_file import copy
from graphopt.reporting.edit import taken_back
from graphopt.reporting.model_view import change_in_words
from graphopt.reporting.replay import Mismatch, check
from graphopt.reporting.stored_case import open_case
from graphopt.utils.plain_json import dumps


@dataclass(frozen=True)
class Change:
    """One op that is decided otherwise than by default. price_alone: of the answer with this op alone put back."""

    op: str
    operator: str
    what: str  # e.g. `store -> inline`
    price_alone: float


@dataclass(frozen=True)
class Kernel:
    """What runs at once: a stored op and those that are computed inside its kernel. Times of the simulated run."""

    root: str
    ops: tuple[str, ...]  # with the root, in topological order; one that several kernels need stands in each
    device: str
    start: float  # seconds
    end: float


class Answer:
    """The answer to one graph: prices, what was decided, and what can be done with it.

    path: a decision file. model: the rewritten model, if one was written. kept: the folder that has to stay for as long
    as this object.
    """

    def __init__(self, path: Path, model: Path | None = None, kept: "TemporaryDirectory[str] | None" = None) -> None:
        self._path, self._model, self._kept = path, model, kept
        self._case = open_case(path)

    def __repr__(self) -> str:
        unit = "B" if self.objective == "peak_memory" else "s"
        return (f"Answer({self.graph.name!r}, task={self.task}, {self.objective} {self.default_price:.6g} -> "
                f"{self.price:.6g} {unit}, {self.speedup:.3f}x)")  # fmt: skip

    # ---- what it is

    @property
    def graph(self) -> Graph:
        """The graph that was solved."""
        return self._case.graph

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self._case.task.name)

    @property
    def objective(self) -> str:
        """runtime (seconds), peak_memory (bytes) or max_load (seconds)."""
        return self._case.judge.objective

    @property
    def price(self) -> float:
        """By the judge; infinite where it does not fit the devices' memory."""
        return float(self._case.decision.prices["judged"])

    @property
    def default_price(self) -> float:
        """Of what the compiler does by default."""
        return float(self._case.decision.prices["initial"])

    @property
    def prices(self) -> dict[str, float]:
        """By the judge: `initial` (the default's) and `judged`, with its relative `noise`. By the cost model of the
        search: `searched_initial`, and `searched`, the lowest, not always the answer's where prices are measured."""
        trace, prices = self._case.decision.trace, dict(self._case.decision.prices)
        return {**prices, "searched_initial": float(trace[0, 2]) if len(trace) else prices["initial"]}

    @property
    def speedup(self) -> float:
        """default_price / price."""
        return self.default_price / self.price if self.price else float("inf")

    @property
    def facts(self) -> dict[str, Any]:
        """Who found it: study, algo, seed, evaluations and the like."""
        return dict(self._case.decision.header["row"])

    @cached_property
    def plan(self) -> Plans:
        """What would run, as arrays: a batch of one. Of a rewritten program it is the plan of its own graph."""
        return self._case.solution.plans

    @cached_property
    def trace(self) -> Trace:
        """The simulated run of the plan."""
        simulator = Simulator(name="run", machine=self._case.machine, objective="runtime", threads=1)
        return simulator.simulate(self.plan)

    # ---- what was decided

    def changes(self) -> list[Change]:
        """The ops decided otherwise than by default, those that matter most first. Empty where no single choices
        describe the answer: orders of random keys, rewritten programs (see `rules`)."""
        case = self._case
        if not case.decision.described:
            return []
        ops = case.decision.changed()
        alone = taken_back(case, ops)[1]
        order = np.argsort(-alone, kind="stable")
        return [
            Change(self.graph.op_names[ops[i]], OPERATORS[self.graph.kind[ops[i]]].name,
                   change_in_words(case, int(ops[i])), float(alone[i]))
            for i in order
        ]  # fmt: skip

    def rules(self) -> list[str]:
        """Names of the rules that were applied, in order; of rewriting."""
        return list(self._case.decision.rules)

    def kernels(self) -> list[Kernel]:
        """In the order in which they start."""
        graph, trace, devices = self.plan.graph, self.trace, self._case.machine.devices
        inside = kernels(graph, self.plan.inline[0].tolist())
        found = []
        for k in np.lexsort((trace.kernel_step[:, 0], trace.kernel_start)).tolist():
            root = int(trace.kernel_op[k])
            ops = tuple(graph.op_names[op] for op in sorted(inside[root][0]))
            device = devices[int(trace.kernel_device[k])].name
            found.append(
                Kernel(graph.op_names[root], ops, device, float(trace.kernel_start[k]), float(trace.kernel_end[k]))
            )
        return found

    # ---- what can be done with it

    def check(self) -> list[Mismatch]:
        """Prices it again and checks the plan by independent code; what is wrong, nothing if all comes out."""
        return check(self._case)

    def to_json(self) -> str:
        """For other programs: prices, and by names of ops the kernels in order, devices and what is inlined. `device`,
        `order` and `inline` are what `graphopt.decision price` reads."""
        graph, kernels = self.plan.graph, self.kernels()
        said = {
            "graph": {"name": graph.name, "hash": self.graph.hash, "ops": graph.num_ops},
            "task": self.task, "machine": self._case.machine.name, "objective": self.objective,
            "price": self.price, "default_price": self.default_price,
            "device": {kernel.root: kernel.device for kernel in kernels},
            "order": [kernel.root for kernel in kernels],
            "inline": {graph.op_names[op]: True for op in np.flatnonzero(self.plan.inline[0])},
            "kernels": [{"root": k.root, "ops": list(k.ops), "device": k.device, "start": k.start, "end": k.end}
                        for k in kernels],
            **({"rules": self.rules()} if self.rules() else {}),
        }  # fmt: skip
        return dumps(said, indent=1)

    def save(self, path: str | Path) -> Path:
        """Writes the decision file, and its graph into graphs/ beside it, where `load` and the command line find it."""
        target = Path(path)
        if target.suffix != ".npz":
            raise UserError(f"an answer is saved as a .npz file, not as {target}")
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            save_graph(target.parent / "graphs" / f"{self.graph.hash}.npz", self.graph)
            copy(self._path, target)
        return target

    def save_model(self, path: str | Path) -> Path:
        """Writes the rewritten model as ONNX, which was run and compared with the original. Raises UserError where none
        was made: other tasks leave the program as it is, and decision files hold no weights."""
        if self._model is None:
            raise UserError("no model was made: that takes optimize(PATH.onnx, task='rewrite', ...) in this process")
        with writing(Path(path)):
            shutil.copyfile(self._model, path)
        return Path(path)

    def draw(self, folder: str | Path) -> list[Path]:
        """Pictures: the graph by kernel or device, a Gantt chart with memory over time, a trace for Perfetto."""
        from graphopt.reporting.pictures.draw import draw_case

        return draw_case(self._case, Path(folder))
