"""The command: what it prints, how it ends, and that it goes on after a kill."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import command as run_py

from graphopt import CONF
from graphopt.core.cli import composed, for_each_job
from graphopt.run.cell import config_hash, folder_name
from graphopt.run.records.rows import Row, read

ROOT = CONF.parent
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs run.py in this process; returns (exit code, stdout, stderr). Results go to tmp_path/outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        sweep, rest = words[:1] == ("-m",), [word for word in words if word != "-m"]
        return run_py(tmp_path / "outputs", *rest, sweep=sweep)[:3]

    return call


def rows_below(place: Path) -> list[Row]:
    return [row for file in sorted(place.rglob("rows.jsonl")) for row in read(file)]


def onnx_file(place: Path, content: str) -> str:
    path = place / "model.onnx"
    if content == "malformed":
        path.write_bytes(b"this is no protobuf")
    else:
        import onnx
        from onnx import TensorProto, helper

        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
        first = helper.make_node("Add", ["x", "b"], ["a"])
        last = helper.make_node("Neg", ["b"], ["y"])
        nodes = {"empty": [], "cyclic": [first, helper.make_node("Relu", ["a"], ["b"]), last]}[content]
        outputs = [y] if nodes else [x]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], outputs)), path)
    return str(path)


SMALL = ["dataset=synthetic", "dataset.families=[layered]", "dataset.ops=30", "dataset.test=2", "budget.evals=2"]
USAGE = [
    (["algo=local", "algo.typo=1"], "algo.typo does not exist; keys of algo=local: start, hops"),
    (["algo=local", "+algo.typo=1"], "algo.typo does not exist; keys of algo=local: start, hops"),
    (["algo=local", "+trainer.typo=1"], "trainer.typo does not exist; keys of trainer=default: steps"),
    (["+typo=1"], "typo does not exist; keys: study"),
    (["typo=1"], "typo does not exist; keys: dataset"),
    (["seed=abc"], "seed=abc must be a whole number"),
    (["algo=local", "algo.hops=far"], "algo.hops=far must be a whole number"),
    (["algo=["], "cannot read 'algo=['"),
    (["buget.evals=20"], "buget does not exist (did you mean budget?); keys: dataset"),
    (["budget.evls=20"], "budget.evls does not exist (did you mean evals?); keys of budget: evals, seconds"),
    (["budget=20"], "budget has keys of its own, budget.evals=..., budget.seconds=..."),
    (["compare=local"], "compare=local must be a list, such as compare=[a,b]"),
    (["seed=-1"], "seed=-1 must be from 0 to"),
    (["study="], "study= needs a name"),
]
WRONG = [
    (["task=nothing", "algo=local"], "task=nothing does not exist"),
    (["algo=locla"], "algo=locla does not exist (did you mean local?); available: annealing"),
    (["algo=local", "compare=[scna]"], "algo=scna does not exist (did you mean scan?); available: annealing"),
    (["dataset=model.onnx"], "say dataset=onnx dataset.path=model.onnx"),
    (["algo=local", "dataset=onnx", "dataset.path=/nowhere.onnx"], "/nowhere.onnx"),
    (["algo=local", "output_dir=/proc/nothing"], "/proc/nothing: No such file or directory; choose another place"),
    (["algo=local", "output_dir=/dev/null/nothing"], "/dev/null/nothing: Not a directory; choose another place"),
    (["task=placement", "algo=xla_priority"], "Algorithms for placement: annealing"),
    (["algo=local", "dataset=onnx", "compare=[nothing]"], "algo=nothing does not exist; available: annealing"),
]


@pytest.mark.parametrize(("words", "sentence", "code"), [(*c, 2) for c in USAGE[::2]] + [(*c, 1) for c in WRONG[::2]])
def test_one_sentence_and_an_exit_code(command: Command, words: list[str], sentence: str, code: int) -> None:
    ended, _, err = command(*words)
    assert ended == code and sentence in err and err.count("\n") == 1, err


@pytest.mark.parametrize("content", ["empty", "cyclic", "malformed"])
def test_files_that_are_no_graphs(command: Command, tmp_path: Path, content: str) -> None:
    code, _, err = command("algo=local", "dataset=onnx", f"dataset.path={onnx_file(tmp_path, content)}")
    assert code == 1 and "model" in err and err.count("\n") == 1 and "unexpected" not in err.lower(), err
    assert rows_below(tmp_path)[0]["reason"] == err.strip()


def test_a_traceback_when_asked_for(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_TRACEBACK", "1")
    with pytest.raises(Exception, match="Could not find 'task/nothing'"):
        command("task=nothing")


def test_help_names_every_option_and_imports_nothing_heavy() -> None:
    words = [sys.executable, "-X", "importtime", "run.py", "--help"]
    narrow = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, env=narrow)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    for path in CONF.glob("*/*.yaml"):
        assert path.parent.name == "experiment" or path.stem in done.stdout
    imported = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "hydra" in imported and not imported & {"torch", "numba", "numpy", "scipy", "onnx", "matplotlib", "rich"}


def test_an_unknown_key_of_one_algorithm_is_a_failed_row(command: Command, tmp_path: Path) -> None:
    """The others are solved; where all lack the key, nothing begins."""
    code, _, err = command("-m", "algo=local,brkga", "algo.evolution.elites=0.3", *SMALL)
    assert code == 1 and "algo.evolution does not exist; keys of algo=local: start, hops" in err
    rows = rows_below(tmp_path)
    assert [(row["algo"], row["status"]) for row in rows if row["algo"] == "local"] == [("local", "failed")]
    assert [row["status"] for row in rows if row["algo"] == "brkga"] == ["ok", "ok"]
    code, _, err = command("-m", "algo=local,scan", "algo.evolution.elites=0.3", "study=none", *SMALL)
    assert code == 2 and "algo.evolution does not exist" in err and not list(tmp_path.rglob("none/*/rows.jsonl"))


def test_words_inside_a_group_are_a_choice_of_one_in_sweeps() -> None:
    words = ["-m", "algo=local,scan", "algo.hops=2", "algo.x=1,2", "seed=0", "dataset.ops=[1,2]", "algo.y=["]
    assert for_each_job(words) == ["-m", "algo=local,scan", "algo.hops=choice(2)", "algo.x=1,2", "seed=0",
                                   "dataset.ops=choice([1,2])", "algo.y=["]  # fmt: skip
    assert for_each_job(words[1:]) == words[1:] and for_each_job(["-m", "+algo.z=1"]) == ["-m", "+algo.z=1"]


def test_an_experiments_own_algorithm_is_a_choice_of_one() -> None:
    """Also of the experiment that it extends; other names stay, so that a typo is named."""
    for name, known in (("regal_table1", True), ("regal_runtime", True), ("quick", False), ("nowhere", False)):
        words = [f"experiment={name}", "algo=brkga_seeded"]
        assert for_each_job(words) == [words[0], "algo=choice(brkga_seeded)" if known else words[1]]


def test_the_encoder_is_named_where_something_reads_it(command: Command, tmp_path: Path) -> None:
    assert command("-m", "algo=local", "encoder=gin,gat", *SMALL)[0] == 0
    assert len(list(tmp_path.rglob("fusion-local-synthetic-*/rows.jsonl"))) == 1
    assert {row["encoder"] for row in rows_below(tmp_path)} == {None} and len(rows_below(tmp_path)) == 2
    config = composed(["algo=go", "encoder=gin"])
    assert folder_name(config, "x") == "fusion-go-gin-zoo-gpu2-simulator-s0-x"
    assert config_hash(config) != config_hash({**config, "encoder": {**config["encoder"], "width": 8}})


def test_a_sweep_writes_every_cell_and_skips_it_next_time(command: Command, tmp_path: Path) -> None:
    words = ["-m", "task=fusion,placement", "algo=xla_priority,random", "seed=0,1", *SMALL]
    code, out, err = command(*words)
    assert code == 0, err
    rows = rows_below(tmp_path)
    illegal = [row for row in rows if row["status"] == "illegal"]
    assert len(rows) == 6 * 2 + 2 and len({row["graph_hash"] for row in rows if row["status"] == "ok"}) == 2
    assert [(row["task"], row["algo"]) for row in illegal] == [("placement", "xla_priority")] * 2
    assert out.count("geometric mean of initial / judged") == 6 and "xla_priority" in out.split("rows")[-1]
    code, out, _ = command(*words)
    assert code == 0 and out.count("is finished") == 6 and rows_below(tmp_path) == rows


def test_a_sweep_goes_on_after_a_failed_cell(command: Command, tmp_path: Path) -> None:
    code, _, err = command("-m", "algo=default", *SMALL, "dataset.test=0,2")
    assert code == 1 and "no graphs in split 'test'" in err.splitlines()[-1]
    assert {row["status"] for row in rows_below(tmp_path)} == {"failed", "ok"}


def test_classical_cells_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from graphopt.run.config import build, compatibility;"
        "from graphopt.run import cell, evaluate, loggers, sweep;"
        "from graphopt.report import command, decision; from graphopt.run.records import rows;"
        "from graphopt.core.utils.registry import option; from graphopt.run.config.construct import target_of;"
        f"[target_of(option('algo', a), 'algo') for a in {json.dumps(['default', 'local', 'random', 'scan'])}];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_fix_that_open_dimensions_ask_for_works(command: Command, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in "xy")
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), tmp_path / "model.onnx")
    words = ["dataset=onnx", "dataset.path=model.onnx", "algo=local", "budget.evals=2", "logger=none"]
    code, _, err = command(*words)
    assert code == 1
    assert command(*words, err.split("for example '")[1].split("'")[0])[0] == 0
