"""One sweep started from several places divides its cells; what a killed one leaves, another one does."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import frame_parts as parts_of
import pytest
from filelock import FileLock

from graphopt import CONF
from graphopt.core.errors import UserError
from graphopt.report.status import main as status
from graphopt.report.status import states_of
from graphopt.run.cell import Cell
from graphopt.run.records.rows import RowFile, key_of
from graphopt.run.sharing import held, keep_jobs

WHAT = ("dataset=synthetic", "task=fusion", "algo=local,scan", "budget.evals=[300]", "seed=0,1,2")
CELLS = 6


def started(folder: Path, log: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(CONF.parent / "run.py"), "-m", *WHAT, "study=shared", f"output_dir={folder}"]
    with (folder / log).open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True, cwd=folder)


def test_three_sharers_of_which_one_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No cell is lost, none is done twice; each of the others prints the whole table and ends with 0."""
    sharers = [started(tmp_path, f"{i}.log") for i in range(3)]
    study, deadline = tmp_path / "shared", time.monotonic() + 240
    while time.monotonic() < deadline and not any(study.glob("*/rows.jsonl")):
        time.sleep(0.05)
    os.kill(sharers[0].pid, signal.SIGKILL)
    codes = [sharer.wait(240) for sharer in sharers]
    assert codes[1:] == [0, 0]
    texts = [(tmp_path / f"{i}.log").read_text() for i in range(3)]
    assert all("shared: fusion on gpu2" in text and "scan" in text for text in texts[1:])
    rows = [row for file in study.glob("*/rows.jsonl") for row in RowFile(file).rows]
    assert len({key_of(row) for row in rows}) == len(rows) and len({row["cell"] for row in rows}) == CELLS
    assert [one.state for one in states_of(study)] == ["done"] * CELLS
    assert status([str(study)]) == 0
    assert f"{CELLS} of {CELLS} cells done" in capsys.readouterr().out


def test_status_names_what_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [Cell(parts_of.config(tmp_path, seed=seed)) for seed in range(3)]
    for cell in cells:
        cell.start()
    cells[0].finish()
    cells[1].note("failed", "no room on the disk")
    for cell in cells[:2]:
        cell.stop()
    study = cells[0].study_path
    keep_jobs(study, [["seed=0"], ["seed=1"]])
    keep_jobs(study, [["seed=1"], ["seed=2"], ["seed=3"]])
    assert status([str(study)]) == 0
    text = capsys.readouterr().out
    assert "1 of 4 cells done, 1 running, 1 failed, 1 not begun" in text and "no room on the disk" in text
    assert f"process {os.getpid()} on" in text and "25 %" in text
    cells[2].stop()
    assert sorted(one.state for one in states_of(study)) == ["done", "failed", "stopped"]
    with pytest.raises(UserError, match="is no folder of a study"):
        states_of(tmp_path / "nothing")


def test_a_lock_is_held_while_it_is(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"):
        assert held(str(tmp_path / "lock"))
    assert not held(str(tmp_path / "lock"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_without_locks_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(self: FileLock) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FileLock, "_acquire", refused)
    with pytest.raises(UserError, match=r"cannot be locked .* on a file system with locks"):
        Cell(parts_of.config(tmp_path)).start()


def test_other_errors_of_a_lock_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: FileLock) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(FileLock, "_acquire", refused)
    with pytest.raises(UserError, match="Read-only"):
        Cell(parts_of.config(tmp_path)).start()
