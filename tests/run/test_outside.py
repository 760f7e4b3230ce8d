"""No file brings code: every option and every setting is tried from every kind of file, and nothing that the file names
is imported, opened, run or connected to. Options and settings are found in conf/ and in the constructors' types."""

import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import pytest
import yaml
from hostile_files import answer, changed, checkpoint_of, nothing_is_called  # noqa: F401

from graphopt import load as load_answer
from graphopt.core.cli import composed
from graphopt.core.utils import registry
from graphopt.core.utils.limits import read_member
from graphopt.core.utils.marks import Outside
from graphopt.graphs.files import DATA
from graphopt.report import answer as answers
from graphopt.report import pack as packing
from graphopt.report.leaderboard.contests import read_contest
from graphopt.report.leaderboard.judging import judged_entry
from graphopt.run.config.build import build, machine_task_costs
from graphopt.run.config.construct import INJECTED, arguments_of, classes_in, construct, hints_of, target_of
from graphopt.run.config.stored import GROUPS, node_of, words
from graphopt.run.records import answer_file, packed
from graphopt.run.training import adopt, checkpoint

MODULE = "outside_canary"  # part of everything that nothing may touch
BEGINS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect")
touched: list[str] = []
watching = False
Place = tuple[str | int, ...]
Run = Callable[[], Any]


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching:
        named = str(arguments[0]) if arguments else ""
        if event in BEGINS or MODULE in named or (event == "import" and named.partition(".")[0] == "ray"):
            touched.append(f"{event} {named[:100]}")


sys.addaudithook(_watch)


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """What a forger would write where any value may stand; the module and the files that it names are there."""
    importable, folder = tmp_path_factory.mktemp("importable"), tmp_path_factory.mktemp(MODULE)
    (importable / f"{MODULE}.py").write_text("def make(*_, **__):\n    raise SystemExit('the canary ran')\n")
    files = [folder / f"a.{ending}" for ending in ("npz", "json", "onnx", "jsonl", "ckpt", "program.json.gz")]
    for file in files:
        file.write_text("")
    sys.path.insert(0, str(importable))
    inner = {"_option_": "programs", "name": "x", "train": [{"module": f"{MODULE}:make"}], "val": [], "test": [],
             "cache_dir": None}  # fmt: skip
    evil = {"_target_": f"{MODULE}.make"}
    single = [f"{MODULE}:make", str(files[0]), str(folder), {"module": f"{MODULE}:make"}, evil, inner]
    more = [f"{MODULE}.make", f"../{MODULE}", *map(str, files[1:]), {**evil, "_partial_": True},
            {"_option_": None, "_class_": f"{MODULE}.make"}, {**inner, "_target_": evil["_target_"]}]  # fmt: skip
    yield [*single, *([one] for one in single), *more]
    sys.path.remove(str(importable))
    assert MODULE not in sys.modules


@pytest.fixture(autouse=True)
def third_parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets that read these find one problem of each kind, and so go on to what else they make."""
    problem = {"widths": [128, 128], "heights": [128, 128], "inputs": [[0]], "outputs": [[1]], "base_costs": [1000],
               "op_types": ["Pointwise"], "fast_memory_capacity": 50000, "slow_memory_bandwidth": 10,
               "native_granularity": [128, 128]}  # fmt: skip
    (tmp_path / "third" / "tiling").mkdir(parents=True)
    (tmp_path / "third" / "tiling" / "one.json").write_text(json.dumps(problem))
    monkeypatch.setenv(DATA, str(tmp_path / "third"))


@contextlib.contextmanager
def untouched(what: Any) -> Iterator[None]:
    """Whatever is raised within, nothing is touched."""
    global watching
    touched.clear()
    watching = True
    try:
        with contextlib.suppress(Exception):
            yield
    finally:
        watching = False
    assert not touched, f"{what}: {touched[0]}"


# ---- what there is


def settings(group: str, node: Any, hint: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """(where, type) of every setting of a configured value: of the types, and of what the yaml file holds."""
    yield at, hint
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        yield from settings(group, node, inner[0], at)
    elif origin in (Union, types.UnionType):
        for one in inner:
            yield from settings(group, node, one, at)
    elif isinstance(node, list):
        for key, one in enumerate(node[:1]):
            yield from settings(group, one, inner[0] if inner else Any, (*at, key))
    elif isinstance(node, Mapping) or (dataclasses.is_dataclass(hint) and isinstance(hint, type)):
        of = target_of(node, group) if isinstance(node, Mapping) and "_target_" in node else hint
        known = hints_of(of) if "_target_" in (node or {}) or dataclasses.is_dataclass(of) else {}
        value = inner[1] if origin in (dict, Mapping) and inner else Any
        for key in {**(node or {}), **known}:
            if key not in INJECTED and key not in ("return", "_target_"):
                yield from settings(group, (node or {}).get(key), known.get(key, value), (*at, key))


def options(group: str) -> Iterator[tuple[str, dict[str, Any], dict[Place, list[Any]]]]:
    """(name, node, types of each of its settings) of the options of a group, one for each class."""
    folder, seen = "cost" if group == "judge" else group, set()
    for name in registry.options(folder):
        node = registry.option(folder, name)
        if node["_target_"] not in seen:
            seen.add(node["_target_"])
            node |= {"environment": "there"} if "environment" in node else {}
            found: dict[Place, list[Any]] = {}
            for at, hint in settings(group, node, Any):
                if at:
                    found.setdefault(at, []).append(hint)
            yield name, node, found


def is_marked(hint: Any) -> bool:
    return any(isinstance(mark, Outside) for mark in getattr(hint, "__metadata__", ()))


def replaced(value: Any, at: Place, by: Any) -> Any:
    """The value with another one at a place."""
    if not at:
        return deepcopy(by)
    made = deepcopy(value) if isinstance(value, dict | list) else {}
    known = made[at[0]] if isinstance(made, list) else made.get(at[0])
    made[at[0]] = replaced(known, at[1:], by)
    return made


def test_types_of_all_constructors_can_be_read() -> None:
    """A mark in a type that cannot be read would not be found."""
    for group in GROUPS:
        for name, node, _ in options(group):
            made = target_of(node, group)
            assert {*arguments_of(made)} <= {*hints_of(made)}, f"{group}={name}"


def test_what_is_known_to_reach_out_is_found() -> None:
    """That the walk finds settings at all, at every depth and in every form."""
    found = {(group, name, at) for group in GROUPS for name, _, known in options(group) for at, hints in known.items()
             if any(map(is_marked, hints))}  # fmt: skip
    assert found >= {
        ("dataset", "torch", ("module",)), ("dataset", "programs", ("train", 0)),
        ("dataset", "regal", ("room", "file")),
        ("cost", "gpu", ("measuring", "address")),
        ("algo", "laf", ("collection", "folder")), ("dataset", "regal_mixed", ("real", "cache_dir")),
    }  # fmt: skip


def used(group: str, node: dict[str, Any]) -> None:
    """Builds what a node says, and asks a data set for its files and graphs."""
    config = {"machine": registry.option("machine", "gpu2"), "task": registry.option("task", "joint"),
              "cost": registry.option("cost", "simulator"), "judge": registry.option("cost", "simulator")}  # fmt: skip
    if group in config:
        machine_task_costs(config | {group: node} | ({"judge": node} if group == "cost" else {}))
    elif group == "dataset":
        made = construct(node, "dataset", {"seed": 0})
        made.files()
        extent = made.extent()
        if extent is not None and extent <= 2000:
            made.graphs("test")
    else:
        machine, task, cost, _ = machine_task_costs(config)
        around = {"machine": machine, "task": task, "cost": cost, "seed": 0, "extra_width": 0, "dataset": None}
        construct(node, group, around)


@pytest.mark.parametrize("group", GROUPS)
def test_no_setting_of_any_option_reaches_out(group: str, canaries: list[Any], tmp_path: Path) -> None:
    """What passes `node_of` is built and used, so that a setting without its mark is found out."""
    for name, node, found in options(group):
        short = {key: [] if isinstance(value, list) and value and isinstance(value[0], Mapping) else value
                 for key, value in node.items()}  # fmt: skip
        for at, hints in found.items():
            whole = node if at[0] in ("train", "val", "test") else short  # models take minutes to be captured
            literal = [one for hint in hints if typing.get_origin(hint) is Literal for one in typing.get_args(hint)]
            for bait in [*(canaries[:6] if group == "algo" else canaries[::2]), *literal]:
                with untouched((group, name, at, bait)):
                    said = words(group, replaced(whole, at, bait))
                    used(group, node_of(group, said, tmp_path / "cell" / "a.npz"))


# ---- from each kind of file: what makes one, by what it says of groups, and then what reads it


@lru_cache(maxsize=1)
def _study() -> Path:
    return answer(Path(tempfile.mkdtemp())).parents[2]


def answered(folder: Path, said: Mapping[str, Any]) -> Path:
    """A decision whose configuration says so; the graph lies near."""
    shutil.copytree(_study(), folder)
    return changed(folder / "cell" / "decisions" / "a.npz", lambda header: header["config"].update(said))


def decision(folder: Path, said: Mapping[str, Any]) -> Run:
    path = answered(folder, said)
    if "dataset" in said:  # only read where the graph is not at hand
        shutil.rmtree(folder / "graphs")
    return lambda: load_answer(path)


def pack(folder: Path, said: Mapping[str, Any]) -> Run:
    answered(folder / "loose", said)
    (folder / "loose" / "cell" / "config.yaml").write_text("{}")
    packing.pack(folder / "loose", folder / "packed")
    place = folder / "packed" / packed.NAME
    (digest,) = json.loads(read_member(place, packed.INDEX, 10**6))["answers"]
    return lambda: load_answer(f"{place}#{digest}")


PROBLEM = {"title": "t", "about": "a", "unit": "s", "instances": ["test_0_8"],
           "config": {"machine": {"name": "cpu_core"}, "task": {"name": "tiling"}, "cost": {"name": "tile_time"}},
           "datasets": [{"name": "tiling", "source": "random", "random": {
               "train": [], "val": [], "test": [8], "sizes": [128], "products": 0.5, "graph_seed": 0}}]}  # fmt: skip
ENTRY = {"title": "t", "by": "b", "method": "m", "budget": "n", "hardware": "h", "costs": {"test_0_8": 1.0}}


def board(folder: Path, problem: Any = PROBLEM, entry: Any = ENTRY) -> Run:
    place = folder / "leaderboard" / "one"
    (place / "mine").mkdir(parents=True, exist_ok=True)
    (place / "problem.yaml").write_text(yaml.safe_dump(problem))
    (place / "mine" / "entry.yaml").write_text(yaml.safe_dump(entry))
    (place / "mine" / "test_0_8.json").write_text("{}")
    return lambda: judged_entry(read_contest(place, folder), place / "mine", folder)


def problem(folder: Path, said: Mapping[str, Any]) -> Run:
    text = deepcopy(PROBLEM)
    for group, node in said.items():
        node = {key: value for key, value in node.items() if key != "_option_"}
        if group == "dataset":
            text["datasets"] = [node]
        else:
            text["config"][group] = node  # type: ignore[index]
    return board(folder, text)


def entry(folder: Path, said: Mapping[str, Any]) -> Run:
    """The answer in an entry."""
    config = {"machine": "gpu2", "task": "placement", "cost": "simulator"}
    data = {"name": "synthetic", "families": ["layered"], "ops": [20], "train": 0, "val": 0, "test": 1}
    run = board(folder, PROBLEM | {"config": config, "datasets": [data], "instances": ["layered_20_test_0"]})
    path = answered(folder / "study", said)
    shutil.copy(path, folder / "leaderboard" / "one" / "mine" / "layered_20_test_0.npz")
    return run


def ckpt(folder: Path, said: Mapping[str, Any]) -> Run:
    stored = {"encoder": registry.option("encoder", "gat"), "algo": registry.option("algo", "go")}
    chosen = said.get("algo", {}).get("_option_") or "go"
    return trained(checkpoint_of(folder / "x.ckpt", stored | said), chosen)


@lru_cache(maxsize=1)
def _composed() -> dict[str, Any]:
    return composed(["task=placement"])


def trained(path: Path, algo: str) -> Run:
    config = _composed() | {"algo": registry.option("algo", algo), "ckpt": str(path)}
    return lambda: build(adopt.with_network(config))


KINDS: dict[str, tuple[Callable[[Path, Mapping[str, Any]], Run], tuple[str, ...]]] = {
    "decision": (decision, ("dataset", "machine", "task", "cost", "judge")),
    "pack": (pack, ("machine", "task", "cost", "judge")),
    "problem": (problem, ("dataset", "machine", "task", "cost")),
    "entry": (entry, ("dataset", "machine", "task", "cost", "judge")),
    "checkpoint": (ckpt, ("encoder", "algo")),
}


def reaching(group: str, canaries: list[Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Every option with every marked setting; and where an option may stand in another, each of these once more."""
    found, tried = list[tuple[Any, dict[str, Any]]](), (canaries[0], canaries[1], canaries[6], canaries[9])
    for name, node, known in options(group):
        for at in (at for at, hints in known.items() if any(map(is_marked, hints))):
            found += [((name, at, bait), replaced(node, at, bait)) for bait in tried]
    inner = found[:: len(tried)]
    for name, node, known in options(group):
        for at in (at for at, hints in known.items() if any(map(classes_in, hints))):
            found += [((name, at, what), replaced(node, at, one)) for what, one in inner]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_sets_what_reaches_out(
    kind: str, canaries: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_OPS", 2000)  # sound data sets take minutes
    make, groups = KINDS[kind]
    cases = [(group, what, node) for group in groups for what, node in reaching(group, canaries)]
    assert cases
    for number, (group, what, node) in enumerate(cases):
        run = make(tmp_path / f"{number}", {group: words(group, node)})
        with untouched((kind, group, what)):
            run()


# ---- a class, or an option, in every position of what a file says


def positions(value: Any, at: Place = ()) -> Iterator[Place]:
    """All of them; a key more beside those of a mapping."""
    yield at
    if isinstance(value, Mapping):
        yield (*at, "more")
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from positions(one, (*at, key))


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key] if isinstance(value, list) else value.get(key)
    return value


def everywhere(said: Any, canaries: list[Any]) -> Iterator[tuple[Any, Any]]:
    """(what was done, the text): a class, and an option that runs code, in place of each value and beside it."""
    for place in positions(said):
        here = at(said, place)
        for evil in canaries[4:6]:
            yield (place, evil), replaced(said, place, evil)
            if isinstance(here, Mapping):
                yield (place, "beside", evil), replaced(said, place, {**here, **evil})


def in_answer(folder: Path) -> tuple[Any, Callable[[Any], Run]]:
    path = answer(folder)
    decided = answer_file.load(path)
    node = registry.option("dataset", "tiling")
    node["random"] |= {"train": [8], "val": [8], "test": [8], "sizes": [128]}
    config = decided.header["config"] | {"dataset": words("dataset", node)}
    shutil.rmtree(folder / "graphs")

    def made(header: Any) -> Run:
        answer_file.write(path, dataclasses.replace(decided, header=header))
        return lambda: load_answer(path)

    return decided.header | {"config": config}, made


def in_checkpoint(folder: Path) -> tuple[Any, Callable[[Any], Run]]:
    config = {"encoder": registry.option("encoder", "gat"), "algo": registry.option("algo", "go")}
    return checkpoint.settings_in(config), lambda said: trained(checkpoint_of(folder / "x.ckpt", said), "go")


ANYWHERE: dict[str, Callable[[Path], tuple[Any, Callable[[Any], Run]]]] = {
    "answer": in_answer, "checkpoint": in_checkpoint,
    "problem": lambda folder: (PROBLEM, lambda text: board(folder, problem=text)),
    "entry": lambda folder: (ENTRY, lambda text: board(folder, entry=text)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ANYWHERE)
def test_a_class_anywhere_in_a_file(kind: str, canaries: list[Any], tmp_path: Path) -> None:
    said, made = ANYWHERE[kind](tmp_path)
    for what, changed_text in everywhere(said, canaries):
        run = made(changed_text)
        with untouched(what):
            run()
