"""Plans from JSON: priced as they are, stored, replayed; what means nothing is one sentence."""

import json

import numpy as np
import pytest

from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.decision import main
from graphopt.records.decision_file import load
from graphopt.reporting.replay import open_case

SETTINGS = ["dataset=synthetic", "task=placement_scheduling", "machine=gpu4_pcie"]


def price(tmp_path, said, *more) -> int:
    (tmp_path / "plan.json").write_text(json.dumps(said))
    return main(["price", str(tmp_path / "plan.json"), *more])


@pytest.fixture
def default(tmp_path):
    """A decision file of the default on the first graph of a data set."""
    from graphopt.cli import composed
    from graphopt.config.build import build

    config = composed(["algo=default", *SETTINGS])
    graph = build(config).dataset.graphs(config["split"])[0]
    file = tmp_path / "default.npz"
    assert price(tmp_path, {}, *SETTINGS, "--graph", graph.name, "-o", str(file)) == 0
    return open_case(file)


def test_a_plan_is_priced_as_given_and_replays(tmp_path, default, capsys):
    graph, names = default.graph, default.graph.op_names
    rng = np.random.default_rng(0)
    device = rng.integers(0, 4, graph.num_ops)
    order = list(names)
    said = {"device": {name: int(d) for name, d in zip(names, device)}, "order": order}
    said["device"][names[0]] = "gpu3"
    assert price(tmp_path, said, "--like", str(tmp_path / "default.npz"), "-o", str(tmp_path / "given.npz")) == 0
    device[0] = 3
    base = default.plans()
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
    device = open_case(tmp_path / "one.npz").plans().device[0]
    kernel = ~default.plans().inline[0]
    assert device[-1] == 2
    assert np.array_equal(device[:-1][kernel[:-1]], default.plans().device[0, :-1][kernel[:-1]])


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
