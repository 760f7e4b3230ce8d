"""The search for graphs with room: what is drawn next, what is read off a run, resuming."""

from pathlib import Path
from typing import Any

import pytest

from graphopt import filter
from graphopt.config.construct import construct
from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.headroom import Draws, HeadroomPrices, Reached, load_headroom
from graphopt.datasets.regal import Regal
from graphopt.utils import registry

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
    on = filter.bench("gpu2", "placement_scheduling", "runtime")
    found = filter.reached(graph, on, [1003])
    low, high, usual = (on.run(graph, evals, seed).best_cost for evals, seed in ((1000, 1003), (10_000, 1003),
                                                                                (5000, 1001)))  # fmt: skip
    assert (found.low, found.high) == (low, high) and found.best <= high <= low
    assert found.usual == (usual + on.run(graph, 5000, 1002).best_cost) / 2


def test_a_stopped_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, calls = tmp_path / "prices.json", []

    def searched(graph: Graph, on: filter.SearchSetup, long_seeds: Any) -> Reached:
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


def test_a_set_that_filters_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert filter.main(["synthetic"]) == 1
    assert "dataset=synthetic filters nothing" in capsys.readouterr().err


@pytest.mark.parametrize("price", ["NaN", "-Infinity", "-1", '"3"', "[1]"])
def test_a_price_that_is_none_is_a_sentence(tmp_path: Path, price: str) -> None:
    """NaN would be written as null, which is infinity: other draws would pass when the file is read again."""
    file = tmp_path / "room.json"
    file.write_text(f'{{"recipe": {{}}, "reached": {{"a": [[1, 2, {price}, 4]]}}}}')
    with pytest.raises(GraphError, match="is no file of room prices"):
        load_headroom(file)
