"""`Contest`: one problem of the leaderboard: instances, and how answers to them are priced.

A folder of the leaderboard with a `problem.yaml`:

    title: Fusion               # and about, unit: texts for the page
    answers: results/go_fusion/answers.zip
    instances: {mnasnet: 0123456789abcdef}
    datasets: [{name: zoo, collection: large}]

takes graph, task and cost model of each instance from an answer of a stored study (its default is the baseline; the
data set, which has more graphs, is named for those who want to solve them), and

    config: {machine: cpu_core, task: tiling, cost: tile_time}
    datasets: [tiling, {name: tiling, source: random}]
    instances: [name, ...]

makes them of options; where a mapping stands for a name, `name` says the option and other keys are its settings.
`equality: {draws: 5, tolerance: 1.0e-9}` says when programs count as equal (`Equality`). A problem's words are data, as
of any file (`graphopt.run.config.stored`).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils import registry
from graphopt.core.utils.limits import MIB, read_bytes
from graphopt.core.utils.terminal import short
from graphopt.graphs.dataset import Split
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import Decided, Equality, Solution
from graphopt.report.answer import Answer, dataset, pricing
from graphopt.run.config.stored import OPTION, words
from graphopt.run.records import packed

DEFINITION = "problem.yaml"
FILE_BYTES = MIB
MOST = 1e300
LONGEST_TEXT = 2000  # characters of a text
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
SPLITS: tuple[Split, ...] = ("test", "val", "train")


@dataclass(frozen=True)
class BoardInstance:
    """A graph to be decided about. default: the answer without any search."""

    name: str
    graph: Graph
    task: Any
    cost: CostModel
    default: Solution
    equality: Equality

    @cached_property
    def baseline(self) -> float:
        """The default's price."""
        return self.default.price(self.cost).cost

    @property
    def original(self) -> Decided:
        """The decision from which answers start."""
        return self.default.decided


@dataclass(frozen=True)
class Contest:
    """name: of its folder. datasets: overrides of those that have its graphs. instances: those that can be had here;
    absent: the others, and why. equality: of programs, None where answers are none."""

    name: str
    folder: Path
    title: str
    about: str
    unit: str
    datasets: tuple[str, ...]
    equality: Equality | None
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
    equality = _equality(said.get("equality", {}), source)
    make = _from_answers if "answers" in said else _from_options
    made, absent = make(said, source, root, equality)
    title, about, unit = (text(said, key, str(source)) for key in ("title", "about", "unit"))
    datasets = tuple(_override(node) for node in listed(said, "datasets", str(source)))
    programs = any(one.task.makes_programs for one in made)
    return Contest(folder.name, folder, title, about, unit, datasets, equality if programs else None, tuple(made),
                   absent)  # fmt: skip


def pack_of(said: Mapping[str, Any], source: Path, root: Path) -> Path:
    """The pack of a stored study that `answers` names. Raises Unreadable."""
    named = text(said, "answers", str(source))
    study, results = Path(named), (root / "results").resolve()
    right = named.isprintable() and study.parts[:1] == ("results",) and study.name == packed.NAME
    if not right or not (root / study).resolve().is_relative_to(results):
        raise Unreadable(f"{source}: answers must name results/STUDY/{packed.NAME}")
    return root / study


def answers_in(pack: Path, said: Any, source: str) -> dict[str, Path]:
    """Name of an instance -> its answer in a pack, of digests by name. Raises Unreadable."""
    found = {}
    for name, digest in mapping(said, source).items():
        if not is_name(name) or not packed.is_digest(digest):
            raise Unreadable(f"{source}: {short(name)}: {short(digest)} is no name with a digest of 4 to 16 hex digits")
        found[str(name)] = packed.path_of(pack, str(digest))
    return found


def _equality(said: Any, source: Path) -> Equality:
    usual, given = Equality(), mapping(said, f"equality of {source}")
    draws, tolerance = (given.get(key, getattr(usual, key)) for key in ("draws", "tolerance"))
    if {*given} - {"draws", "tolerance"} or type(draws) is not int or not 2 <= draws <= 100:
        raise Unreadable(f"equality of {source}: give draws, a whole number from 2 to 100, and tolerance")
    if type(tolerance) is not float or not 0.0 < tolerance <= 1e-6:
        raise Unreadable(f"equality of {source}: tolerance is a number above 0, at most 1.0e-6")
    return Equality(draws, tolerance)


Made = tuple[list[BoardInstance], dict[str, str]]


def _from_answers(said: Mapping[str, Any], source: Path, root: Path, equality: Equality) -> Made:
    made, absent = list[BoardInstance](), dict[str, str]()
    answers = answers_in(pack_of(said, source, root), said.get("instances"), f"instances of {source}")
    for name, place in answers.items():
        try:
            answer = Answer.load(place)
        except (UserError, GraphError) as error:
            absent[name] = str(error)
            continue
        plans = answer.decided.default_plans(answer.graph, answer.solution.task)
        default = Solution(answer.graph, answer.solution.task, answer.decided, plans, plans)
        made.append(BoardInstance(name, answer.graph, answer.solution.task, answer.judge, default, equality))
    return made, absent


def _from_options(said: Mapping[str, Any], source: Path, root: Path, equality: Equality) -> Made:
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
    for name in listed(said, "instances", str(source)):
        if not is_name(name):
            raise Unreadable(f"{source}: {short(name)} under instances is no name: letters, digits, _, - and . only")
        if name not in graphs:
            absent[name] = why or "its data sets have no graph of that name"
            continue
        default = task.open(graphs[name], cost, evals=0).solution()
        made.append(BoardInstance(name, graphs[name], task, cost, default, equality))
    return made, absent


def _name(said: Any, group: str) -> str:
    """Of an option that a problem names, alone or with settings. Raises Unreadable."""
    name = said if isinstance(said, str) else mapping(said, group).get("name")
    if not is_name(name):
        raise Unreadable(f"{group}: {short(name)} is no name of an option")
    return str(name)


def _override(said: Any) -> str:
    """A data set that a problem names, with its words and numbers, as it is chosen on the command line after
    `dataset=`. Raises Unreadable."""
    name, settings = _name(said, "dataset"), {} if isinstance(said, str) else said
    plain = {key: value for key, value in settings.items() if key != "name" and isinstance(value, str | int | float)}
    return " ".join([name, *(f"dataset.{short(key)}={short(value)}" for key, value in plain.items())])


def _words(group: str, said: Any) -> dict[str, Any]:
    """An option in the words of files, with the problem's settings."""
    name, settings = _name(said, group), {} if isinstance(said, str) else said
    inner = sorted(key for key in map(str, settings) if key.startswith("_"))
    if inner:
        raise Unreadable(f"{group}.{inner[0][:80]} is no key that a problem may set")
    option = words(group, registry.option("cost" if group == "judge" else group, name))
    return {**option, **settings, OPTION: name}


# ---- yaml files: plain values within limits, and errors in a sentence


class _Plain(yaml.SafeLoader):
    """Plain values, without aliases: a few of these stand for any amount of memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    """The value of a yaml file. Raises Unreadable."""
    try:
        return yaml.load(read_bytes(path, FILE_BYTES), _Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is no yaml ({' '.join(str(error).split())[:200]})") from None


def mapping(value: Any, source: str) -> Mapping[str, Any]:
    """Raises Unreadable where it is none."""
    if not isinstance(value, dict):
        raise Unreadable(f"{source}: it holds no keys with values")
    return value


def text(said: Mapping[str, Any], key: str, source: str) -> str:
    """A text that has to be there. Raises Unreadable."""
    value = said.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_TEXT:
        raise Unreadable(f"{source} needs a text under {key}")
    return value


def is_name(value: Any) -> bool:
    """Whether it can be the name of an instance, or of an entry: it becomes a part of a path."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def number(value: Any) -> float | None:
    """As a number that a price can be; None where it is none."""
    if type(value) not in (int, float) or not abs(value) < MOST or not math.isfinite(value):
        return None
    return float(value)


def listed(said: Mapping[str, Any], key: str, source: str) -> list[Any]:
    """A list. Raises Unreadable."""
    value = said.get(key)
    if not isinstance(value, list):
        raise Unreadable(f"{source} needs a list under {key}")
    return value
