"""Prices a stored decision again: rebuilds its graph, task and cost models, and compares."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.config.construct import construct, target_of
from graphopt.config.stored import node_of
from graphopt.core.compact import expand
from graphopt.core.graph import Graph, GraphError
from graphopt.core.head import Head, Role, named_counts
from graphopt.core.machine import Machine
from graphopt.core.oracles import check as violations
from graphopt.core.plan import Plans
from graphopt.datasets.dataset import Dataset, Split
from graphopt.errors import Unreadable, UserError
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.task import AssignTask, Task
from graphopt.readers.formats.graph_files import load_graph, parse_graph
from graphopt.records import packed
from graphopt.records.answer_format import DecisionError
from graphopt.records.decision_file import DecisionFile, load, match
from graphopt.records.rewrite_file import RewriteFile, is_rewriting
from graphopt.records.rewrite_file import load as load_rewriting
from graphopt.reporting.tables.read_rows import read_rows, row_files
from graphopt.rewrite.rewrite_task import RewriteTask

EXACT = 1e-9  # relative difference allowed to simulators
NOISE_FACTOR = 4.0  # measured prices may differ by this many times their stored noise
PRICES = ("initial", "searched", "judged")
GROUPS = ("machine", "task", "cost", "judge")
MOST_OPS = 20_000_000  # of all graphs of a data set that is made again because a file says so


@dataclass(frozen=True)
class Case:
    """A decision file with everything that is needed to price it again."""

    path: Path
    decision: DecisionFile
    graph: Graph
    machine: Machine
    task: AssignTask
    cost: CostModel
    judge: CostModel

    def plans(self) -> Plans:
        """The stored answer as a batch of one plan."""
        stored = self.decision.plans(self.graph)
        return self.task.realise(self.graph, self.decision.choices[None]) if stored is None else stored

    def default_plans(self) -> Plans:
        return self.task.realise(self.graph, self.decision.default[None])

    def realise(self, choices: Decisions) -> Plans:
        """Plans of choices [B, N, H]. Of a plan from random keys what choices do not describe stays: its orders."""
        plans, kept = self.task.realise(self.graph, choices), self.decision.plans(self.graph)
        if kept is None:
            return plans
        kept = kept[np.zeros(len(plans), np.int64)]
        stays = {name: array for name, array in kept.choices.items() if name not in self.decision.described}
        return replace(plans, priority=kept.priority, transfer=kept.transfer, choices={**plans.choices, **stays})

    def judge_choices(self, choices: Decisions, chunk: int = 256) -> NDArray[np.float64]:
        """[B] prices by the judge of choices [B, N, H]."""
        parts = [choices[i : i + chunk] for i in range(0, len(choices), chunk)]
        return np.concatenate([self.judge.price(self.realise(part)).cost for part in parts])

    def reprice(self) -> dict[str, float]:
        """initial, searched, judged and noise, computed anew."""
        return self.prices_of(self.plans())

    def prices_of(self, plans: Plans) -> dict[str, float]:
        """The same of another plan (a batch of one) in the place of the answer."""
        judged = self.judge.price(plans).of(0)
        return {
            "initial": float(self.judge.price(self.default_plans()).cost[0]),
            "searched": float(self.cost.price(plans).cost[0]),
            "judged": judged.cost,
            "noise": judged.noise,
        }

    @property
    def tolerance(self) -> float:
        """Relative."""
        return tolerance(self)


@dataclass(frozen=True)
class RewriteCase:
    """A file of a rewriting answer with everything that is needed to price it again."""

    path: Path
    decision: RewriteFile
    graph: Graph
    machine: Machine
    task: RewriteTask
    cost: CostModel
    judge: CostModel

    def plans(self) -> Plans:
        """The stored program as a batch of one plan."""
        return self.task.realise(self.graph, self.decision.best)

    def original_plans(self) -> Plans:
        """The program as it was given, likewise."""
        return self.task.realise(self.graph, self.decision.original)

    def reprice(self) -> dict[str, float]:
        """initial, searched and judged, computed anew."""
        plans, given = self.plans(), self.original_plans()
        return {
            "initial": float(self.judge.price(given).cost[0]),
            "searched": float(self.cost.price(plans).cost[0]),
            "judged": float(self.judge.price(plans).cost[0]),
        }

    @property
    def tolerance(self) -> float:
        """Relative."""
        return tolerance(self)


def tolerance(case: Case | RewriteCase) -> float:
    """Relative; what is measured may differ by its noise, what is computed may not, whatever a file says."""
    computed = case.cost.deterministic and case.judge.deterministic
    return EXACT if computed else max(EXACT, NOISE_FACTOR * case.decision.prices["noise"])


def open_any(path: Path | str) -> Case | RewriteCase:
    """Either kind of answer. Raises UserError or GraphError."""
    if not is_rewriting(path):
        return open_case(path)
    source, decision = Path(path), load_rewriting(path)
    machine, task, cost, judge = pricing(source, decision)
    if not isinstance(task, RewriteTask):
        raise DecisionError(f"{source} holds a rewritten program, but task={task.name} is {task.noun}")
    return RewriteCase(source, decision, find_graph(source, decision), machine, task, cost, judge)


def open_case(path: Path | str) -> Case:
    """Loads a decision, finds its graph, builds its task and cost models. Raises UserError or GraphError."""
    source = Path(path)
    decision = load(source)
    graph = find_graph(source, decision)
    machine, task, cost, judge = pricing(source, decision)
    if not isinstance(task, AssignTask):
        raise DecisionError(f"{source} holds choices, but task={task.name} is {task.noun}")
    now = named_counts(task.heads)
    if list(now.items()) != list(decision.heads.items()):
        raise DecisionError(f"{source} decides {decision.heads}, but its task now decides {now}: solve the graph again")
    check_plan(source, decision, graph, task)
    return Case(source, decision, graph, machine, task, cost, judge)


def heads_of(source: Path, decision: DecisionFile) -> tuple[Head, ...]:
    """What a file decides, with its task's words where that task can be made here."""
    try:
        task = pricing(source, decision)[1]
        if isinstance(task, AssignTask) and named_counts(task.heads) == decision.heads:
            return task.heads
    except UserError:
        pass  # names and numbers are in the file
    return tuple(Head(name, count, Role.CHOICE) for name, count in decision.heads.items())


def check_plan(source: Path, decision: DecisionFile, graph: Graph, task: AssignTask) -> None:
    """Raises DecisionError when what is stored does not fit the graph, the task and its machine."""
    if len(decision.op_names) != graph.num_ops:
        raise DecisionError(
            f"{source} names {len(decision.op_names):,} ops, its graph has {graph.num_ops:,}: solve it again"
        )
    plan, machine = decision.plan, task.machine
    devices = machine.num_devices
    if plan and int(plan["device"].max()) >= devices:
        raise DecisionError(f"{source} uses device {plan['device'].max()} of {devices} of machine={machine.name}")
    if "transfer" in plan and plan["transfer"].shape != (graph.num_tensors, devices):
        raise DecisionError(f"{source} is damaged: its transfer priorities are not those of {graph.num_tensors:,} "
                            f"tensors and {devices} devices")  # fmt: skip
    if plan:
        wanted = task.realise(graph, decision.default[None]).choices
        if {name: array.shape for name, array in expand(graph, plan).choices.items()} != {
            name: array.shape for name, array in wanted.items()
        }:
            decided = ", ".join(wanted) or "none"
            raise DecisionError(f"{source} is damaged: the further choices of its plan are not the task's ({decided})")


def find_graph(source: Path, decision: DecisionFile | RewriteFile) -> Graph:
    """The decision's graph: near the file, else from the data set it was made of."""
    graph = near_graph(source, decision) or _from_dataset(source, decision)
    if graph is None:
        name = f"graphs/{decision.header['graph']['hash']}.npz"
        raise DecisionError(
            f"the graph of {source} was not found: neither {name} in a folder above it, nor in its data set; "
            "keep the file in its study's folder"
        )
    return graph


def near_graph(source: Path, decision: DecisionFile | RewriteFile) -> Graph | None:
    """The graph from graphs/<hash>.npz, or from a pack, in a folder above the file, if it is there."""
    for folder in source.resolve().parents:
        graph = _graph_in(folder, decision.header["graph"]["hash"])
        if graph is not None:
            match(decision, graph, str(source))
            return graph
    return None


def _graph_in(folder: Path, graph_hash: str) -> Graph | None:
    """From the folder's graphs/, or from its pack."""
    path, pack = folder / "graphs" / f"{graph_hash}.npz", folder / packed.NAME
    if path.is_file():
        return _load_graph(path)
    return _packed_graph(pack, graph_hash, packed.stamp(pack)) if pack.is_file() else None


@lru_cache(maxsize=32)
def _load_graph(path: Path) -> Graph:
    return load_graph(path)


@lru_cache(maxsize=32)
def _packed_graph(pack: Path, graph_hash: str, at: packed.Stamp) -> Graph | None:
    content = packed.graph_bytes(pack, graph_hash)
    return None if content is None else parse_graph(content, f"graphs/{graph_hash}.npz in {pack}")


def _from_dataset(source: Path, decision: DecisionFile | RewriteFile) -> Graph | None:
    config = decision.header["config"]
    seed = config.get("seed", 0)
    if not isinstance(config.get("dataset"), Mapping) or not isinstance(seed, int):
        return None
    node = _here(source, "dataset", config["dataset"])
    try:
        dataset = _dataset(json.dumps(node, sort_keys=True), seed)
    except GraphError as error:
        raise DecisionError(
            f"the graph of {source} is in no folder above it, and its data set cannot be made ({error}): "
            "keep the file in its study's folder"
        ) from None
    extent = dataset.extent()
    if extent is None or extent > MOST_OPS:
        why = "which a file may not name" if extent is None else f"more than the {MOST_OPS:,} ops that are made again"
        raise DecisionError(
            f"the graph of {source} is in no folder above it, and dataset={dataset.name} would read files, run code or "
            f"make very many graphs, {why}: keep the file in its study's folder"
        )
    splits: tuple[Split, ...] = ("test", "val", "train")
    graphs = (graph for split in splits for graph in dataset.graphs(split))
    return next((graph for graph in graphs if graph.hash == decision.header["graph"]["hash"]), None)


@lru_cache(maxsize=4)
def _dataset(config: str, seed: int) -> Dataset:
    dataset: Dataset = construct(json.loads(config), "dataset", {"seed": seed})
    return dataset


def pricing(source: Path, decision: DecisionFile | RewriteFile) -> tuple[Machine, Task, CostModel, CostModel]:
    """Machine, task, cost and judge of a stored configuration. Raises UserError when it means nothing here."""
    said = decision.header["config"]
    config: dict[str, Any] = {group: _here(source, group, said.get(group)) for group in GROUPS}
    for group in ("cost", "judge"):
        config[group] = target_of(config[group], group).settled(config[group], source)
    try:
        return _pricing(json.dumps(config))  # keys in their order: that of a machine's devices matters
    except Exception as error:  # whatever constructors say of values from a file
        foreseen = isinstance(error, UserError)
        why = error if foreseen else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise DecisionError(f"{source}: its configuration cannot be had here: {why}") from None


def _here(source: Path, group: str, said: Any) -> dict[str, Any]:
    """The node that a file's words mean in this installation."""
    try:
        return node_of(group, said)
    except UserError as error:
        raise DecisionError(f"{source}: {error}") from None


@lru_cache(maxsize=16)
def _pricing(config: str) -> tuple[Machine, Task, CostModel, CostModel]:
    from graphopt.config.build import machine_task_costs

    return machine_task_costs(json.loads(config))


@dataclass(frozen=True)
class Mismatch:
    """A stored number that did not come out again."""

    path: Path
    what: str


def check(case: Case | RewriteCase) -> list[Mismatch]:
    """The stored prices that differ from the computed ones, and what the independent check finds wrong."""
    stored, found = case.decision.prices, case.reprice()
    wrong = [Mismatch(case.path, f"not a valid plan: {text}") for text in violations(case.plans(), case.machine)]
    return wrong + [
        Mismatch(case.path, f"{key}: stored {stored[key]!r}, replayed {found[key]!r}")
        for key in PRICES
        if not agree(stored[key], found[key], case.tolerance)
    ]


def agree(stored: float, found: float, tolerance: float) -> bool:
    return (
        stored == found or (math.isnan(stored) and math.isnan(found)) or math.isclose(stored, found, rel_tol=tolerance)
    )


Claims = dict[Path, list[Mapping[str, Any]]]  # answer -> the rows whose it is


def replay_all(claims: Claims, unanswered: Iterable[Mismatch]) -> Iterator[tuple[Path, list[Mismatch]]]:
    """(answer or rows file, mismatches) of what `claims_of` found.

    A row must have an answer, and its prices must be those of the answer, which must come out again.
    """
    yield from ((wrong.path, [wrong]) for wrong in unanswered)
    for file, claiming in claims.items():
        yield file, _check_file(file, claiming)


def claims_of(place: Path) -> tuple[Claims, list[Mismatch]]:
    """(every answer at or below a place with the rows that claim it, those about one graph after each other, and the
    solved rows without an answer)."""
    rows = [row for row in read_rows(row_files(place))[0] if row.get("status", "ok") == "ok"]
    rows.sort(key=lambda row: str(row.get("graph_hash")))  # so that each graph is read once
    claims, unanswered = Claims(), []
    for row in rows:
        if row.get("decision"):
            claims.setdefault(decision_of(row), []).append(row)
        else:
            label = f"{row.get('algo')} on {row.get('graph')}, seed {row.get('seed')}"
            unanswered.append(Mismatch(Path(row["_file"]), f"row without a decision file: {label}"))
    for file in _answers_below(place) if place.is_dir() else ():
        claims.setdefault(file, [])
    return claims, unanswered


def _answers_below(place: Path) -> Iterator[Path]:
    yield from (file.resolve() for file in sorted(place.rglob("decisions/*.npz")))
    for pack in (file.resolve() for file in sorted(place.rglob(packed.NAME))):
        try:
            found = [*packed.digests(pack)]
        except Unreadable:
            found = [""]  # the pack as an answer, which says what is wrong with it
        yield from (packed.path_of(pack, digest) for digest in found)


def decision_of(row: Mapping[str, Any]) -> Path:
    """The decision file of a row: below the row's own folder, wherever the row says it is."""
    cell = Path(row["_file"]).parent.resolve()
    file = (cell / str(row["decision"])).resolve()
    return file if file.is_relative_to(cell) else cell / "decisions" / file.name


def _check_file(file: Path, rows: list[Mapping[str, Any]]) -> list[Mismatch]:
    try:
        case = open_any(file)
        return _claims(case, rows) + check(case)
    except Exception as error:  # a file may hold anything; whatever is wrong with one, the others still replay
        foreseen = isinstance(error, UserError | GraphError)
        return [Mismatch(file, str(error) if foreseen else f"{type(error).__name__}: {error}"[:300])]


def _claims(case: Case | RewriteCase, rows: list[Mapping[str, Any]]) -> list[Mismatch]:
    """Prices of rows that are not those of their decision."""
    stored = case.decision.prices
    return [
        Mismatch(case.path, f"{key}: the row says {row[key]!r}, the decision {stored[key]!r}")
        for row in rows
        for key in PRICES
        if row.get(key) is not None and not agree(float(row[key]), stored[key], EXACT)
    ]


def choices_of(case: Case) -> Decision:
    """[N, H] the stored choices. Raises DecisionError when the answer is a plan of which no choice says anything."""
    if not case.decision.described:
        raise DecisionError(
            f"{case.path} holds a plan from random keys of which no choices are known: it decides nothing but orders, "
            "or is of an older version. `replay` and `draw` work; solve the graph again for the others"
        )
    return case.decision.choices
