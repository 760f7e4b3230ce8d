"""`Answer`: the result of a solve: one answer file with its graph, its task and its cost models, made again here.

It is priced, checked, edited, written and drawn, for every kind of task. A file names options of this installation and
a data set of numbers; nothing else of it is built.
"""

import json
import math
import shutil
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import DecisionError, UserError, writing
from graphopt.core.graph import Graph, GraphError
from graphopt.core.machine import Machine
from graphopt.core.operators import OPERATORS
from graphopt.core.oracles import kernels
from graphopt.core.plan import Decisions, Head, Plans, Role, compact, named_counts
from graphopt.core.trace import Trace
from graphopt.core.utils.plain_json import dumps
from graphopt.costs.simulator import Simulator
from graphopt.graphs.dataset import Dataset, Split
from graphopt.graphs.readers.formats.graph_files import graph_content, load_graph, parse_graph
from graphopt.problems.assignment import Choices, Pricing
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import Decided, Equality, Solution, Task
from graphopt.report.changes import Culprits, StepPrices, describe, parse_change, reverted
from graphopt.run.config.build import machine_task_costs
from graphopt.run.config.construct import construct
from graphopt.run.config.stored import node_of
from graphopt.run.records import packed
from graphopt.run.records.answer_file import graph_inside, load, match, write

EXACT = 1e-9  # relative difference allowed to simulators
NOISE_FACTOR = 4.0  # measured prices may differ by this many times their stored noise
PRICES = ("initial", "searched", "judged")
GROUPS = ("machine", "task", "cost", "judge")
MOST_OPS = 20_000_000  # of all graphs of a data set that is made again because a file says so
Made = TypeVar("Made")


@dataclass(frozen=True)
class Change:
    """One op that is decided otherwise than by default. price_alone: of the answer with this op alone put back."""

    op: str
    operator: str
    what: str  # e.g. `store -> inline`
    price_alone: float
    source: str  # e.g. `blocks.0.up, model.py:7`; empty where it is not known


@dataclass(frozen=True)
class Replaced:
    """One op of the model that a rewritten program no longer has. operator: empty where it is not known."""

    op: str
    operator: str
    source: str  # as of `Change`


@dataclass(frozen=True)
class Kernel:
    """One kernel: a stored op and those that are computed inside. Times of the simulated run."""

    root: str
    ops: tuple[str, ...]  # with the root, in topological order; one that several kernels need stands in each
    device: str
    start: float  # seconds
    end: float


@dataclass(frozen=True)
class Mismatch:
    """A stored number that did not come out again."""

    path: Path
    what: str


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to one graph: prices, the decision, and its uses.

    path: its file. decided: the file's content. judge: the cost model that priced it in the end. model: the rewritten
    model, if one was written. folder: a folder that has to stay for as long as this object.
    """

    path: Path
    decided: Any  # `Decided`, of the kind of its task
    solution: Solution
    cost: CostModel
    judge: CostModel
    model: Path | None = None
    folder: "TemporaryDirectory[str] | None" = None

    @classmethod
    def load(cls, path: Path | str, model: Path | None = None, folder: "TemporaryDirectory[str] | None" = None,
             held: Graph | None = None) -> "Answer":  # fmt: skip
        """Reads an answer, finds its graph, unless it is held already, with its program; builds its task and cost
        models. Raises UserError or GraphError."""
        source = Path(path)
        decided = load(source)
        graph = _find_graph(source, decided) if held is None else held
        _, task, cost, judge = pricing(source, decided.header["config"])
        decided.must_fit(graph, task, str(source))
        return cls(source, decided, Solution(graph, task, decided), cost, judge, model, folder)

    def __repr__(self) -> str:
        unit = "B" if self.objective == "peak_memory" else "s"
        gain = f"{self.default_price:.6g} -> {self.price:.6g} {unit}, {self.speedup:.3f}x"
        by = f" by {self.facts['algo']}" if "algo" in self.facts else ""
        return f"Answer({self.graph.name!r}, task={self.task}, {self.objective} {gain}{by})"

    # ---- facts

    @property
    def graph(self) -> Graph:
        """The graph that was solved."""
        return self.solution.graph

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.solution.task.name)

    @property
    def machine(self) -> Machine:
        machine: Machine = self.solution.task.machine
        return machine

    @property
    def objective(self) -> str:
        """runtime (seconds), peak_memory (bytes) or max_load (seconds)."""
        return self.judge.objective

    @property
    def price(self) -> float:
        """By the judge; infinite where it does not fit the devices' memory."""
        return float(self.decided.prices["judged"])

    @property
    def default_price(self) -> float:
        """Of the compiler's default."""
        return float(self.decided.prices["initial"])

    @property
    def prices(self) -> dict[str, float]:
        """By the judge: `initial` (the default's) and `judged`, with its relative `noise`. By the cost model of the
        search: `searched_initial`, and `searched`, the lowest, not always the answer's where prices are measured."""
        trace, prices = self.decided.trace, dict(self.decided.prices)
        return {**prices, "searched_initial": float(trace[0, 2]) if len(trace) else prices["initial"]}

    @property
    def speedup(self) -> float:
        """default_price / price; 1 where both are 0."""
        if self.price == self.default_price:
            return 1.0
        return self.default_price / self.price if self.price else float("inf")

    @property
    def facts(self) -> dict[str, Any]:
        """Who found it: study, algo, seed, evaluations and the like."""
        return dict(self.decided.header["row"])

    @property
    def plan(self) -> Plans:
        """The executable plan, as arrays: a batch of one. For a rewritten program it is the plan of its own graph."""
        return self.solution.plans

    @cached_property
    def trace(self) -> Trace:
        """The simulated run of the plan."""
        return Simulator(name="run", machine=self.machine, objective="runtime", threads=1).simulate(self.plan)

    # ---- the decision

    @property
    def choices(self) -> Choices:
        """The decision op by op. Raises DecisionError where no choices describe the answer."""
        if not self.decided.described:
            raise DecisionError(
                f"{self.path} holds a rewritten program, or a plan from random keys of which no choices are known: it "
                "is nothing but orders, or of an older version. `show`, `replay` and `draw` work"
            )
        return cast(Choices, self.decided)

    def changes(self) -> list[Change]:
        """The ops decided otherwise than by default, those that matter most first. Empty where no single choices
        describe the answer: orders of random keys, rewritten programs (see `replaced`, `rules`)."""
        if not self.decided.described:
            return []
        ops = self.choices.changed()
        alone = self.reverted_prices(ops)
        return [
            Change(self.graph.op_names[ops[i]], OPERATORS[self.graph.kind[ops[i]]].name, self.change_in_words(ops[i]),
                   float(alone[i]), self.decided.source(self.graph.op_names[ops[i]]))
            for i in np.argsort(-alone, kind="stable")
        ]  # fmt: skip

    def change_in_words(self, op: int) -> str:
        """`store -> inline`, `device 0 -> 1, priority 0 -> 12`."""
        choices, parts = self.choices, []
        for column, head in enumerate(self.solution.task.heads):
            before, after = int(choices.default[op, column]), int(choices.choices[op, column])
            if head.name in choices.described and before != after:
                named = "" if len(choices.heads) == 1 else f"{head.name} "
                parts.append(f"{named}{self._choice(head, before)} -> {self._choice(head, after)}")
        return ", ".join(parts)

    def _choice(self, head: Head, choice: int) -> str:
        return self.machine.devices[choice].name if head.role is Role.DEVICE else describe(head, choice)

    def rules(self) -> list[str]:
        """Names of the rules that were applied, in order; of rewriting."""
        return list(self.decided.rules)

    def replaced(self) -> list[Replaced]:
        """The ops of the model that the rewritten program no longer has, in order; of rewriting."""
        kinds = dict(zip(self.graph.op_names, self.graph.kind.tolist()))
        return [Replaced(op, OPERATORS[kinds[op]].name if op in kinds else "", self.decided.source(op))
                for op in self.decided.replaced]  # fmt: skip

    def kernels(self) -> list[Kernel]:
        """In the order in which they start."""
        graph, trace, devices = self.plan.graph, self.trace, self.machine.devices
        inside, found = kernels(graph, self.plan.inline[0].tolist()), []
        for k in np.lexsort((trace.kernel_step[:, 0], trace.kernel_start)).tolist():
            root = int(trace.kernel_op[k])
            ops = tuple(graph.op_names[op] for op in sorted(inside[root][0]))
            device = devices[int(trace.kernel_device[k])].name
            found.append(
                Kernel(graph.op_names[root], ops, device, float(trace.kernel_start[k]), float(trace.kernel_end[k]))
            )
        return found

    # ---- prices

    def reprice(self, solution: Solution | None = None) -> dict[str, float]:
        """initial, searched, judged and noise, computed anew; of another solution in the place of the answer."""
        found = solution or self.solution
        judged = found.price(self.judge)
        return {
            "initial": self.solution.default_price(self.judge).cost, "searched": found.price(self.cost).cost,
            "judged": judged.cost, "noise": judged.noise,
        }  # fmt: skip

    def check(self) -> list[Mismatch]:
        """Prices it again and checks the plan by independent code; returns errors, none if all agrees. Measured prices
        may differ by their noise, computed ones may not, whatever a file claims."""
        stored, found = self.decided.prices, self.reprice()
        computed = self.cost.deterministic and self.judge.deterministic
        tolerance = EXACT if computed else max(EXACT, NOISE_FACTOR * stored["noise"])
        wrong = [Mismatch(self.path, f"not a valid plan: {text}") for text in self.solution.violations()]
        return wrong + [
            Mismatch(self.path, f"{key}: stored {stored[key]!r}, replayed {found[key]!r}")
            for key in PRICES if not agree(stored[key], found[key], tolerance)
        ]  # fmt: skip

    def price_choices(self, choices: Decisions, chunk: int = 256) -> NDArray[np.float64]:
        """Prices other choices in the place of the answer's, by the judge.

        Args:
            choices: [B, N, H].
            chunk: how many are priced at once.
        Returns: [B] prices.
        """
        decided, price = self.choices, Pricing(self.graph, self.solution.task, self.judge)
        parts = (choices[i : i + chunk] for i in range(0, len(choices), chunk))
        plans = (decided.realise(self.graph, self.solution.task, part) for part in parts)
        return np.concatenate([price.plans(each).cost for each in plans])

    def reverted_prices(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """[C] the price when each of the ops alone goes back to the default, by the judge."""
        if not len(ops):
            return np.zeros(0)
        return self.price_choices(reverted(self.choices, ops))

    def bisect(self) -> Culprits:
        """The price when each op alone goes back to the default, and which gains most by it."""
        choices = self.choices
        ops, (judged, default) = choices.changed(), self.price_choices(np.stack([choices.choices, choices.default]))
        return Culprits(float(judged), float(default), ops, self.reverted_prices(ops))

    def step_prices(self) -> StepPrices:
        """Of a rewritten program, which step slows it, and which makes it wrong. Raises DecisionError where no single
        steps led to it."""
        from graphopt.rewrite.equivalence import disagreement
        from graphopt.rewrite.io.as_graph import program_of
        from graphopt.rewrite.ir.terms import Program
        from graphopt.rewrite.program_cost import prices_programs
        from graphopt.rewrite.rewrite_problem import retraced
        from graphopt.rewrite.rules.steps import replayed

        task, steps = self.solution.task, self.decided.header.get("steps")
        if steps is None:
            raise DecisionError(f"{self.path} has no single steps, since an e-graph or a sweep found the program; "
                                "bisect takes answers of algo=taso, mcts or xrlflow")  # fmt: skip
        original: Program = self.decided.original if self.graph.program is None else program_of(self.graph)
        programs = [replayed(original, outputs) for outputs in retraced(original, task.rules, steps)]
        told = cache(lambda step: disagreement(original, programs[step], Equality()))
        try:
            first = 0 if told(0) else bisect_left(range(len(programs)), True, key=lambda step: bool(told(step)))
            difference = told(first) if first < len(programs) else ""
            wrong = first - 1 if first and difference else None  # where the original has no telling outputs, no step
        except UserError as error:  # such as of an operator whose model is not at hand
            wrong, difference = None, str(error)
        if prices_programs(self.judge):  # measured ones run by turns
            self.judge.price_programs(programs)
        prices = [Solution(self.graph, task, replace(self.decided, best=one)).price(self.judge) for one in programs]
        return StepPrices(tuple(rule for rule, _ in steps), np.array([price.cost for price in prices]),
                          max(price.noise for price in prices), wrong, difference)  # fmt: skip

    # ---- uses

    def revert(self, text: str) -> tuple["Answer", bool]:
        """(the answer with one op's choice set as `text` says, see `parse_change`, and priced again; whether the task
        can do that: else the plan is as before)."""
        decided, graph, task = self.choices, self.graph, self.solution.task
        choices = decided.choices.copy()
        op, row = parse_change(decided, task.heads, text)
        before = decided.realise(graph, task, choices[None])
        changed = bool((choices[op] != row).any())
        choices[op] = row
        plans = decided.realise(graph, task, choices[None])
        after = plans.arrays()
        same = all(np.array_equal(array, after[name]) for name, array in before.arrays().items())
        prices = {**decided.prices, **self.reprice(Solution(graph, task, decided, plans))}
        edited = replace(
            decided,
            header={**decided.header, "prices": prices, "edits": [*decided.header.get("edits", []), text]},
            choices=task.canonical(graph, choices),
            plan=compact(plans, self.machine.num_devices) if decided.plan else {},
        )
        return replace(self, decided=edited, solution=Solution(graph, task, edited)), not (changed and same)

    def save(self, path: str | Path) -> Path:
        """Writes the answer file with its graph inside: it replays from anywhere."""
        target = Path(path)
        if target.suffix != ".npz":
            raise UserError(f"an answer is saved as a .npz file, not as {target}")
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target, self.decided, graph_content(self.graph))
        return target

    def to_json(self) -> str:
        """For other programs: prices, and by names of ops the kernels in order, devices and inlined ops. `graphopt
        answer price` reads `device`, `order` and `inline`."""
        graph, kernels = self.plan.graph, self.kernels()
        content = {
            "graph": {"name": graph.name, "hash": self.graph.hash, "ops": graph.num_ops},
            "task": self.task, "machine": self.machine.name, "objective": self.objective,
            "price": self.price, "default_price": self.default_price,
            "device": {kernel.root: kernel.device for kernel in kernels},
            "order": [kernel.root for kernel in kernels],
            "inline": {graph.op_names[op]: True for op in np.flatnonzero(self.plan.inline[0])},
            "kernels": [{"root": k.root, "ops": list(k.ops), "device": k.device, "start": k.start, "end": k.end}
                        for k in kernels],
            **({"rules": self.rules(), "replaced": list(self.decided.replaced)} if self.rules() else {}),
        }  # fmt: skip
        return dumps(content, indent=1)

    def save_model(self, path: str | Path) -> Path:
        """Writes the rewritten model as ONNX, which was run and compared with the original. Raises UserError where none
        was made: other tasks leave the program as it is, and answer files hold no weights."""
        if self.model is None:
            raise UserError("no model was made: that takes optimize(PATH.onnx, task='rewrite', ...) in this process")
        with writing(Path(path)):
            shutil.copyfile(self.model, path)
        return Path(path)

    def html(self, path: str | Path) -> Path:
        """Writes one page that needs no network: decisions with their gains, the graph with search and zoom, the run on
        its devices. Raises ConfigError without Bokeh."""
        from graphopt.report.page.answer_page import answer_page

        return answer_page(self, Path(path))

    def draw(self, folder: str | Path) -> list[Path]:
        """Pictures: the graph by kernel or device, a Gantt chart with memory over time, a trace for Perfetto."""
        from graphopt.report.pictures.timeline import draw_solution  # matplotlib loads slowly

        row, ratio = self.facts, f"{self.speedup:.3f}x the default" if self.price > 0 else "no ratio"
        maker = f"{row.get('algo', 'an unknown method')}, {row.get('evals_cap', '?')} evaluations"
        caption = f"{self.task} on {self.machine.name} by {maker}: {ratio}"
        costs = (self.cost, self.judge)
        return draw_solution(self.solution, costs, Path(folder), packed.label_of(self.path), caption)


def agree(stored: float, found: float, tolerance: float) -> bool:
    return (
        stored == found or (math.isnan(stored) and math.isnan(found)) or math.isclose(stored, found, rel_tol=tolerance)
    )


# ---- its graph


def _find_graph(source: Path, decided: Decided) -> Graph:
    """The answer's graph: near the file, else from the data set it was made of."""
    graph = near_graph(source, decided) or _from_dataset(source, decided)
    if graph is None:
        name = f"graphs/{decided.header['graph']['hash']}.npz"
        raise DecisionError(
            f"the graph of {source} was not found: neither {name} in a folder above it, nor in its data set; "
            "keep the file in its study's folder"
        )
    return graph


def near_graph(source: Path, decided: Decided) -> Graph | None:
    """The graph inside the file; else from graphs/<hash>.npz, or from a pack, in a folder above it, if it is there."""
    if (inside := graph_inside(source)) is not None:
        own = parse_graph(inside, f"inside {source}")
        match(decided, own, str(source))
        return own
    graph_hash = decided.header["graph"]["hash"]
    for folder in source.resolve().parents:
        path, pack = folder / "graphs" / f"{graph_hash}.npz", folder / packed.NAME
        if path.is_file():
            graph = _load_graph(path)
        else:
            graph = _packed_graph(pack, graph_hash, packed.stamp(pack)) if pack.is_file() else None
        if graph is not None:
            match(decided, graph, str(source))
            return graph
    return None


@lru_cache(maxsize=32)
def _load_graph(path: Path) -> Graph | None:
    return load_graph(path)


@lru_cache(maxsize=32)
def _packed_graph(pack: Path, graph_hash: str, at: packed.Stamp) -> Graph | None:
    content = packed.graph_bytes(pack, graph_hash)
    return None if content is None else parse_graph(content, f"graphs/{graph_hash}.npz in {pack}")


def _from_dataset(source: Path, decided: Decided) -> Graph | None:
    config, wanted = decided.header["config"], decided.header["graph"]["hash"]
    seed = config.get("seed", 0)
    if not isinstance(config.get("dataset"), Mapping) or not isinstance(seed, int):
        return None
    try:
        made = dataset(source, config["dataset"], seed)
        splits: tuple[Split, ...] = ("test", "val", "train")
        graphs = (graph for split in splits for graph in made.graphs(split))
        found = next((graph for graph in graphs if graph.hash == wanted), None)
    except (GraphError, UserError) as error:
        raise DecisionError(
            f"the graph of {source} is in no folder above it, and its data set cannot be made ({error}): "
            "keep the file in its study's folder"
        ) from None
    if found is None and not made.kept:
        raise DecisionError(
            f"the graph of {source} is third parties', and not among those of dataset={made.name} here: "
            "set GRAPHOPT_CHECK_DATA to the folder of their data"
        )
    return found


# ---- its configuration


def heads_of(source: Path, decided: Decided) -> tuple[Head, ...]:
    """The heads of a file's decision, with its task's words where that task can be made here."""
    try:
        heads: tuple[Head, ...] = pricing(source, decided.header["config"])[1].heads
        if named_counts(heads) == decided.heads:
            return heads
    except UserError:
        pass  # names and numbers are in the file
    return tuple(Head(name, count, Role.CHOICE) for name, count in decided.heads.items())


def pricing(source: Path, config: Mapping[str, Any]) -> tuple[Machine, Task, CostModel, CostModel]:
    """Machine, task, cost and judge of a file's configuration. Raises DecisionError when it means nothing here."""
    text = json.dumps({group: _node(source, group, config.get(group)) for group in GROUPS})
    return _built(source, "its configuration", lambda: _pricing(text))  # the order of a machine's devices matters


def dataset(source: Path, node: Any, seed: int) -> Dataset:
    """The data set that a file names, if it makes its graphs of numbers alone, within limits, or reads third parties'
    data where they lie here. Raises DecisionError for all others."""
    text = json.dumps(_node(source, "dataset", node), sort_keys=True)
    made = _built(source, "its data set", lambda: _dataset(text, seed))
    extent = made.extent() if made.kept else 0
    if extent is None or extent > MOST_OPS:
        why = "which a file may not name" if extent is None else f"more than the {MOST_OPS:,} ops that are made again"
        raise DecisionError(f"{source}: dataset={made.name} would read files, run code or make very many graphs, {why}")
    return made


def _node(source: Path, group: str, node: Any) -> dict[str, Any]:
    """The node that a file's words mean in this installation."""
    try:
        return node_of(group, node, source)
    except UserError as error:
        raise DecisionError(f"{source}: {error}") from None


def _built(source: Path, what: str, build: Callable[[], Made]) -> Made:
    try:
        return build()
    except Exception as error:  # any exception of constructors on values from a file
        foreseen = isinstance(error, UserError)
        why = error if foreseen else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise DecisionError(f"{source}: {what} cannot be had here: {why}") from None


@lru_cache(maxsize=16)
def _pricing(config: str) -> tuple[Machine, Task, CostModel, CostModel]:
    return machine_task_costs(json.loads(config))


@lru_cache(maxsize=4)
def _dataset(config: str, seed: int) -> Dataset:
    made: Dataset = construct(json.loads(config), "dataset", {"seed": seed})
    return made
