"""A stored decision with all that prices it: its file, its graph, its task and its cost models, made again here."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from graphopt.core.graph import Graph, GraphError
from graphopt.core.head import Head, Role, named_counts
from graphopt.core.machine import Machine
from graphopt.datasets.dataset import Split
from graphopt.errors import DecisionError, UserError
from graphopt.problems.choices import Choices
from graphopt.problems.cost_model import CostModel
from graphopt.problems.solution import Decided, Solution
from graphopt.readers.formats.graph_files import load_graph, parse_graph
from graphopt.records import packed
from graphopt.records.answer_file import load, match
from graphopt.reporting.rebuilt import dataset, pricing

EXACT = 1e-9  # relative difference allowed to simulators
NOISE_FACTOR = 4.0  # measured prices may differ by this many times their stored noise


@dataclass(frozen=True)
class Case:
    """A stored answer with what prices it again, whatever its task."""

    path: Path
    decision: Any  # `Decided`, of the kind of its task: with the header of the file
    solution: Solution
    cost: CostModel
    judge: CostModel

    @property
    def graph(self) -> Graph:
        return self.solution.graph

    @property
    def task(self) -> Any:
        return self.solution.task

    @property
    def machine(self) -> Machine:
        machine: Machine = self.task.machine
        return machine

    def reprice(self) -> dict[str, float]:
        """initial, searched, judged and noise, computed anew."""
        return self.prices_of(self.solution)

    def prices_of(self, solution: Solution) -> dict[str, float]:
        """The same of another solution in the place of the answer."""
        judged = solution.price(self.judge)
        return {
            "initial": self.solution.default_price(self.judge).cost,
            "searched": solution.price(self.cost).cost,
            "judged": judged.cost,
            "noise": judged.noise,
        }

    @property
    def tolerance(self) -> float:
        """Relative; what is measured may differ by its noise, what is computed may not, whatever a file says."""
        computed = self.cost.deterministic and self.judge.deterministic
        return EXACT if computed else max(EXACT, NOISE_FACTOR * self.decision.prices["noise"])


def open_case(path: Path | str) -> Case:
    """Loads an answer, finds its graph, builds its task and cost models. Raises UserError or GraphError."""
    source = Path(path)
    decision = load(source)
    graph = find_graph(source, decision)
    _, task, cost, judge = pricing(source, decision.header["config"])
    decision.must_fit(graph, task, str(source))
    return Case(source, decision, Solution(graph, task, decision), cost, judge)


def choices_of(case: Case) -> Choices:
    """What was decided op by op. Raises DecisionError when no choice says anything of the answer."""
    if not case.decision.described:
        raise DecisionError(
            f"{case.path} holds a rewritten program, or a plan from random keys of which no choices are known: it is "
            "nothing but orders, or of an older version. `show`, `replay` and `draw` work"
        )
    return cast(Choices, case.decision)


def heads_of(source: Path, decision: Decided) -> tuple[Head, ...]:
    """What a file decides, with its task's words where that task can be made here."""
    try:
        heads: tuple[Head, ...] = pricing(source, decision.header["config"])[1].heads
        if named_counts(heads) == decision.heads:
            return heads
    except UserError:
        pass  # names and numbers are in the file
    return tuple(Head(name, count, Role.CHOICE) for name, count in decision.heads.items())


def find_graph(source: Path, decision: Decided) -> Graph:
    """The decision's graph: near the file, else from the data set it was made of."""
    graph = near_graph(source, decision) or _from_dataset(source, decision)
    if graph is None:
        name = f"graphs/{decision.header['graph']['hash']}.npz"
        raise DecisionError(
            f"the graph of {source} was not found: neither {name} in a folder above it, nor in its data set; "
            "keep the file in its study's folder"
        )
    return graph


def near_graph(source: Path, decision: Decided) -> Graph | None:
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


def _from_dataset(source: Path, decision: Decided) -> Graph | None:
    config, wanted = decision.header["config"], decision.header["graph"]["hash"]
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
