"""Answers in words of the model, plans that are given."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Answer, command
from onnx import TensorProto, helper
from rich.console import Console

from graphopt import load as load_answer
from graphopt.core import oracles
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.problems.cost_model import amount
from graphopt.report import decision
from graphopt.report.answer import Answer as Solved
from graphopt.report.decision import main
from graphopt.report.model_view import winner
from graphopt.report.price_words import duration, gain
from graphopt.run.records.answer_file import load

# --- What a run says about one model, for every task: against the stored answer, priced and counted independently.

CASES = {
    "fusion": "local", "placement": "annealing", "scheduling": "annealing", "placement_scheduling": "brkga",
    "joint": "annealing", "rewrite": "tensat",
}  # fmt: skip


def model(place: Path) -> Path:
    """Convolutions in two branches, as rewriting likes them, an unknown operator, and a name with an escape in it."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(8, 8, 3, 3)).astype(np.float32) for i in range(3)}
    nodes = [helper.make_node("Conv", ["x", f"w{i}"], [f"c{i}"], f"conv\x1b[2J{i}", pads=[1] * 4) for i in range(3)]
    nodes += [helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}") for i in range(3)]
    nodes += [helper.make_node("Add", ["r0", "r1"], ["s"]), helper.make_node("Add", ["s", "r2"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 32, 32]) for name in "xy"]
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    path = place / "branches.onnx"
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def solve(place: Path, task: str, *words: str) -> Answer:
    cost = ["cost=flops", "cost@judge=flops"] if task == "rewrite" else []
    return command(place, f"task={task}", f"algo={CASES[task]}", *cost, "dataset=onnx", "logger=none",
                   "budget.evals=80", f"dataset.path={model(place)}", *words)  # fmt: skip


def case_of(answer: Answer) -> Solved:
    line = next(line for line in answer.out.splitlines() if line.startswith("decision  "))
    return load_answer(Path(line.split(maxsplit=1)[1]))


@pytest.mark.parametrize("task", CASES)
def test_one_model_at_80_columns(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.report.model_view.screen", lambda: Console(width=80, highlight=False))
    answer = solve(tmp_path, task)
    assert answer.code == 0, answer.err
    (row,) = answer.rows
    out = answer.out
    assert out.startswith(f"branches ({row['ops']} ops): task={task} on machine=gpu2\n")
    assert "geometric mean" not in out and "[95 %]" not in out and not re.search(r"\b(nan|inf)\b", out)
    assert "\x1b" not in out
    assert all(len(line) <= 80 or str(tmp_path) in line for line in out.splitlines())
    case = case_of(answer)
    before = case.solution.default_plans
    counts = [len(oracles.kernels(plan.graph, plan.inline[0].tolist())) for plan in (before, case.solution.plans)]
    kernels = re.search(r"^kernels +(\d+)(?: -> (\d+))?", out, re.M)
    assert kernels is not None and [int(kernels[1]), int(kernels[2] or kernels[1])] == counts
    prices = case.reprice()
    if prices["judged"] < prices["initial"]:
        ratio = f"{prices['initial'] / prices['judged']:.3f}x"
        assert f"{duration(prices['initial'])} -> {duration(prices['judged'])}: {ratio}" in out
    else:
        assert f"nothing better found than the default's {duration(prices['initial'])}" in out
    for line in (line for line in out.splitlines() if "graphopt answer" in line):
        assert decision.main(shlex.split(line)[2:]) == 0
    assert sum("graphopt answer" in line for line in out.splitlines()) == 2
    if task == "rewrite":
        assert re.search(r"^model +\S+\.onnx$", out, re.M) and "rules applied" in out


def test_the_changes_are_those_that_cost_most(tmp_path: Path) -> None:
    answer = solve(tmp_path, "joint", "machine=gpu2")
    case = case_of(answer)
    base, choices = case.price_choices(case.decided.choices[None])[0], case.decided.choices
    alone = {}
    for op in case.decided.changed():
        changed = choices.copy()
        changed[op] = case.decided.default[op]
        alone[case.decided.op_names[op].replace("\x1b", r"\x1b")] = case.price_choices(changed[None])[0] / base - 1
    shown = dict(re.findall(r"^(\S+) .*\+([\d.e+-]+) %\s*$", answer.out, re.M))
    best = sorted((value for value in alone.values() if value > 1e-9), reverse=True)[:5]
    assert len(shown) == len(best) > 0
    assert sorted(map(float, shown.values()), reverse=True) == [pytest.approx(100 * v, rel=6e-3) for v in best]
    assert all(float(text) == pytest.approx(100 * alone[name], rel=6e-3) for name, text in shown.items())


def test_memory_and_what_random_keys_say(tmp_path: Path) -> None:
    objective = ["cost.objective=peak_memory", "judge.objective=peak_memory"]
    answer = solve(tmp_path, "placement_scheduling", *objective)
    (row,) = answer.rows
    assert f"memory     {amount(row['initial'])}" in answer.out or amount(row["judged"]) in answer.out
    keys = case_of(answer).decided
    assert ("a plan from random keys" in answer.out) == bool(getattr(keys, "plan", {}))


def test_several_methods_are_a_small_table_beneath(tmp_path: Path) -> None:
    answer = solve(tmp_path, "fusion", "compare=[default]", "budget.evals=[0,80]")
    best = min(answer.rows, key=lambda row: row["judged"])
    assert f"method     {best['algo']}" in answer.out and "all methods and budgets" in answer.out
    table = answer.out.split("all methods and budgets")[1]
    assert len(re.findall(r"^(?:default|local) ", table, re.M)) == len(answer.rows) == 4


def test_a_graph_of_many_is_no_single_model(tmp_path: Path) -> None:
    words = ["dataset=synthetic", "dataset.families=[layered]", "dataset.ops=30", "algo=local", "logger=none"]
    answer = command(tmp_path, *words, "dataset.test=2", "budget.evals=5")
    assert "geometric mean of default / found" in answer.out and "graphopt.report.decision" not in answer.out


def test_a_default_that_does_not_fit(tmp_path: Path) -> None:
    free = solve(tmp_path, "placement", "cost.objective=peak_memory", "judge.objective=peak_memory", "study=free")
    needed = int(json.loads(json.dumps(free.rows[0]["initial"])))
    words = [f"machine.devices.gpu.capacity={int(needed * 0.98)}", "study=tight", "budget.evals=500"]
    answer = solve(tmp_path, "placement", *words)
    row = next(row for row in answer.rows if row["study"] == "tight")
    if row["status"] == "ok":
        assert "the default does not fit the devices' memory" in answer.out and answer.code == 0
    else:
        assert answer.code == 1 and "more than its" in answer.err


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.281433e-4, "128.1 us"), (2.5, "2.5 s"), (0.0123, "12.3 ms"), (4e-9, "4 ns"), (0, "0 ns")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_of_measured_prices_the_own_method_wins_within_noise() -> None:
    rows = [{"algo": "own", "judged": 1.02, "evals_cap": 9}, {"algo": "other", "judged": 1.0, "evals_cap": 9}]
    assert winner(rows, "own")["algo"] == "other"
    assert winner([{**r, "noise": 0.02} for r in rows], "own")["algo"] == "own"
    assert winner([{**r, "noise": 0.005} for r in rows], "own")["algo"] == "other"


def test_a_gain_within_the_noise_is_said_to_be_none() -> None:
    row = {"initial": 1.0, "judged": 0.98, "judge": "timed", "objective": "runtime"}
    assert gain(row) == "1 s -> 980 ms: 1.020x, 2 % less, by timed"
    assert gain({**row, "noise": 0.02}) == "1 s -> 980 ms ± 2 %: within the noise, by timed"
    assert gain({**row, "noise": 0.005}) == "1 s -> 980 ms ± 0.5 %: 1.020x, 2 % less, by timed"


# --- Plans from JSON: priced as they are, stored, replayed; what means nothing is one sentence.

SETTINGS = ["dataset=synthetic", "task=placement_scheduling", "machine=gpu4_pcie"]


def price(tmp_path, said, *more) -> int:
    (tmp_path / "plan.json").write_text(json.dumps(said))
    return main(["price", str(tmp_path / "plan.json"), *more])


@pytest.fixture
def default(tmp_path):
    """A decision file of the default on the first graph of a data set."""
    from graphopt.core.cli import composed
    from graphopt.run.config.build import build

    config = composed(["algo=default", *SETTINGS])
    graph = build(config).dataset.graphs(config["split"])[0]
    file = tmp_path / "default.npz"
    assert price(tmp_path, {}, *SETTINGS, "--graph", graph.name, "-o", str(file)) == 0
    return load_answer(file)


def test_a_plan_is_priced_as_given_and_replays(tmp_path, default, capsys):
    graph, names = default.graph, default.graph.op_names
    rng = np.random.default_rng(0)
    device = rng.integers(0, 4, graph.num_ops)
    order = list(names)
    said = {"device": {name: int(d) for name, d in zip(names, device)}, "order": order}
    said["device"][names[0]] = "gpu3"
    assert price(tmp_path, said, "--like", str(tmp_path / "default.npz"), "-o", str(tmp_path / "given.npz")) == 0
    device[0] = 3
    base = default.solution.plans
    wanted = Plans(graph, device[None].astype(np.int16), -np.arange(graph.num_ops)[None].astype(float), base.inline)
    trace = Simulator(name="s", machine=default.machine, objective="runtime", threads=1).simulate(wanted)
    printed = capsys.readouterr().out
    assert f"makespan {trace.makespan:.9g} s" in printed
    assert f"peak of gpu3: {trace.peak_bytes[3]:,} B" in printed
    assert load(tmp_path / "given.npz").prices["judged"] == trace.makespan
    assert main(["replay", str(tmp_path / "given.npz")]) == 0


def test_what_is_not_named_stays(tmp_path, default):
    """An op that follows nothing named has the default's device; the empty plan is the default's."""
    assert load(tmp_path / "default.npz").prices["judged"] == load(tmp_path / "default.npz").prices["initial"]
    name = default.graph.op_names[-1]
    assert price(tmp_path, {"device": {name: 2}}, "--like", str(tmp_path / "default.npz"), "-o",
                 str(tmp_path / "one.npz")) == 0  # fmt: skip
    device = load_answer(tmp_path / "one.npz").solution.plans.device[0]
    kernel = ~default.solution.plans.inline[0]
    assert device[-1] == 2
    assert np.array_equal(device[:-1][kernel[:-1]], default.solution.plans.device[0, :-1][kernel[:-1]])


def test_what_means_nothing_is_a_sentence(tmp_path, default, capsys):
    graph = default.graph
    names, like = graph.op_names, ["--like", str(tmp_path / "default.npz")]
    reader = next(n for n in range(graph.num_ops) if (graph.producer[graph.operands(n)] >= 0).any())
    maker = int(max(graph.producer[graph.operands(reader)]))
    wrong = {
        "did you mean": {"device": {names[0] + "x": 1}},
        "has no device 9": {"device": {names[0]: 9}},
        "device numbers or names": {"device": {names[0]: 1.5}},
        "a list of op names": {"order": {"a": 1}},
        "twice": {"order": [names[0], names[0]]},
        "which it needs": {"order": [names[reader], names[maker]]},
        "does not decide inline": {"inline": {names[0]: True}},
        "some of device, order, inline": {"devices": {}},
    }
    for sentence, said in wrong.items():
        assert price(tmp_path, said, *like) == 1
        assert sentence in capsys.readouterr().err
    assert price(tmp_path, {}) == 1
    assert "--like FILE, or settings" in capsys.readouterr().err
