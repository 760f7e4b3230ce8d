"""The harness: equal budgets, rows for everything, nothing done twice."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import pytest
from toy import toy_graph

from graphopt.core.errors import HOW, ConfigError, RowsFailed, Unmeasured, UserError, own_place
from graphopt.core.utils import registry
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.problems.problem import Incumbent
from graphopt.run import evaluate
from graphopt.run.cell import Cell, sentence_of
from graphopt.run.config.build import build
from graphopt.run.evaluate import evaluate_cell, thinned
from graphopt.run.records import rows as rows_module
from graphopt.run.records.answer_file import read_answer
from graphopt.run.records.rows import Row, read


@pytest.fixture(autouse=True)
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy plans are codes, not placements: the independent check is not for them."""
    monkeypatch.setattr("graphopt.problems.problem.Solution.violations", lambda solution: [])


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[Row]]:
    """Evaluates one configured cell and returns its rows."""

    def go(**changes: Any) -> list[Row]:
        cell = Cell(parts_of.config(tmp_path, **changes))
        cell.start()
        try:
            evaluate_cell(build(cell.config), cell)
        finally:
            cell.stop()
        return read(cell.rows.path)

    return go


def test_one_row_per_graph_and_budget(run: Callable[..., list[Row]], tmp_path: Path) -> None:
    rows = run(budget={"evals": [4, 10], "seconds": None}, compare=["random"])
    assert [(r["ops"], r["algo"], r["evals_cap"]) for r in rows] == [
        (ops, algo, evals) for ops in (8, 9) for algo in ("draws", "random") for evals in (4, 10)
    ]
    for row in rows:
        assert row["status"] == "ok" and row["evals"] <= row["evals_cap"] and row["distinct"] <= row["evals"]
        assert row["evals"] == row["evals_cap"] or row["algo"] == "random"
        assert row["initial"] == 10 * row["searched_initial"] == 10 * (1 + row["ops"])
        assert row["judged"] == 10 * row["searched"] <= row["initial"]
        stored, _ = read_answer(next((tmp_path / "s").glob("*/" + row["decision"])))
        assert stored["prices"]["judged"] == row["judged"] and stored["graph"]["hash"] == row["graph_hash"]
    assert len(list((tmp_path / "s" / "graphs").glob("*.npz"))) == 2


@pytest.mark.parametrize(("evals", "shown"), [(1, False), (40, True)])
def test_measured_prices_say_their_noise(
    run: Callable[..., list[Row]], tmp_path: Path, evals: int, shown: bool
) -> None:
    """A gain of less than two standard errors of the difference is no gain that is shown: its row says so."""
    algo = parts_of.node(parts_of.Flips, "flips")
    judge = parts_of.node(parts_of.Timed, "timed", factor=10.0)
    for row in run(judge=judge, algo=algo, budget={"evals": [evals], "seconds": None}):
        assert row["judged"] < row["initial"] and (row["noise"], row["measurements"]) == (0.06, 7)
        gap = row["initial"] - row["judged"]
        assert shown == (gap > 2 * 0.06 * math.hypot(row["initial"], row["judged"]))
        assert ("within the noise of measured prices, 6 % each" in row["reason"]) == (not shown)
        file = next((tmp_path / "s").glob("*/" + row["decision"]))
        assert read_answer(file)[0]["prices"]["noise"] == 0.06


def test_computed_prices_have_none(run: Callable[..., list[Row]], tmp_path: Path) -> None:
    for row in run():
        assert not {"noise", "measurements"} & row.keys() and not row["reason"]
        assert read_answer(next((tmp_path / "s").glob("*/" + row["decision"])))[0]["prices"]["noise"] == 0.0


def test_a_budget_of_zero_is_priced_without_a_bill(run: Callable[..., list[Row]]) -> None:
    algo = parts_of.node(parts_of.Commits, "commits")
    for row in run(algo=algo, budget={"evals": [0], "seconds": None}):
        assert (row["evals"], row["searched"], row["judged"]) == (0, 1.0, 10.0)


@pytest.mark.parametrize("error", [ZeroDivisionError("nine"), Unmeasured("nine"), KeyboardInterrupt()], ids=repr)
def test_a_failure_costs_its_row_only(
    run: Callable[..., list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A kill costs nothing; what failed is tried again."""
    inner = evaluate.solve

    def breaks(optimizer: Any, graph: Any, *args: Any, **keys: Any) -> Any:
        if graph.num_ops == 9:
            raise error
        return inner(optimizer, graph, *args, **keys)

    monkeypatch.setattr(evaluate, "solve", breaks)
    with pytest.raises((RowsFailed, KeyboardInterrupt), match=r"one row failed: toy9_1 with draws: .*nine|^$"):
        run()
    [file] = (tmp_path / "s").glob("*/rows.jsonl")
    failed = [] if isinstance(error, KeyboardInterrupt) else [(9, "failed")]
    assert [(r["ops"], r["status"]) for r in read(file)] == [(8, "ok"), *failed]
    monkeypatch.setattr(evaluate, "solve", inner)
    assert [(r["ops"], r["status"]) for r in run()] == [(8, "ok"), (9, "ok")]


def test_an_invalid_plan_is_a_failed_row(run: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.problems.problem.Solution.violations", lambda solution: ["op 3 runs twice"])
    with pytest.raises(RowsFailed, match="op 3 runs twice"):
        run()


def test_a_plan_other_than_the_priced_one_is_a_failed_row(run: Callable[..., list[Row]],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    inner = evaluate.solve

    def forgets(*args: Any, **keys: Any) -> Any:
        problem, spent = inner(*args, **keys)
        problem.best = problem.initial
        return problem, spent

    monkeypatch.setattr(evaluate, "solve", forgets)
    with pytest.raises(RowsFailed, match=r"the stored plan costs \d+, the search found \d+"):
        run()


def test_what_is_done_is_not_done_again(run: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    before = run()
    solved: list[str] = []
    inner = evaluate.solve

    def counted(optimizer: Any, graph: Any, *args: Any, **keys: Any) -> Any:
        solved.append(f"{graph.num_ops} {optimizer.name} {keys['evals']}")
        return inner(optimizer, graph, *args, **keys)

    monkeypatch.setattr(evaluate, "solve", counted)
    after = run(budget={"evals": [10, 20], "seconds": None})
    assert solved == ["8 draws 20", "9 draws 20"]
    assert after[:2] == before and len(after) == 4


def test_what_cannot_be_compared_is_one_illegal_row(
    run: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {"device": parts_of.node(parts_of.DecidesDevice, "device")}
    monkeypatch.setattr(registry, "option", lambda group, name: nodes[name])
    rows = run(compare=["device"])
    assert [r["status"] for r in rows] == ["illegal", "ok", "ok"]
    assert rows[0]["algo"] == "device" and "needs a task that decides device" in rows[0]["reason"]


def test_no_graphs(run: Callable[..., list[Row]]) -> None:
    with pytest.raises(UserError, match=r"dataset=toys has no graphs in split 'test'"):
        run(dataset=parts_of.node(parts_of.ToyGraphs, "toys", empty=["test"]))


def test_thinning_keeps_the_ends() -> None:
    trace = [Incumbent(i, float(i), -float(i)) for i in range(1000)]
    kept = thinned(trace, 20)
    assert kept[0] == trace[0] and kept[-1] == trace[-1] and len(kept) <= 20
    assert kept == sorted(kept, key=lambda s: s.evals) and thinned(trace[:5], 20) == trace[:5]


def damage(file: Path, how: str, another: bytes) -> None:
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
    made = {"cut": content[:middle], "garbage": b"\x93NUMPY" * 50, "flipped": flipped, "empty": b"", "another": another}
    file.write_bytes(made[how])


def timeless(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in ("seconds", "trace")}


@pytest.mark.parametrize("how", ["cut", "garbage", "flipped", "empty", "gone", "another"])
def test_damaged_answers_and_graphs_are_made_anew(run: Callable[..., list[Row]], tmp_path: Path, how: str) -> None:
    """Of equal seeds the rows are equal."""
    before = run()
    [answer, other], [graph, second] = (
        sorted((tmp_path / "s").glob(place)) for place in ("*/decisions/*.npz", "graphs/*")
    )
    untouched, size = other.stat().st_mtime_ns, answer.stat().st_size
    for file, another in ((answer, other), (graph, second)):
        file.unlink() if how == "gone" else damage(file, how, another.read_bytes())
    same_size = answer.exists() and answer.stat().st_size == size  # by chance too, of packed numbers
    assert Cell(parts_of.config(tmp_path)).finished == same_size
    after = run()
    assert sorted(map(timeless, before), key=str) == sorted(map(timeless, after), key=str)
    assert read_answer(answer)[0]["graph"]["ops"] == 8
    assert load_graph(graph).hash == graph.stem and other.stat().st_mtime_ns == untouched


def test_a_cell_is_finished_for_the_content_of_its_files(run: Callable[..., list[Row]], tmp_path: Path) -> None:
    place = tmp_path / "models"
    files = {
        "_target_": "graphopt.graphs.files.GraphFiles",
        "name": "files",
        "path": str(place),
        "train": [],
        "val": [],
    }
    config = parts_of.config(tmp_path, dataset=files)
    for ops in (4, 5):
        save_graph(place / f"m{ops}.npz", toy_graph(ops))
    assert [r["ops"] for r in run(dataset=files)] == [4, 5] and Cell(config).finished
    os.utime(place / "m4.npz")
    assert Cell(config).finished
    size = (place / "m4.npz").stat()
    save_graph(place / "m4.npz", toy_graph(6))
    os.utime(place / "m4.npz", ns=(size.st_atime_ns, size.st_mtime_ns))
    assert not Cell(config).finished
    assert [r["ops"] for r in run(dataset=files)] == [5, 6] and Cell(config).finished
    [folder] = (tmp_path / "s").glob("*/rows.jsonl")
    assert [r["ops"] for r in read(folder.with_name("rows.replaced.jsonl"))] == [4]
    save_graph(place / "m7.npz", toy_graph(7))
    assert not Cell(config).finished and [r["ops"] for r in run(dataset=files)] == [5, 6, 7]


def test_a_full_disk_ends_the_run_and_the_same_call_goes_on(
    run: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every write of a case in turn: its graph, its answer, its row, the marker."""
    writes = [(evaluate, "save_graph"), (evaluate.answer_file, "save"), (rows_module, "_append"), (os, "replace")]
    undisturbed = [(r["ops"], r["judged"]) for r in run(study="undisturbed")]
    for module, name in writes:

        def full(*args: Any, **keys: Any) -> None:
            raise UserError("full") if name == "_append" else OSError(28, "No space left on device")  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            with pytest.raises(UserError, match=r"full|No space left on device"):
                run(study=name)
        assert [(r["ops"], r["judged"]) for r in run(study=name)] == undisturbed


def test_a_price_that_is_no_number_fails_its_row(run: Callable[..., list[Row]], tmp_path: Path) -> None:
    """Of a cost model of one's own: nothing is compared with NaN, and none reaches a file."""
    nan = parts_of.node(parts_of.NoNumber, "nan", factor=1.0)
    with pytest.raises(RowsFailed, match=r"came out as no number \(NaN\)"):
        run(cost=nan, judge=nan)
    (path,) = tmp_path.rglob("rows.jsonl")
    assert {row["status"] for row in read(path)} == {"failed"} and "NaN," not in path.read_text()


def test_an_own_algorithm_s_exception_says_where(run: Callable[..., list[Row]], tmp_path: Path) -> None:
    """Its line, not one of graphopt's that called it, and how to see more."""
    with pytest.raises(RowsFailed):
        run(algo=parts_of.node(parts_of.Breaks, "breaks"))
    line = next(n for n, text in enumerate(Path(parts_of.__file__).read_text().split("\n"), 1) if 'Error("nine' in text)
    (reason,) = {row["reason"] for path in tmp_path.rglob("rows.jsonl") for row in read(path) if row["reason"]}
    assert reason == f"ZeroDivisionError: nine ({parts_of.__file__}, line {line}; {HOW})"


def test_an_own_data_set_s_exception_says_where(tmp_path: Path) -> None:
    for wrong in (True, False):
        cell = Cell(parts_of.config(tmp_path, dataset=parts_of.node(parts_of.NoGraphs, "none", wrong=wrong)))
        with pytest.raises((ConfigError, ZeroDivisionError)) as caught:
            evaluate_cell(build(cell.config), cell)
        assert f"{parts_of.__file__}, line " in sentence_of(caught.value)


def test_an_exception_of_a_script_is_not_blamed_on_it(run: Callable[..., list[Row]]) -> None:
    """The frames that called graphopt are no part of it: this file is not named."""
    with pytest.raises(UserError) as caught:
        run(dataset=parts_of.node(parts_of.ToyGraphs, "toys", empty=3))
    assert own_place(caught.value) == ""
