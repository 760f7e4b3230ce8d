"""rows.jsonl survives kills and full disks."""

import json
from pathlib import Path

import pytest

from graphopt.errors import UserError
from graphopt.records import rows as rows_module
from graphopt.records.rows import RowFile, key_of, read


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


@pytest.mark.parametrize(
    "line",
    [
        *(b"[1, 2]", b"null", b'"ok"', b"\xff\xfe\x00\x93NUMPY", b"[" * 100_000),
        b'{"status": "ok", "seed": [1], "graph_hash": {"a": 1}}',
        b'{"status": "ok", "judged": "fast"}',
        b'{"status": "ok", "judged": true}',
        b'{"status": "ok", "trace": [1, 2]}',
        b'{"status": "ok", "trace": [["a"]]}',
        b'{"status": ["ok"]}',
    ],
)
def test_lines_that_are_no_rows_are_named_and_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(row("x")).encode() + b"\n" + line + b"\n" + json.dumps(row("y")).encode() + b"\n")
    with pytest.warns(UserWarning, match="1 lines are no rows"):
        rows = RowFile(path)
    assert [r["graph"] for r in rows.rows] == ["x", "y"] and list(rows.done) == [key_of(row("x")), key_of(row("y"))]
    rows.append(row("z"))
    assert [json.loads(text)["graph"] for text in path.read_text().splitlines()] == ["x", "y", "z"]


def test_a_row_does_not_follow_half_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk took half a row; there is room again, and the same process writes the next."""
    rows = RowFile(tmp_path / "rows.jsonl")
    rows.append(row("x"))
    write = rows_module._write

    def half(path: Path, mode: str, text: str) -> None:
        write(path, mode, text[:20])
        raise UserError("full")

    monkeypatch.setattr(rows_module, "_write", half)
    with pytest.raises(UserError):
        rows.append(row("y"))
    monkeypatch.setattr(rows_module, "_write", write)
    rows.append(row("z"))
    assert [json.loads(text)["graph"] for text in rows.path.read_text().splitlines()] == ["x", "z"]


def test_a_row_made_anew_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "rows.jsonl")
    rows.append(row("x", reason="old"))
    rows.append(row("y", "failed", "why"))
    rows.append(row("x", reason="new"))
    assert [r["reason"] for r in read(rows.path)] == ["why", "new"] == [r["reason"] for r in rows.rows]


def test_rows_set_aside_are_kept_beside(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "rows.jsonl")
    for graph in "xyz":
        rows.append(row(graph))
    assert rows.set_aside("aside.jsonl", lambda r: r["graph"] != "y") == 2
    assert [r["graph"] for r in read(rows.path)] == ["y"] == [r["graph"] for r in rows.done.values()]
    assert [r["graph"] for r in read(tmp_path / "aside.jsonl")] == ["x", "z"]
