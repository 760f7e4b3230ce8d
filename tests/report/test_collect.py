"""Commands that prepare: collect samples, filter graphs, tune BRKGA; the command line's manners."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from graphopt.core.cli import composed, sentences
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils import registry
from graphopt.graphs.regal import Draws, HeadroomPrices, Reached, Regal, load_headroom
from graphopt.learn.laf import LAF
from graphopt.report import filter
from graphopt.run.cell import Cell
from graphopt.run.config.build import build
from graphopt.run.config.construct import construct
from graphopt.run.training.train import prepare

# --- The command line's manners end with the command.


@pytest.mark.parametrize("before", [None, "0"])
def test_what_a_command_changes_is_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    if before is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", before)
    format_before = warnings.formatwarning
    with pytest.raises(SystemExit), sentences():
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        raise UserError("wrong")
    assert os.environ.get("HYDRA_FULL_ERROR") == before
    assert warnings.formatwarning is format_before


def test_a_first_command_does_not_make_the_next_show_tracebacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended, sentences():
            raise UserError("one sentence")
        assert ended.value.code == UserError("").exit_code
        assert capsys.readouterr().err == "one sentence\n"


# --- A training of samples that are collected once.

SMALL = ["dataset=synthetic", "dataset.families=[layered]",
         "dataset.ops=[30,40]", "dataset.train=2", "dataset.val=0", "dataset.test=1",
         "encoder.width=8", "encoder.layers=1", "cost.threads=1", "judge.threads=1", "algo.collection.workers=1",
         "algo.collection.sweeps=1", "trainer.steps=3"]  # fmt: skip


def settings(folder: Path, *more: str) -> list[str]:
    GlobalHydra.instance().clear()
    return [*SMALL, f"algo.collection.folder={folder}/samples", f"output_dir={folder}/out", *more]


def trained(tmp_path: Path, name: str) -> dict[str, torch.Tensor]:
    """Weights after all steps of a cell of its own; samples are shared."""
    config = composed(["algo=laf", *settings(tmp_path, f"study={name}", "trainer.steps=6", "trainer.save_every=1")])
    cell = Cell(config)
    cell.start()
    parts = build(config)
    try:
        with cell.logged():
            prepare(parts, cell)
    finally:
        cell.stop()
    assert isinstance(parts.algo, LAF)
    return {**parts.algo.state_dict(), "evals": torch.tensor(parts.algo.train_evals)}


def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, step = trained(tmp_path, "whole"), LAF.training_step

    def killed(learner: LAF, graphs: list[Graph], batch_idx: int) -> None:
        if learner.train_steps == 3:
            raise KeyboardInterrupt
        step(learner, graphs, batch_idx)

    monkeypatch.setattr(LAF, "training_step", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, "killed")
    monkeypatch.setattr(LAF, "training_step", step)
    resumed = trained(tmp_path, "killed")
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)


# --- The search for graphs with room: what is drawn next, what is read off a run, resuming.

ROOM, TIGHT = Reached(100.0, 70.0, 80.0, 60.0), Reached(100.0, 90.0, 91.0, 90.0)
KINDS = [Draws("runtime", family, 50, "test") for family in ("erdos_renyi", "watts_strogatz")]


def regal(**room: Any) -> Regal:
    node = registry.option("dataset", "regal")
    node |= {"families": ["erdos_renyi", "watts_strogatz"], "sizes": [50], "train": [0], "val": [0], "test": [6]}
    node["room"] |= {"objective": "runtime", **room}
    made: Regal = construct(node, "dataset")
    return made


def fill(data: Regal, passes: dict[str, list[bool]]) -> dict[str, list[Reached]]:
    """Draws until `next_kind` has enough; the answers are given, TIGHT when they run out."""
    room = HeadroomPrices(Path(), {}, {})
    while (kind := filter.next_kind(data, room, KINDS, 6)) is not None:
        found = room.reached.setdefault(str(kind), [])
        answers = passes[kind.family]
        found.append(ROOM if len(found) < len(answers) and answers[len(found)] else TIGHT)
    return {kind.family: room.of(kind) for kind in KINDS}


def test_every_family_gives_its_share() -> None:
    drawn = fill(regal(), {"erdos_renyi": [False, True, True, True], "watts_strogatz": [True] * 9})
    assert [len(drawn[f]) for f in ("erdos_renyi", "watts_strogatz")] == [4, 3]


def test_others_fill_up_for_a_family_that_has_nothing() -> None:
    drawn = fill(regal(), {"erdos_renyi": [], "watts_strogatz": [True] * 9})
    assert len(drawn["erdos_renyi"]) == filter.HOPELESS and len(drawn["watts_strogatz"]) == 6


def test_no_hope_ends_the_search() -> None:
    drawn = fill(regal(), {"erdos_renyi": [], "watts_strogatz": [True]})
    assert len(drawn["watts_strogatz"]) == 2 * filter.DRAWS_PER_GRAPH * 6


def test_low_and_high_budgets_are_those_of_shorter_runs() -> None:
    """A run of 20,000 evaluations passes through what a run of 1,000 with the same seed ends with."""
    graph = regal().draw("watts_strogatz", 50, "test", 3)
    found = filter.reached(graph, "runtime", [1003])
    low, high, usual, other = (
        filter.search(graph, "runtime", evals, seed).best_cost
        for evals, seed in ((1000, 1003), (10_000, 1003), (5000, 1001), (5000, 1002))
    )
    assert (found.low, found.high) == (low, high) and found.best <= high <= low
    assert found.usual == (usual + other) / 2


def test_a_stopped_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, calls = tmp_path / "prices.json", []

    def searched(graph: Graph, objective: str, long_seeds: Any) -> Reached:
        calls.append(graph.name)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return ROOM

    monkeypatch.setattr(filter, "reached", searched)
    command = ["regal", "--split", "test", "--ops", "50", "--file", str(file)]
    with pytest.raises(KeyboardInterrupt):
        filter.main(command)
    assert sum(map(len, load_headroom(file).reached.values())) == 3
    assert filter.main(command) == 0
    assert len(set(calls)) == len(calls) - 1 == 28  # equal shares of 26; the one that was stopped is searched again
    assert filter.main(command) == 0 and len(calls) == 29


def test_a_set_that_filters_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="dataset=synthetic filters nothing"):
        filter.main(["synthetic"])


@pytest.mark.parametrize("price", ["NaN", "-Infinity", "-1", '"3"', "[1]"])
def test_a_price_that_is_none_is_a_sentence(tmp_path: Path, price: str) -> None:
    """NaN would be written as null, which is infinity: other draws would pass when the file is read again."""
    file = tmp_path / "room.json"
    file.write_text(f'{{"recipe": {{}}, "reached": {{"a": [[1, 2, {price}, 4]]}}}}')
    with pytest.raises(GraphError, match="is no file of room prices"):
        load_headroom(file)
