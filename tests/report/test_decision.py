"""Decision files: what is written comes back, replays, and can be taken apart by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import command
from split_work import CONFIG, CutCost, chain

from graphopt import load as load_answer
from graphopt.core.errors import DecisionError
from graphopt.core.graph import Graph
from graphopt.graphs.onnx import load_light
from graphopt.graphs.readers.formats.graph_files import save_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.report.changes import parse_change
from graphopt.report.decision import main
from graphopt.run.config.construct import construct
from graphopt.run.records.answer_file import copy, load, read_answer, save, write, write_arrays

pytestmark = pytest.mark.usefixtures("toy_options")

ADDS = ["add"] * 6


def solved(folder: Path, graph: Graph, choices: list[int], config: dict | None = None, keys: bool = False) -> Path:
    """Prices one decision (and its zeros) of a graph and stores it as the answer; returns the file."""
    config = CONFIG if config is None else config
    machine = construct(config["machine"], "machine")
    task = construct(config["task"], "task", {"machine": machine})
    cost = CutCost(name="cut", objective="runtime", scale=1.0)
    problem = AssignProblem(graph, task, cost, evals=5)
    if keys:
        problem.cost_keys(np.array([choices], np.float64))
    else:
        problem.cost(np.array(choices, np.int16)[None, :, None])
        problem.best = np.array(choices, np.int16)[:, None]  # the answer, even where the default is better
        problem.best_cost = float(cost.price(task.realise(graph, problem.best[None])).cost[0])
    row = {"algo": "hand", "seed": 0, "initial": 3 * problem.initial_cost, "commit": "abc", "objective": "runtime"}
    path = folder / "cell" / "decisions" / f"{graph.name}.npz"
    save(path, problem=problem, judged=3 * problem.best_cost, row=row, config=config)
    save_graph(folder / "graphs" / f"{graph.hash}.npz", graph)
    return path


@pytest.fixture
def graph() -> Graph:
    return chain([4.0, 4.0, 4.0, 4.0, 4.0, 4.0], ["add", "add", "add", "opaque", "add", "add"], [0] * 6)


def test_round_trip(tmp_path: Path, graph: Graph) -> None:
    decision = load(solved(tmp_path, graph, [0, 1, 1, 0, 1, 0]))
    assert decision.op_names == tuple(f"op{i}" for i in range(6))
    assert decision.choices[:, 0].tolist() == [0, 1, 1, 0, 1, 0]
    assert decision.default[:, 0].tolist() == [0] * 6
    assert decision.changed().tolist() == [1, 2, 4]
    assert decision.heads == {"device": 2}
    assert decision.prices == {"initial": 72.0, "searched": 18.0, "judged": 54.0, "noise": 0.0}
    assert decision.trace[:, [0, 2]].tolist() == [[0, 24], [1, 18]]
    assert decision.header["graph"]["hash"] == graph.hash
    assert decision.header["versions"]["commit"] == "abc"


def test_file_holds_no_pickle(tmp_path: Path, graph: Graph) -> None:
    with np.load(solved(tmp_path, graph, [0] * 6), allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)


def test_replays_and_finds_its_graph(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    path = solved(tmp_path, graph, [1, 1, 1, 0, 1, 1])
    assert load_answer(path).check() == []
    assert main(["replay", str(path)]) == 0
    assert "1.7143x the default" in capsys.readouterr().out  # 24 / (5 * 2 + 4)


@pytest.mark.parametrize("key", ["initial", "searched", "judged"])
def test_tampered_price_is_found(tmp_path: Path, graph: Graph, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = solved(tmp_path, graph, [1, 1, 1, 0, 1, 1])
    decision = load(path)
    decision.header["prices"][key] *= 1 - 1e-6
    write(path, decision)
    assert main(["replay", str(path)]) == 1
    assert key in capsys.readouterr().out


def test_tampered_choice_is_found(tmp_path: Path, graph: Graph) -> None:
    path = solved(tmp_path, graph, [1, 1, 1, 0, 1, 1])
    decision = load(path)
    decision.choices[3] = 1
    write(path, decision)
    assert {m.what.split(":")[0] for m in load_answer(path).check()} == {"searched", "judged"}


def test_invalid_plan_is_found(tmp_path: Path, graph: Graph) -> None:
    path = solved(tmp_path, graph, [0] * 6)
    decision = load(path)
    decision.choices[2] = 7
    write(path, decision)
    with pytest.raises(DecisionError, match=r"op 2 has the choice 7 in choices, of 2\): write it again"):
        load_answer(path)


def test_random_keys_that_a_decision_describes_leave_a_decision(tmp_path: Path, graph: Graph) -> None:
    path = solved(tmp_path, graph, [1, 0, 1, 0, 0, 0], keys=True)
    decision = load(path)
    assert not decision.plan and decision.changed().tolist() == [0, 2]
    assert load_answer(path).check() == []


def test_bisect_names_the_culprit(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    path = solved(tmp_path, graph, [1, 1, 1, 1, 1, 1])  # the opaque op takes 40 instead of 4 there
    blame = load_answer(path).bisect()
    assert blame.worst == 3 and blame.changed.tolist() == [0, 1, 2, 3, 4, 5]
    assert (blame.judged, blame.reverted[3], blame.default) == (150.0, 42.0, 72.0)
    assert main(["bisect", str(path)]) == 0
    assert "the op that costs: op3" in capsys.readouterr().out


def test_bisect_blames_nobody_in_a_good_decision(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    path = solved(tmp_path, graph, [1, 1, 1, 0, 1, 1])
    blame = load_answer(path).bisect()
    assert blame.worst is None
    assert np.allclose(blame.reverted, 3 * 16)
    main(["bisect", str(path)])
    assert "no op costs" in capsys.readouterr().out


def test_revert_takes_one_choice_back(tmp_path: Path, graph: Graph) -> None:
    path, out = solved(tmp_path, graph, [1] * 6), tmp_path / "cell" / "decisions" / "edited.npz"
    assert main(["revert", str(path), "op3", "-o", str(out)]) == 0
    edited = load(out)
    assert edited.choices[:, 0].tolist() == [1, 1, 1, 0, 1, 1]
    assert edited.prices["judged"] == 42.0
    assert edited.header["edits"] == ["op3"]
    assert load_answer(out).check() == []


def test_revert_sets_a_choice(tmp_path: Path, graph: Graph) -> None:
    result, accepted = load_answer(solved(tmp_path, graph, [0] * 6)).revert("op1=1")
    assert accepted
    assert result.decided.choices[:, 0].tolist() == [0, 1, 0, 0, 0, 0]
    assert result.decided.prices["judged"] == 66.0
    config = {**CONFIG, "task": {**CONFIG["task"], "stuck": "op1"}}  # which the task refuses
    result, accepted = load_answer(solved(tmp_path, graph, [0] * 6, config)).revert("op1=1")
    assert not accepted and result.decided.prices["judged"] == 72.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op", "near: op0, op1"),
        ("op1=2", "from 0 to 1"),
        ("op1=inline", "from 0 to 1"),
        ("op1=weight:1", "heads device"),
    ],
)
def test_revert_explains_what_it_takes(tmp_path: Path, graph: Graph, text: str, message: str) -> None:
    case = load_answer(solved(tmp_path, graph, [0] * 6))
    with pytest.raises(DecisionError, match=message):
        parse_change(case.decided, case.solution.task.heads, text)


def test_show_and_diff_name_the_ops(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    a = solved(tmp_path, graph, [1, 0, 0, 0, 0, 1])
    b = tmp_path / "cell" / "decisions" / "b.npz"
    main(["revert", str(a), "op5", "-o", str(b)])
    main(["show", str(a)])
    shown = capsys.readouterr().out
    assert "2 of 6 ops differ from the default" in shown and "no results" not in shown
    assert "op0" in shown and "op5" in shown and "op1" not in shown
    main(["diff", str(a), str(b)])
    shown = capsys.readouterr().out
    assert "1 of 6 ops differ" in shown
    assert "\nop5 " in shown and "\nop0 " not in shown


@pytest.mark.parametrize("damage", ["missing", "text", "cut", "other format"])
def test_bad_files_are_one_sentence(
    tmp_path: Path, graph: Graph, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = solved(tmp_path, graph, [0] * 6)
    if damage == "missing":
        path.unlink()
    elif damage == "text":
        path.write_text("not a decision")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    else:
        decision = load(path)
        decision.header["format"] = "graphopt decision 99"
        write(path, decision)
    assert main(["show", str(path)]) == 1
    message = capsys.readouterr().err
    assert str(path) in message and len(message.splitlines()) == 1


def test_a_wrong_graph_is_refused(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    path = solved(tmp_path, graph, [0] * 6)
    other, file = chain([1.0] * 6, ADDS, [0] * 6), tmp_path / "graphs" / f"{graph.hash}.npz"
    save_graph(file, other)
    assert main(["replay", str(path)]) == 1
    assert other.hash in capsys.readouterr().err
    file.unlink()
    with pytest.raises(DecisionError, match=f"graphs/{graph.hash}"):
        load_answer(path)


def test_lost_graph_is_made_again_from_its_data_set(tmp_path: Path) -> None:
    onnx = {"_target_": "graphopt.graphs.onnx.OnnxFiles", "name": "onnx", "path": None, "dims": {}, "train": []}
    graph = load_light("light_squeezenet")
    path = solved(tmp_path, graph, [0] * graph.num_ops, {**CONFIG, "dataset": {**onnx, "val": []}})
    (tmp_path / "graphs" / f"{graph.hash}.npz").unlink()
    assert load_answer(path).graph.hash == graph.hash


def test_diff_of_different_graphs_is_refused(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    other = solved(tmp_path, chain([1.0] * 6, ADDS, [0] * 6, "other"), [0] * 6)
    assert main(["diff", str(solved(tmp_path, graph, [0] * 6)), str(other)]) == 1
    assert "different graphs" in capsys.readouterr().err


def test_a_header_with_no_number_is_refused(tmp_path: Path, graph: Graph) -> None:
    header, arrays = read_answer(solved(tmp_path, graph, [0] * 6))
    header["versions"]["python"] = float("nan")
    write_arrays(tmp_path / "nan.npz", {"header": np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays})
    with pytest.raises(DecisionError, match=r"versions\.python of its header is no number"):
        copy(tmp_path / "nan.npz", tmp_path / "copied.npz")
    assert not (tmp_path / "copied.npz").exists()


def test_devices_keep_their_order(tmp_path: Path) -> None:
    """cpu_gpu has its devices in an order that is not the alphabet's."""
    words = ["task=placement", "algo=local", "machine=cpu_gpu", "dataset=synthetic", "dataset.families=[layered]",
             "dataset.ops=[12]", "dataset.test=2"]  # fmt: skip
    answer = command(tmp_path, *words, "dataset.train=1", "dataset.val=1", "budget.evals=[6]", "logger=none")
    assert answer.code == 0, answer.err
    files = sorted(tmp_path.rglob("decisions/*.npz"))
    assert len(files) == 2 and [load_answer(file).check() for file in files] == [[], []]
