"""`graphopt measure race`, `graphopt rules check`, and `graphopt answer bisect` of models and programs."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import FLOAT, light, model_of, value

import graphopt
from graphopt.core.errors import Unmeasured, UserError
from graphopt.hardware.measure import optimisers
from graphopt.hardware.measure.race import main as race_command
from graphopt.hardware.measure.race import race, result_of
from graphopt.hardware.measure.rounds import by_turns, rounds_in, timings_of
from graphopt.hardware.measure.target import Ratio
from graphopt.report.decision import main as answer_command
from graphopt.rewrite import equivalence, rewrite_problem
from graphopt.rewrite.check import main as check_command
from graphopt.rewrite.io import onnx_call
from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.ir.program_builder import ProgramBuilder

# --- Two models by turns: who is faster is found out, and a copy is not.

pytest.importorskip("onnxruntime")


def written(path: Path, layers: int) -> Path:
    b = ProgramBuilder()
    x = b.input((64, 128))
    for _ in range(layers):
        x = b.linear(x, 128)
    save_onnx(b.build(x), path)
    return path


def test_more_layers_are_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, many = (written(tmp_path / f"{n}.onnx", n) for n in (1, 16))
    found = race(many, one, processes=2, seconds=0.05)
    assert found.speedup.low > 3.0
    assert found.verdict == "faster"
    assert race(one, many, processes=1, seconds=0.05).verdict == "slower"
    assert race_command([str(many), str(one), "--processes", "1", "--seconds", "0.05"]) == 0
    assert re.search(
        r"before .* ms, after .* ms: .* times as fast; against its own copy .*: faster", capsys.readouterr().out
    )


def test_ratios_are_of_rounds_and_intervals_of_processes() -> None:
    slow_then_fast = [[2.0, 2.0, 1.0], [4.0, 4.0, 2.0], [2.0, 2.2, 1.0]]  # a neighbour disturbs the second round
    other = [[3.0, 3.3, 2.0], [3.0, 2.7, 2.0]]
    found = result_of([np.array(rounds) for rounds in (slow_then_fast, other, other)])
    assert found.speedup == Ratio(1.5, 1.5, 2.0)
    assert (found.before, found.after) == (3.0, 2.0)
    assert found.noise.low <= 1.0 <= found.noise.high
    assert (found.processes, found.rounds) == (3, 7)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(0.99, "no difference shown"), (0.9, "faster"), (1.2, "slower")],
)
def test_a_verdict_needs_more_than_the_noise(after: float, verdict: str) -> None:
    processes = [
        np.array([[1.0, 1.0 / copy, after * wobble]]) for wobble, copy in ((1.0, 0.98), (0.99, 1.02), (1.01, 1.0))
    ]
    assert result_of(processes).verdict == verdict


def test_rounds_come_in_random_order() -> None:
    order = list[int]()

    def timed(model: int, runs: int) -> float:
        order.append(model)
        return 2.0 * runs

    columns, how = [partial(timed, model) for model in range(3)], {"rounds": 40, "noise": 0.0, "seconds": 0.0}
    rounds = by_turns(columns, [1, 2, 3], {**how, "seconds": 60.0}, np.random.default_rng(0))
    assert rounds == [[2.0] * 3] * 40
    turns = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in turns) and len(set(turns)) == 6
    assert len(by_turns(columns, [1, 2, 3], how, np.random.default_rng(0))) == 3  # late from the start


def test_what_cannot_be_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot run the two models: .*none.onnx"):
        race(tmp_path / "none.onnx", written(tmp_path / "1.onnx", 1), processes=1)


def test_open_dimensions_have_to_be_given(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    file = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    with pytest.raises(UserError, match="input 'x' has the open dimension batch; give its size"):
        race(file, file, processes=1)
    assert race(file, file, dims={"batch": 8}, processes=1, seconds=0.01).before > 0


@pytest.mark.parametrize("rounds", [None, 3, [], [3], [[1.0]], [[1.0, float("nan"), 1.0]], [[1.0, -1.0, 1.0]],
                                    [["1", "1", "1"]], [[1.0, 1.0], [1.0]]])  # fmt: skip
def test_what_is_no_measurement_is_refused(rounds: Any) -> None:
    with pytest.raises(Unmeasured, match="are no times"):
        rounds_in(rounds)
    assert [timing.ratio for timing in timings_of(rounds_in([[1.0, 1.0, 2.0]]))] == [1.0, 2.0]


# --- The command that takes a model in and out.

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install -e '.[onnx]'")


def test_a_real_network_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command([str(light("light_squeezenet"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "65 ops, 1,235,496 parameters"
    assert lines[1].startswith("can be rewritten: conv 26, relu 26, concat 8")
    assert lines[2] == "opaque: Softmax 1"
    assert lines[3].startswith("exported and run by ONNX Runtime: differs by")


def test_open_dimensions_and_bad_words_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [value("x", FLOAT, ("n", 2))],
                     [value("y", FLOAT, ("n", 2))])  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    assert check_command([str(tmp_path / "m.onnx")]) == 1
    assert "dimension 'n' of input 'x' is not fixed" in capsys.readouterr().err
    assert check_command([str(tmp_path / "m.onnx"), "--dim", "n"]) == 1
    assert "--dim takes NAME=SIZE" in capsys.readouterr().err
    assert check_command([str(tmp_path / "m.onnx"), "--dim", "n=3"]) == 0


def test_a_model_that_runs_for_ever_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnx_call, "RUN_SECONDS", 0.5)
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Identity", ["go"], ["on"])], "body",
        [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("s", FLOAT, (2,))],
        [value("on", TensorProto.BOOL, ()), value("t", FLOAT, (2,))])  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    model = model_of([loop], [value("x", FLOAT, (2,))], [value("y", FLOAT, (2,))], {"trips": np.asarray(10**12)})
    onnx.save(model, tmp_path / "m.onnx")
    assert check_command([str(tmp_path / "m.onnx")]) == 1
    said = capsys.readouterr()
    assert "opaque: Loop 1" in said.out and "ONNX Runtime cannot run the model" in said.err


@pytest.mark.parametrize("content", [b"", b"text", b"\x08\x07"])
def test_bad_files_are_one_sentence(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    assert check_command([str(tmp_path / "bad.onnx")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "bad.onnx is not an ONNX model" in said


def test_what_only_the_runtime_refuses_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    model = model_of([node], [value("x", FLOAT, (2, 2))], [value("y", FLOAT, (1, 2))], {"i": np.asarray([9])})
    onnx.save(model, tmp_path / "m.onnx")
    assert check_command([str(tmp_path / "m.onnx")]) == 1
    assert capsys.readouterr().err.startswith("ONNX Runtime cannot run the model: ")


# --- Bisect: the optimiser, or the rewrite, that slows a model or makes it wrong.


def test_optimisers_that_act_on_a_model_are_found_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    b = ProgramBuilder()
    x = b.input((1, 8, 16, 16))
    save_onnx(b.build(b.unary("relu", b.conv(x, 16, 3))), tmp_path / "conv.onnx")
    monkeypatch.setattr(optimisers, "SECONDS", 0.05)
    assert answer_command(["bisect", str(tmp_path / "conv.onnx")]) == 0
    said = capsys.readouterr().out
    assert "no optimiser is wrong" in said and "GeluFusion" not in said
    assert "NchwcTransformer" in said or "ConvActivationFusion" in said  # as the processor has blocked layouts


def test_an_optimiser_that_makes_outputs_wrong_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = {"off": 1.0, "default": 2.0, "ConvAddFusion": 2.0, "ConvBNFusion": 1.0}
    monkeypatch.setattr(optimisers, "acting", lambda model: ["ConvAddFusion", "ConvBNFusion"])
    monkeypatch.setattr(optimisers, "outputs", lambda model, name, dims: [np.array([results[name], 1.0])])
    rounds = [np.array([[1.0, 1.0, 0.8, 1.0], [1.0, 1.01, 0.8, 1.0], [1.0, 0.99, 0.8, 1.01]])]
    monkeypatch.setattr(optimisers, "fresh_rounds", lambda *args: rounds * 3)
    found = optimisers.bisect_optimisers(tmp_path / "any.onnx", {})
    assert found.error == 1.0 and found.breaks is not None and found.breaks.name == "ConvBNFusion"
    assert found.slows is not None and found.slows.name == "ConvAddFusion"
    assert found.slows.ratio == pytest.approx(0.8)


def test_what_onnx_runtime_refuses_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert answer_command(["bisect", str(tmp_path / "empty.onnx")]) == 1
    assert "ONNX Runtime cannot run" in capsys.readouterr().err


def test_bisect_names_the_step_that_costs(tmp_path: Path) -> None:
    b = ProgramBuilder()
    x = b.input((8, 64))
    model = tmp_path / "model.onnx"
    save_onnx(b.build(b.unary("relu", b.linear(b.unary("relu", b.linear(x, 64)), 64))), model)
    answer = graphopt.optimize(model, task="rewrite", algo="taso", cost="flops", budget=40)
    found = answer.step_prices()
    assert len(found.price) == len(found.rules) + 1 == len(answer.decided.header["steps"]) + 1
    assert found.price[-1] == answer.prices["judged"] and found.price[0] == answer.prices["initial"]
    assert found.wrong is None and not found.difference
    slow = replace(found, price=np.array([1.0, 0.9, 1.1]), rules=("a", "b"))
    assert slow.worst == 1 and replace(slow, noise=0.2).worst is None


@pytest.mark.parametrize("broken", [1, 2])
def test_bisect_finds_the_step_that_makes_outputs_wrong(broken: int, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    b = ProgramBuilder()
    save_onnx(
        b.build(b.unary("relu", b.linear(b.unary("relu", b.linear(b.input((8, 64)), 64)), 64))), tmp_path / "m.onnx"
    )
    answer = graphopt.optimize(tmp_path / "m.onnx", task="rewrite", algo="taso", cost="flops", budget=40)
    outputs = rewrite_problem.retraced(
        answer.decided.original, answer.solution.task.rules, answer.decided.header["steps"]
    )
    bad = {outputs[step] for step in range(broken, len(outputs))}
    monkeypatch.setattr(equivalence, "disagreement", lambda first, second, _: "off" if second.outputs in bad else "")
    monkeypatch.setattr(rewrite_problem, "retraced", lambda *_: outputs)
    monkeypatch.setattr("graphopt.rewrite.io.as_graph.program_of", lambda graph: answer.decided.original)
    found = answer.step_prices()
    assert (found.wrong, found.difference) == (broken - 1, "off")
    monkeypatch.setattr(equivalence, "disagreement", lambda *_: "the original is not finite")
    found = answer.step_prices()
    assert (found.wrong, found.difference) == (None, "the original is not finite")
