"""Rows and decision files that are damaged: kills, full disks, fields of other types, sizes and ranges."""

import io
import json
import math
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_files import answer

from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.graphs.readers.formats.graph_files import load_graph
from graphopt.report import decision
from graphopt.report.command import main as report
from graphopt.report.tables.read_rows import read_rows
from graphopt.run.records import rows as rows_module
from graphopt.run.records.rows import RowFile, key_of, parse, read

# --- rows.jsonl survives kills and full disks.


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_and_an_unwritable_place_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .* output_dir=.*"):
        RowFile(tmp_path / "file" / "rows.jsonl").append(row("x"))
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
    write = rows_module._append

    def half(path: Path, text: str) -> None:
        write(path, text[:20])
        raise UserError("full")

    monkeypatch.setattr(rows_module, "_append", half)
    with pytest.raises(UserError):
        rows.append(row("y"))
    monkeypatch.setattr(rows_module, "_append", write)
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


# --- Decision files whose fields are of other types, sizes and ranges: one sentence each, and the others still
# replay.

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]) -> Path:
    """The file with its header and arrays changed, checked by nobody."""
    arrays = arrays_of(path)
    header = json.loads(arrays["header"].tobytes())
    said = change(header, arrays)
    arrays["header"] = np.frombuffer(json.dumps(header if said is None else said).encode(), np.uint8)
    np.savez_compressed(path, **arrays)
    return path


def header(*place: Any, to: Any) -> Callable[[dict[str, Any], Any], None]:
    def change(said: dict[str, Any], _: Any) -> None:
        for key in place[:-1]:
            said = said[key]
        said[place[-1]] = to

    return change


def array(name: str, make: Callable[[np.ndarray], Any]) -> Callable[[Any, dict[str, np.ndarray]], None]:
    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        made = make(arrays[name]) if name in arrays else make(np.zeros(0))
        arrays.pop(name, None) if made is None else arrays.update({name: made})

    return change


def text(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


DAMAGE: dict[str, Callable[[Any, Any], Any]] = {
    "a list": lambda *_: [1, 2],
    "heads no list": header("heads", to="device"),
    "heads twice": header("heads", to=[["d", 2], ["d", 2]]),
    "no heads": header("heads", to=[]),
    "huge heads": header("heads", to=[["device", 10**12]]),
    "other heads": header("heads", to=[["device", 3]]),
    "hash a path": header("graph", "hash", to="../../etc/passwd"),
    "hash a number": header("graph", "hash", to=7),
    "ops negative": header("graph", "ops", to=-1),
    "ops others": header("graph", "ops", to=6),
    "prices a list": header("prices", to=[1]),
    "a price no number": header("prices", "judged", to=float("nan")),
    "a huge price": header("prices", "judged", to=10**400),
    "noise for all": header("prices", "noise", to=1e9),
    "described a number": header("described", to=3),
    "described others": header("described", to=["x"]),
    "format a list": header("format", to=[1]),
    "edits numbers": header("edits", to=[1]),
    "machine a text": header("config", "machine", to="gpu2"),
    "machine of many": header("config", "machine", "devices", "gpu", "count", to=10**9),
    "links a text": header("config", "machine", "link_bandwidth", to="x"),
    "task of others": header("config", "task", "max_ops", to=[1]),
    "many threads": header("config", "cost", "threads", to=10**9),
    "float choices": array("choices", lambda a: a.astype(float)),
    "far choices": array("choices", lambda a: a + 5),
    "few choices": array("choices", lambda a: a[:-1]),
    "far default": array("default", lambda a: a + 2),
    "names no texts": array("op_names", lambda a: text([1, 2, 3, 4, 5])),
    "names twice": array("op_names", lambda a: text(["a"] * 5)),
    "names no json": array("op_names", lambda a: a[:-3]),
    "trace flat": array("trace", lambda a: a.ravel()),
    "trace no numbers": array("trace", lambda a: a * np.nan),
    "plan of one part": array("plan_device", lambda a: np.zeros(5, np.int16)),
    "deep header": lambda *_: json.loads("[" * 500 + "]" * 500),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_is_one_sentence_and_the_others_replay(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = answer(tmp_path)
    bad = rewritten(Path(shutil.copy(good, good.with_name("bad.npz"))), DAMAGE[damage])
    if damage == "noise for all":  # what is computed has none: a wrong price is found whatever the file says
        rewritten(bad, header("prices", "judged", to=1.0))
    else:
        assert decision.main(["bisect", str(bad)]) == 1
        said = capsys.readouterr().err
        assert "bad.npz" in said and said.count("\n") == 1 and len(said) < 1000, said
    assert report([str(tmp_path), "--replay"]) == 1
    said = capsys.readouterr().out
    assert "bad.npz: " in said and "1 of 2 decisions replay" in said


def test_a_header_that_unpacks_to_more_than_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = answer(tmp_path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        big = io.BytesIO()
        np.save(big, np.zeros(300 * 2**20, np.uint8))
        file.writestr("more.npy", big.getvalue())
    assert path.stat().st_size < 2**20
    assert decision.main(["show", str(path)]) == 1
    assert "holds more than 256 MiB" in capsys.readouterr().err


def test_replay_leaves_the_study_as_it_is(tmp_path: Path) -> None:
    answer(tmp_path)
    (tmp_path / "table.md").write_text("mine")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert report([str(tmp_path), "--replay"]) == 0
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert report([str(tmp_path), "--replay", "--markdown", str(tmp_path / "asked.md")]) == 0
    assert (tmp_path / "asked.md").is_file() and (tmp_path / "table.md").read_text() == "mine"


def test_a_row_opens_nothing_outside_its_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = tmp_path / "outside.npz"
    shutil.copy(answer(tmp_path / "study"), outside)
    rows = tmp_path / "study" / "cell" / "rows.jsonl"
    row = json.loads(rows.read_text())
    for place in (str(outside), "../../outside.npz"):
        rows.write_text(json.dumps(row | {"decision": place}) + "\n")
        assert report([str(tmp_path / "study"), "--replay"]) == 1
        assert "no decision file" in capsys.readouterr().out


def test_no_name_of_a_file_reaches_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = answer(tmp_path)
    places = [("graph", "name"), ("graph", "family"), ("row", "algo"), ("row", "machine"), ("versions", "python")]
    for place in places:
        rewritten(path, header(*place, to=ESCAPE))
    rewritten(path, header("edits", to=[ESCAPE]))
    rewritten(path, header("config", "machine", "name", to=ESCAPE))
    rewritten(path, array("op_names", lambda a: text([f"{ESCAPE}{i}" for i in range(5)])))
    rows = tmp_path / "cell" / "rows.jsonl"
    names = dict.fromkeys(("graph", "family", "algo", "dataset", "machine", "study", "task"), ESCAPE)
    rows.write_text(json.dumps(json.loads(rows.read_text()) | names) + "\n")
    for command in ("show", "replay", "bisect"):
        assert decision.main([command, str(path)]) == 0
    assert decision.main(["diff", str(path), str(path)]) == 0
    assert decision.main(["veto", str(path), f"{ESCAPE}9", "-o", str(tmp_path / "b.npz")]) == 1
    rewritten(path, header("format", to=ESCAPE))
    assert decision.main(["show", str(path)]) == 1
    report([str(tmp_path), "--replay"])
    shown = capsys.readouterr()
    assert "\\x1b" in shown.out and "\\x1b" in shown.err
    for character in ESCAPE:
        if not character.isprintable():
            assert character not in shown.out + shown.err


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("input_tensor", lambda a: a + 10**6), ("input_tensor", lambda a: a - 2), ("kind", lambda a: a + 10**4),
        ("kind", lambda a: -a - 1), ("dtype", lambda a: a + 100), ("producer", lambda a: a - 5),
        ("input_ptr", lambda a: a[::-1]), ("shape_ptr", lambda a: a + 1), ("shape", lambda a: -a),
        ("tensor_bytes", lambda a: a.astype(float)), ("flops", lambda a: a * np.nan), ("flops", lambda a: a[:, None]),
        ("texts", lambda a: text([1])), ("texts", lambda a: text({"format": 1})), ("texts", lambda a: a[:-5]),
        ("texts", lambda a: text({"format": 1, "name": 3, "family": "f", "hash": "h", "op_names": []})),
        ("kind", lambda a: None),
    ],
)  # fmt: skip
def test_graph_files_with_other_contents_are_one_sentence(tmp_path: Path, name: str, make: Any) -> None:
    answer(tmp_path)
    (path,) = (tmp_path / "graphs").iterdir()
    arrays = arrays_of(path)
    made = make(arrays[name])
    arrays.pop(name) if made is None else arrays.update({name: made})
    np.savez_compressed(path, **arrays)
    with pytest.raises(GraphError, match="is damaged") as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)


def test_a_row_is_plain_json_without_nan(tmp_path: Path) -> None:
    """An infinite price is null in the file, and read as infinite; NaN is not written, and not read."""
    path = tmp_path / "rows.jsonl"
    infinite = {**row("x"), "status": "infeasible", "judged": math.inf, "trace": [[0, 0.0, math.inf]]}
    rows = RowFile(path)
    rows.append(infinite)
    with pytest.raises(ValueError, match=r"trace\[0\]\[2\] is no number"):
        rows.append({**row("x"), "graph_hash": "other", "trace": [[0, 0.0, math.nan]]})
    (line,) = path.read_text().splitlines()
    assert "Infinity" not in line and "NaN" not in line and json.loads(line)["judged"] is None
    assert read(path) == [infinite] and read_rows([path])[0] == [{**infinite, "_file": str(path)}]
    old = line.replace('"judged": null', '"judged": Infinity')
    assert parse(old) == infinite
    assert parse(old.replace("Infinity", "NaN")) is None
    path.write_text(old.replace("Infinity", "NaN") + "\n")
    assert read_rows([path]) == ([], 1)
