"""Targets measured alone: whatever the process does, none gets another one's seconds, and a crash costs a row, not the
run."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quick import alone

from graphopt.core.errors import Unmeasured, UserError
from graphopt.core.utils.process import serve
from graphopt.hardware.costs.whole_program import Profiled
from graphopt.hardware.measure.kinds import onnx_kind
from graphopt.hardware.measure.pool import LocalPool
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Target
from graphopt.rewrite.io.onnx_export import export_onnx
from graphopt.rewrite.ir.vocabulary import Operation, TensorType

HEAD = """
import json, os, sys, time
from pathlib import Path
requests, answers = os.fdopen(int(sys.argv[2])), os.fdopen(int(sys.argv[3]), "w", buffering=1)
here = Path(__file__).parent
with (here / "starts").open("a") as file:
    file.write("s")
def say(**answer):
    answers.write(json.dumps(answer) + "\\n")
say(id=0, ready=True)
for line in requests:
    q = json.loads(line)
    n, i = q["targets"][0]["payload"]["n"], q["id"]
"""


Ask = Callable[[str, int], dict[str, Any]]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A measuring process that does to every request {"n", "id"} what the lines say."""

    def make(*lines: str, **limits: Any) -> tuple[Ask, LocalPool]:
        (tmp_path / "stub_worker.py").write_text(HEAD + "".join(f"    {line}\n" for line in lines))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr("graphopt.hardware.measure.pool.WORKER", "stub_worker")
        service = Service(alone(**limits), table=tmp_path / "ops.jsonl", environment=None, name="profiled")
        assert isinstance(service.pool, LocalPool)
        return lambda name, n: dict(service.alone(Target("op", name, {"n": n}))), service.pool

    return make


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text())


def test_what_a_library_prints_shifts_no_answer(worker: Any, capfd: pytest.CaptureFixture[str]) -> None:
    noise = '{"id": 1, "seconds": 99.0, "spread": 0.0, "blocks": 3}'
    ask, _ = worker(
        f"print('{noise}', flush=True)", "os.system('echo noise')", "say(id=i, seconds=n, spread=0, blocks=3)"
    )
    assert [ask(f"op{n}", n)["seconds"] for n in range(1, 6)] == [1, 2, 3, 4, 5]
    out, err = capfd.readouterr()
    assert out == "" and err.count(noise) == 5


def test_an_answer_to_another_request_is_not_believed(worker: Any, tmp_path: Path) -> None:
    """Somebody writes one line too many into the channel itself: the process is begun again rather than believed."""
    ask, _ = worker(
        *("say(id=i, seconds=n)", "if n == 2 and not (here / 'once').exists():"),
        *("    (here / 'once').touch()", "    say(id=i, seconds=77.0)"),
    )
    assert [ask(f"op{n}", n)["seconds"] for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert starts(tmp_path) == 2


@pytest.mark.parametrize(
    "said", ["float('nan')", "float('inf')", "-1.0", "0.0", "'1.0'", "None", "True", "[1.0]", "10**400"]
)
def test_what_is_no_time_is_no_price(worker: Any, said: str) -> None:
    ask, _ = worker(f"say(id=i, seconds={said} if n == 1 else 2.0, spread=0.0, blocks=3)")
    with pytest.raises(Unmeasured, match="op1 cannot be measured"):
        ask("op1", 1)
    assert ask("op2", 2)["seconds"] == 2.0


def test_half_a_line_is_waited_for_and_no_longer_than_the_limit(worker: Any) -> None:
    half = [
        "text = json.dumps(dict(id=i, seconds=n)) + '\\n'",
        "answers.write(text[:9]); answers.flush()",
        "time.sleep(0.3)",
    ]
    assert worker(*half, "answers.write(text[9:]); answers.flush()")[0]("op", 1)["seconds"] == 1
    with pytest.raises(Unmeasured, match="limit_seconds=1"):  # an hour would be longer than a test may take
        worker(*half, "time.sleep(3600)", limit_seconds=1)[0]("late", 1)


def test_an_op_that_crashes_costs_itself_only_and_is_not_tried_again(worker: Any, tmp_path: Path) -> None:
    ask, _ = worker("os._exit(1) if n == 2 else say(id=i, seconds=n)")
    assert ask("a", 1)["seconds"] == 1
    for _ in range(3):
        with pytest.raises(Unmeasured, match="b cannot be measured: it ends the process"):
            ask("b", 2)
    assert starts(tmp_path) == 2
    assert ask("c", 3)["seconds"] == 3
    assert starts(tmp_path) == 3


def test_an_op_that_hangs_is_waited_for_once(worker: Any, tmp_path: Path) -> None:
    ask, pool = worker("time.sleep(60) if n == 2 else say(id=i, seconds=n)", limit_seconds=1)
    for _ in range(2):
        with pytest.raises(Unmeasured, match="limit_seconds=1"):
            ask("b", 2)
    assert starts(tmp_path) == 1 and pool.counts["hangs"] == 1
    assert ask("c", 3)["seconds"] == 3


def test_a_process_that_always_crashes_is_not_begun_for_ever(worker: Any, tmp_path: Path) -> None:
    ask, _ = worker("os._exit(1)")
    for n in range(4):
        with pytest.raises(Unmeasured):
            ask(f"op{n}", n)
    with pytest.raises(UserError, match="each of 5 requests in a row") as caught:
        ask("op4", 4)
    assert not isinstance(caught.value, Unmeasured) and starts(tmp_path) == 10


def test_killed_in_the_middle_of_a_measurement(worker: Any, tmp_path: Path) -> None:
    ask, pool = worker("(here / 'asked').touch()", "time.sleep(0.5)", "say(id=i, seconds=n)")

    def kill() -> None:
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        assert pool.process.number is not None
        os.kill(pool.process.number, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert ask("op", 7)["seconds"] == 7
    killer.join()
    assert starts(tmp_path) == 2 and pool.counts["crashes"] == 1


def test_the_process_ends_with_its_owner(worker: Any) -> None:
    ask, pool = worker("say(id=i, seconds=n)")
    ask("op", 1)
    assert pool.process._worker is not None
    inner = pool.process._worker.process
    del ask, pool
    assert inner.wait() == -signal.SIGKILL


def test_it_ends_without_a_word_when_nobody_reads() -> None:
    asked, ask = os.pipe()
    hear, answered = os.pipe()
    os.write(ask, (json.dumps({"id": 1}) + "\n").encode())
    os.close(hear)
    assert serve(["serve", str(asked), str(answered)], lambda request, tell: {}) == 0
    os.close(ask)


def test_an_op_in_onnx_runtime_is_the_time_of_its_kernels(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    how = replace(alone(), op_seconds=0.01)
    table = tmp_path / "ops.jsonl"
    cost = Profiled(name="p", runtime="onnxruntime", table=str(table), environment=None, measuring=how)
    image, kernel = TensorType((1, 16, 8, 8), "float32"), TensorType((16, 16, 3, 3), "float32")
    line = cost.measured(Operation("conv", ((1, 1), (1, 1, 1, 1), "none")), [image, kernel])
    assert line["seconds"] > 0 and line["op"].startswith("onnxruntime conv") and "onnxruntime" in line["environment"]
    model = export_onnx(onnx_kind._program(Operation("conv", ((1, 1), (1, 1, 1, 1), "none")), [[*image], [*kernel]]))
    assert [node.op_type for node in model.graph.node] == ["Conv"]
    assert [each.name for each in model.graph.initializer]  # known before it runs, so that it is laid out once


def test_an_op_runs_under_the_optimisations_of_its_programs(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("onnxruntime")
    asked, session = list[str](), onnx_kind.onnxruntime_session
    monkeypatch.setattr(onnx_kind, "onnxruntime_session",
                        lambda model, **how: asked.append(how["optimisations"]) or session(model, **how))  # fmt: skip
    table = str(tmp_path / "ops.jsonl")
    cost = Profiled(name="p", runtime="onnxruntime_off", table=table, environment=None, measuring=alone())
    monkeypatch.setattr(cost.service.pool, "ask", lambda asks, _: [
        onnx_kind.alone_onnx(one["targets"][0]["payload"], one["how"]) for one in asks])  # fmt: skip
    line = cost.measured(Operation("relu", ()), [TensorType((4, 4), "float32")])
    assert line["op"].startswith("onnxruntime_off relu") and asked == ["off"]
