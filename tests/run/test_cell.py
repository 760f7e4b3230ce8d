"""Cells: where results lie, what makes two cells the same, and how errors end."""

import copy
import fcntl
import json
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import pytest
from omegaconf import OmegaConf

from graphopt.core.errors import Incompatible, UsageError, UserError
from graphopt.core.graph import GraphError
from graphopt.run import cell as cell_module
from graphopt.run.cell import Cell, config_hash, open_cell, settings_of
from graphopt.run.records.rows import read


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(config)
    *parents, last = path.split(".")
    inner = out
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return out


SAME = ("study", "output_dir", "resume", "budget.evals", "compare", "split", "logger.name")
OTHER = ("seed", "ckpt", "cost.factor", "judge.factor", "trainer.steps", "task.name")


@pytest.mark.parametrize("path", [*SAME, *OTHER])
def test_what_makes_results_differ_makes_another_cell(tmp_path: Path, path: str) -> None:
    """What rows say for themselves does not."""
    config = parts_of.config(tmp_path)
    assert (config_hash(changed(config, path, "99")) == config_hash(config)) == (path in SAME)


def test_an_encoder_counts_where_the_algorithm_reads_one(tmp_path: Path) -> None:
    reads = parts_of.node(parts_of.Learns, "learns", lr=0.1, break_at=0)
    for config, counts in ((parts_of.config(tmp_path), False), (parts_of.config(tmp_path, algo=reads), True)):
        assert (config_hash(changed(config, "encoder.width", 99)) != config_hash(config)) == counts
        assert ("-bias-" in Cell(config).path.name) == counts


def test_the_folder_reads_like_the_command(tmp_path: Path) -> None:
    cell = Cell(parts_of.config(tmp_path, seed=3))
    assert cell.path == tmp_path / "s" / f"binary-draws-toys-one-ones-tens-s3-{cell.hash}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"typo": 1}, "typo does not exist; keys: study"),
        ({"seed": "x"}, "seed=x must be a whole number"),
        ({"budget": {"evals": [], "seconds": None}}, "budget.evals"),
        ({"budget": {"evals": [-1], "seconds": None}}, "budget.evals"),
        ({"budget": {"evals": [1], "minutes": 1}}, "budget.minutes does not exist"),
        ({"split": "tset"}, "split=tset is not one of train, val, test"),
        ({"algo": None}, "algo is not chosen"),
    ],
)
def test_keys_without_meaning(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(parts_of.config(tmp_path, **changes))
    assert str(caught.value).startswith(words.split()[0]) and words in str(caught.value) and caught.value.exit_code == 2


def test_one_number_stands_for_a_list(tmp_path: Path) -> None:
    assert settings_of(parts_of.config(tmp_path, budget={"evals": 7, "seconds": 2})).budget.evals == [7]


def opened(tmp_path: Path, error: Exception | None, **changes: Any) -> Cell:
    with open_cell(OmegaConf.create(parts_of.config(tmp_path, **changes))) as cell:
        if error is not None:
            raise error
        cell.finish()
    return cell


@pytest.mark.parametrize(
    ("error", "status"),
    [(Incompatible("no fit"), "illegal"), (UserError("no file"), "failed"), (GraphError("a cycle"), "failed")],
)
def test_an_error_ends_a_single_run_with_a_sentence(
    tmp_path: Path, error: Exception, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        opened(tmp_path, error)
    assert ended.value.code == 1 and capsys.readouterr().err == f"{error}\n"
    [row] = read(next(tmp_path.rglob("rows.jsonl")))
    assert (row["status"], row["reason"], row["algo"]) == (status, str(error), "draws")


def test_an_unexpected_error_leaves_its_traceback_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        opened(tmp_path, ZeroDivisionError("by nothing"))
    assert capsys.readouterr().err.startswith("ZeroDivisionError: by nothing (")
    assert "Traceback" in next(tmp_path.rglob("error.txt")).read_text()


def test_a_sweep_goes_on_after_an_illegal_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_module, "in_sweep", lambda: True)
    opened(tmp_path, Incompatible("no fit"))
    opened(tmp_path, Incompatible("no fit"))
    [row] = read(next(tmp_path.rglob("rows.jsonl")))
    assert row["status"] == "illegal"
    with pytest.raises(UserError, match="no file"):  # which the sweep's end raises again
        opened(tmp_path, UserError("no file"), seed=1)


def test_a_finished_cell_is_skipped_until_something_more_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not opened(tmp_path, None).skipped
    assert opened(tmp_path, None).skipped
    assert "is finished" in capsys.readouterr().out
    assert not opened(tmp_path, None, compare=["random"]).skipped
    again = opened(tmp_path, None, resume=False)
    assert not again.skipped and not again.rows.path.exists()


def test_the_configuration_is_kept(tmp_path: Path) -> None:
    cell = opened(tmp_path, None)
    stored = OmegaConf.to_container(OmegaConf.load(cell.path / "config.yaml"))
    assert json.loads(json.dumps(stored)) == json.loads(json.dumps(cell.config))


def test_starting_over_leaves_a_running_cell_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Cell(parts_of.config(tmp_path))
    first.start()
    (first.path / "rows.jsonl").write_text("precious\n")
    with pytest.raises(SystemExit):
        opened(tmp_path, None, resume=False)
    assert "another run is working" in capsys.readouterr().err
    assert sorted(file.name for file in first.path.iterdir()) == ["config.yaml", "rows.jsonl"]
    assert (first.path / "rows.jsonl").read_text() == "precious\n"


def test_the_lock_survives_starting_over(tmp_path: Path) -> None:
    """The folder is emptied while the cell is taken: a third run must still be kept out."""
    second = Cell(parts_of.config(tmp_path, resume=False))
    (second.path / "decisions").mkdir(parents=True)
    second.start()
    assert not (second.path / "decisions").exists()
    with pytest.raises(UserError, match="another run is working"):
        Cell(parts_of.config(tmp_path)).start()


def test_a_lock_file_deleted_under_a_run_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it somebody deletes it: locking what nobody else will find is no lock."""
    first, second, lock, gone = *(Cell(parts_of.config(tmp_path)) for _ in range(2)), fcntl.flock, list[None]()

    def deleted_first(handle: int, flags: int) -> None:
        if not gone:
            gone.append(Path(first.lock.lock_file).unlink())
        lock(handle, flags)

    monkeypatch.setattr(fcntl, "flock", deleted_first)
    first.start()
    assert gone
    with pytest.raises(UserError, match="another run is working"):
        second.start()
    first.stop()
    second.start()


def test_rows_are_read_when_nobody_else_writes_them(tmp_path: Path) -> None:
    """A run that waited its turn at the prompt must not write back the rows of before."""
    late = Cell(parts_of.config(tmp_path))
    early = opened(tmp_path, None)
    early.rows.append({"graph": "x", "status": "ok"})
    late.start()
    assert [row["graph"] for row in late.rows.rows] == ["x"]


def test_what_another_run_finished_meanwhile_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Cell(parts_of.config(tmp_path))
    opened(tmp_path, None)
    late.start()
    assert late.skipped


@pytest.mark.parametrize(
    "said", ["[]", "[1, 2]", "null", "7", '{"request": 3}', '{"files": []}', "{", "\x00\x93", "[" * 9999]
)
def test_a_damaged_marker_says_nothing(tmp_path: Path, said: str) -> None:
    cell = opened(tmp_path, None)
    marker = cell.path / "finished.json"
    assert Cell(cell.config).finished
    whole = json.loads(marker.read_text())
    marker.write_text(said)
    assert not Cell(cell.config).finished
    for files in (["rows.jsonl"], {"rows.jsonl": "1"}, {"rows.jsonl": 1}, {"\x00": 1}):
        marker.write_text(json.dumps({**whole, "files": files}))
        assert not Cell(cell.config).finished


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s").write_text("a file where the study's folder should be")
    with pytest.raises(SystemExit) as ended:
        opened(tmp_path, None)
    err = capsys.readouterr().err
    assert ended.value.code == 1 and err.startswith("cannot write") and err.count("\n") == 1
