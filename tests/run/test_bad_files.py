"""One bad file among several costs its own row; a bad file alone is a sentence and exit code 1."""

from pathlib import Path

import onnx
import pytest
from commands import command
from onnx import TensorProto, helper

from graphopt.datasets.files import GraphFiles, find_files

STG = "  3\n 0 0 0\n 1 5 1 0\n 2 7 1 0\n 3 2 2 1 2\n 4 0 1 3\n"
MODEL, TASKS = ("onnx", "model.onnx"), ("files", "tasks.stg")


def put(folder: Path, name: str) -> Path:
    """A good file of the kind that its name says."""
    folder.mkdir(exist_ok=True)
    if name.endswith(".stg"):
        (folder / name).write_text(STG)
    else:
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
        nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), folder / name)
    return folder


@pytest.mark.parametrize(("dataset", "name"), [MODEL, TASKS])
def test_a_bad_file_in_a_folder_is_a_failed_row_and_the_others_are_solved(
    tmp_path: Path, dataset: str, name: str
) -> None:
    folder = put(tmp_path / "in", name)
    (folder / f"broken{Path(name).suffix}").write_text("no such thing")
    words = (f"dataset={dataset}", f"dataset.path={folder}", "task=scheduling", "algo=local", "budget.evals=5")
    for _ in range(2):  # what failed is tried again, what is done is not
        answer = command(tmp_path / "out", *words)
        assert answer.code == 1 and "1 rows failed" in answer.err and "Traceback" not in answer.err
        assert Path(name).stem in answer.out and "stored in" in answer.out  # the good one's results all the same
        outcome = {Path(r["graph"]).stem: r["status"] for r in answer.rows}
        assert outcome == {"broken": "failed", Path(name).stem: "ok"} and len(answer.rows) == 2
        assert next(r["reason"] for r in answer.rows if r["status"] == "failed").count("broken") == 1
    (folder / f"broken{Path(name).suffix}").unlink()
    assert command(tmp_path / "out", *words).code == 0


@pytest.mark.parametrize(("dataset", "name"), [MODEL, TASKS])
def test_a_bad_file_alone_is_a_sentence(tmp_path: Path, dataset: str, name: str) -> None:
    (tmp_path / name).write_text("no such thing")
    answer = command(tmp_path / "out", f"dataset={dataset}", f"dataset.path={tmp_path / name}", "algo=local")
    assert answer.code == 1 and answer.err.count("\n") == 1 and name in answer.err


def test_files_that_were_left_out_are_named_by_split_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "in", "good.stg")
    for name in ("bad1.stg", "bad2.stg"):
        (folder / name).write_text("0")
    data, seen = GraphFiles(name="files", path=str(folder), train=["bad1"], val=[]), list[Path]()
    read = data.read
    monkeypatch.setattr(data, "read", lambda file: (seen.append(file), read(file))[1])
    with pytest.warns(UserWarning, match="left out: .*bad1"):
        assert data.graphs("train") == []
    with pytest.warns(UserWarning, match="left out: .*bad2"):
        assert [Path(n).stem for n in data.unread("test")] == ["bad2"]
    assert [g.name for g in data.graphs("test")] == ["good"]
    assert [Path(n).stem for n in data.unread("train")] == ["bad1"] and data.unread("val") == {}
    assert sorted(seen) == find_files(str(folder), ("*.stg",))
