"""Kills, signals, full disks, bad files, plans that do not fit: a sentence, and nothing lost."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import command
from onnx import TensorProto, helper

from graphopt.core.fusible import view_inline
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.graphs.files import GraphFiles, find_files
from graphopt.graphs.layered import layered_graph
from graphopt.problems.cost_model import amount, lack_of_memory

# --- Runs that are killed, or whose disk is full, and begun again: nothing is lost, and what they leave is what an
# undisturbed run leaves (`tests/kills/`, which has more).

TOP = Path(__file__).resolve().parents[2]


def through(*words: str) -> dict[str, Any]:
    """What the command counts, in a process of its own: it forks."""
    command = [sys.executable, "-m", "tests.kills", *words]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted


@pytest.mark.parametrize(
    ("study", "kills", "every"),
    [
        ("search", 2, 40),
        pytest.param("learner", 2, 60, marks=pytest.mark.slow),
        pytest.param("profiled", 3, 40, marks=pytest.mark.slow),
    ],
)
def test_killed_runs_and_full_disks_end_with_the_same_rows(study: str, kills: int, every: int) -> None:
    found = through("--study", study, "--kills", str(kills), "--full-every", str(every), "--seed", "1")
    assert found["kills"]["kills"] == kills and found["kills"]["rows"] > 0 and found["full"]["disks"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("study", ["search", "learner", "profiled"])
def test_twenty_kills_and_a_full_disk_at_every_write(study: str) -> None:
    found = through("--study", study, "--kills", "20", "--full-every", "1")
    assert found["kills"]["kills"] == 20 and found["full"]["disks"] > 20


# --- SIGTERM ends a command as Ctrl-C does: one sentence, nothing half written.

ROOT = Path(__file__).resolve().parents[2]
SOLVE = [  # little to compile and to compute until the first answer; the second search would take hours
    "dataset=synthetic", "dataset.families=[layered]",
    "dataset.ops=[20]", "dataset.train=1", "dataset.val=1", "dataset.test=1",
    "task=scheduling", "budget.evals=[5,1000000000]", "compare=[]",
]  # fmt: skip
TRAIN = ["algo=go", "trainer.steps=100000", "trainer.save_every=1"]


def wait_for(ready: "subprocess.Popen[str]", place: Path, pattern: str) -> None:
    """As long as it takes: how fast a busy machine compiles is nothing that a test should know."""
    while not list(place.rglob(pattern)):
        assert ready.poll() is None, ready.communicate()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["terminated", "interrupted"]
)
@pytest.mark.parametrize(
    ("words", "begun"),
    [(["algo=annealing"], "decisions/[!.]*.npz"), pytest.param(TRAIN, "last.ckpt", marks=pytest.mark.slow)],
    ids=["search", "training"],
)
def test_a_signal_is_one_sentence(tmp_path: Path, number: int, code: int, words: list[str], begun: str) -> None:
    command = [sys.executable, "run.py", *SOLVE, *words, f"output_dir={tmp_path}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)
    try:
        wait_for(run, tmp_path, begun)
        run.send_signal(number)
        _, said = run.communicate()
    finally:
        run.kill()
    assert run.returncode == code
    assert said.splitlines()[-1] == "interrupted; the same command goes on where it stopped"
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.part*"))


# --- One bad file among several costs its own row; a bad file alone is a sentence and exit code 1.

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
        assert answer.code == 1 and "one row failed" in answer.err and "Traceback" not in answer.err
        assert Path(name).stem in answer.out and "stored in" in answer.out  # the good one's results all the same
        outcome = {Path(r["graph"]).stem: r["status"] for r in answer.rows}
        assert outcome == {"broken": "failed", Path(name).stem: "ok"} and len(answer.rows) == 2
        assert next(r["reason"] for r in answer.rows if r["status"] == "failed").count("broken") == 1
    (folder / f"broken{Path(name).suffix}").unlink()
    assert command(tmp_path / "out", *words).code == 0


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


# --- What a user hears when nothing fits into memory: how much is lacking where, what to do, exit code 1, and no nan.

SMALL = ["dataset=synthetic", "dataset.families=[layered]", "dataset.ops=30", "dataset.test=1", "budget.evals=5"]
TIGHT = [*SMALL, "algo=local", "logger=none"]


def test_nothing_fits_is_a_sentence_and_exit_code_1(tmp_path: Path) -> None:
    words = [*TIGHT, "machine.devices.gpu.capacity=1000"]
    answer = command(tmp_path, *words)
    assert answer.code == 1
    (row,) = answer.rows
    assert row["status"] == "infeasible" and row["reason"] in answer.err
    assert re.search(r"gpu0 needs [\d.]+ [kM]B, [\d.]+ [kM]B more than its 1 kB", answer.err)
    assert "machine.devices.NAME.capacity=BYTES" in answer.err and "task=placement" in answer.err
    assert not re.search(r"\b(nan|inf)\b", answer.out + answer.err)
    again = command(tmp_path, *words)  # nothing is solved twice, and nothing is forgotten
    assert again.code == 1 and row["reason"] in again.err and again.rows == [row]


def test_some_fit(tmp_path: Path) -> None:
    """A default over capacity and a search that finds what fits are a result without a ratio."""
    words = [*TIGHT, "task=placement", "machine.devices.gpu.capacity=%d"]
    needed = command(tmp_path / "free", *TIGHT, "task=placement", "cost.objective=peak_memory",
                     "judge.objective=peak_memory").rows[0]["initial"]  # fmt: skip
    words = [*TIGHT, "task=placement", "budget.evals=400", "compare=[default]",
             f"machine.devices.gpu.capacity={int(0.97 * needed)}"]  # fmt: skip
    answer = command(tmp_path, *words)
    found = {row["algo"]: row["status"] for row in answer.rows if row["cell"] != "free"}
    assert answer.code == 0, answer.err
    assert found["default"] == "infeasible" and not re.search(r"\b(nan|inf)\b", answer.out + answer.err)


def test_what_is_lacking_by_hand() -> None:
    graph = layered_graph(30, np.random.default_rng(0), "g")
    machine = Machine(name="two", devices=(Device(name="a", capacity=10.0), Device(name="b")))
    cost = Simulator(name="s", machine=machine, objective="runtime", threads=1)
    plan = Plans(graph, np.zeros((1, graph.num_ops), np.int16), np.zeros((1, graph.num_ops)), view_inline(graph)[None])
    held = cost.peak_bytes(plan)
    peak = Simulator(name="m", machine=Machine(name="free", devices=(Device(), Device())), objective="peak_memory",
                     threads=1).price(plan).cost[0]  # fmt: skip
    assert held is not None and held.tolist() == [peak, 0]
    said = lack_of_memory(plan, cost, machine)
    assert f"a needs {amount(peak)}, {amount(peak - 10)} more than its 10 B" in said and " b " not in said
    free = Machine(name="free", devices=(Device(),))
    assert lack_of_memory(plan, Simulator(name="s", machine=free, objective="runtime", threads=1), free) == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (1e6, "1 MB"), (4.953e6, "4.95 MB"), (3.2e18, "3.2e+03 PB")],
)
def test_amounts(size: float, text: str) -> None:
    assert amount(size) == text


HELD = """
import hashlib, sys, threading
from graphopt.core.cli import sentences
from graphopt.core.utils import process
process.PATIENCE = 0.2
with sentences():
    print("begun", flush=True)
    {hold}
"""
IN_C = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"  # many minutes in which Python heeds no signal
ON_THE_WAY_OUT = """
    threading.Thread(target=lambda: hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)).start()
    while True:
        pass
"""


LOST = """
    class Foreign:
        def __del__(self):
            while True:
                pass
    kept, process.PATIENCE = Foreign(), 60.0
    del kept
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("hold", [IN_C, ON_THE_WAY_OUT, LOST])
def test_a_signal_is_heeded_while_the_main_thread_cannot(number: int, code: int, hold: str) -> None:
    """Such as in a compiler, or while the way out waits for a thread that is in one; or the interrupt is lost."""
    script = HELD.format(hold=hold)
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=-1, stderr=-1, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "begun\n"
    run.send_signal(number)
    try:
        _, said = run.communicate()
    finally:
        run.kill()
    assert run.returncode == code
    assert said.splitlines()[-1] == "interrupted; the same command goes on where it stopped"


def test_a_forked_process_does_not_report_its_signals_to_its_parent() -> None:
    script = HELD.format(
        hold="""
    import multiprocessing, os, signal, time
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    time.sleep(0.5)
    child.terminate()
    child.join()
    time.sleep(1.0)
    print("over")
"""
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "begun\nover\n"), run.stderr
