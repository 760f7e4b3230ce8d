"""`Contest`: one problem of the leaderboard: instances, and how answers to them are priced.

A folder of the leaderboard with a `problem.yaml`:

    title: Fusion               # and about, unit: texts for the page
    answers: results/go_fusion/answers.zip
    instances: {mnasnet: 0123456789abcdef}

takes graph, task and cost model of each instance from an answer of a stored study (its default is the baseline), and

    config: {machine: cpu_core, task: tiling, cost: tile_time}
    datasets: [tiling_random, tiling_contest]
    instances: [name, ...]

makes them of options; where a mapping stands for a name, `name` says the option and other keys are its settings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from graphopt.config.stored import OPTION, words
from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.dataset import Split
from graphopt.errors import Unreadable, UserError
from graphopt.leaderboard.yaml_files import listed, mapping, names, read_yaml, text
from graphopt.problems.cost_model import CostModel
from graphopt.problems.solution import Decided, Solution
from graphopt.records import packed
from graphopt.reporting.rebuilt import dataset, pricing
from graphopt.reporting.stored_case import open_case
from graphopt.utils import registry

DEFINITION = "problem.yaml"
SPLITS: tuple[Split, ...] = ("test", "val", "train")


@dataclass(frozen=True)
class BoardInstance:
    """A graph to be decided about. default: what a user gets without any search."""

    name: str
    graph: Graph
    task: Any
    cost: CostModel
    default: Solution

    @cached_property
    def baseline(self) -> float:
        """The default's price."""
        return self.default.price(self.cost).cost

    @property
    def original(self) -> Decided:
        """What answers start from."""
        return self.default.decided


@dataclass(frozen=True)
class Contest:
    """name: of its folder. instances: those that can be had here; absent: the others, and why."""

    name: str
    folder: Path
    title: str
    about: str
    unit: str
    instances: tuple[BoardInstance, ...]
    absent: Mapping[str, str]


def read_contests(place: Path, root: Path, only: Sequence[str] = ()) -> Iterator[Contest]:
    """All problems of a leaderboard's folder, by name, or only some. root: where paths of definitions begin. Raises
    UserError."""
    folders = sorted(file.parent for file in place.glob(f"*/{DEFINITION}"))
    if not folders:
        raise UserError(f"{place} holds no problem: a problem is a folder with a {DEFINITION}")
    unknown = {*only} - {folder.name for folder in folders}
    if unknown:
        known = ", ".join(folder.name for folder in folders)
        raise UserError(f"there is no problem {min(unknown)}; there are {known}")
    return (read_contest(folder, root) for folder in folders if not only or folder.name in only)


def read_contest(folder: Path, root: Path) -> Contest:
    """The problem that a folder defines. Raises UserError."""
    source = folder / DEFINITION
    said = mapping(read_yaml(source), str(source))
    made, absent = _from_answers(said, source, root) if "answers" in said else _from_options(said, source)
    title, about, unit = (text(said, key, str(source)) for key in ("title", "about", "unit"))
    return Contest(folder.name, folder, title, about, unit, tuple(made), absent)


def _from_answers(said: Mapping[str, Any], source: Path, root: Path) -> tuple[list[BoardInstance], dict[str, str]]:
    pack = root / text(said, "answers", str(source))
    made, absent = list[BoardInstance](), dict[str, str]()
    for name, digest in mapping(said.get("instances"), f"instances of {source}").items():
        try:
            case = open_case(packed.path_of(pack, str(digest)))
        except (UserError, GraphError) as error:
            absent[str(name)] = str(error)
            continue
        plans = case.decision.default_plans(case.graph, case.task)
        default = Solution(case.graph, case.task, case.decision, plans, plans)
        made.append(BoardInstance(str(name), case.graph, case.task, case.judge, default))
    return made, absent


def _from_options(said: Mapping[str, Any], source: Path) -> tuple[list[BoardInstance], dict[str, str]]:
    config = {group: _words(group, node) for group, node in mapping(said.get("config"), f"config of {source}").items()}
    _, task, cost, _ = pricing(source, {**config, "judge": config.get("cost")})
    graphs, why = dict[str, Graph](), ""
    for node in listed(said, "datasets", str(source)):
        try:
            drawn = dataset(source, _words("dataset", node), 0)
            graphs |= {graph.name: graph for split in SPLITS for graph in drawn.graphs(split)}
        except (UserError, GraphError) as error:
            why = str(error)
    made, absent = list[BoardInstance](), dict[str, str]()
    for name in names(said, "instances", str(source)):
        if name not in graphs:
            absent[name] = why or "its data sets have no graph of that name"
            continue
        default = task.open(graphs[name], cost, evals=0).solution()
        made.append(BoardInstance(name, graphs[name], task, cost, default))
    return made, absent


def _words(group: str, said: Any) -> dict[str, Any]:
    """An option in the words of files, with what the problem sets of it."""
    name, settings = (said, {}) if isinstance(said, str) else (mapping(said, group).get("name"), said)
    inner = sorted(key for key in map(str, settings) if key.startswith("_"))
    if inner:
        raise Unreadable(f"{group}.{inner[0][:80]} is no key that a problem may set")
    option = words(group, registry.option("cost" if group == "judge" else group, str(name)))
    return {**option, **settings, OPTION: str(name)}
