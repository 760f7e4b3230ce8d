"""rows.jsonl survives kills and full disks."""

import json
from pathlib import Path

import pytest

from graphopt.errors import UserError
from graphopt.rows import RowFile, key_of, read


def row(graph: str, status: str = "ok", reason: str = "") -> dict[str, object]:
    return {"graph": graph, "graph_hash": graph, "algo": "a", "seed": 0, "status": status, "reason": reason}


def test_a_cut_line_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row("x")) + "\n" + json.dumps(row("y"))[:17])
    rows = RowFile(path)
    assert list(rows.done) == [key_of(row("x"))]
    rows.append(row("y"))
    assert [json.loads(line)["graph"] for line in path.read_text().splitlines()] == ["x", "y"]


def test_failed_rows_are_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = RowFile(path)
    first.append(row("x"))
    first.append(row("y", "failed", "why"))
    again = RowFile(path)
    assert list(again.done) == [key_of(row("x"))]
    assert len(read(path)) == 2  # nothing is lost before something new is there
    again.append(row("y"))
    assert [(r["graph"], r["status"]) for r in read(path)] == [("x", "ok"), ("y", "ok")]


def test_the_same_note_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for reason in ("one", "one", "two"):
        RowFile(path).note(row("", "illegal", reason))
    assert [r["reason"] for r in read(path)] == ["two"]


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .* output_dir=.*"):
        RowFile(tmp_path / "file" / "rows.jsonl").append(row("x"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").symlink_to("/dev/full")
    rows = RowFile(tmp_path / "nothing")
    rows.path = tmp_path / "rows.jsonl"
    rows._clean = True
    with pytest.raises(UserError, match="No space left on device"):
        rows.append(row("x"))
