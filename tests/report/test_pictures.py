"""Pictures and their layout."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from test_report import row, store

from graphopt import load as load_answer
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.plan import Plans
from graphopt.core.utils import registry
from graphopt.graphs.readers.formats.graph_files import save_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.report.command import main
from graphopt.report.pictures.curves import longest, ratio_at, seed_curves
from graphopt.report.pictures.graph_picture import MOST_OPS, draw_graph, scene
from graphopt.report.pictures.layout import layered, longest_path_layers
from graphopt.report.pictures.membership import kernel_colours, kernels_of, window
from graphopt.report.pictures.style import PALETTE, method_colours
from graphopt.report.pictures.timeline import draw_timeline
from graphopt.report.tables.read_rows import collect
from graphopt.run.config.build import machine_task_costs
from graphopt.run.records import answer_file

# --- Pictures show what they say: every op once, kernels as the plan has them, the trace's times; files are complete.

CONFIG = {"machine": registry.option("machine", "gpu2"), "task": registry.option("task", "fusion"),
          "cost": registry.option("cost", "simulator"), "judge": registry.option("cost", "simulator")}  # fmt: skip
MACHINE, TASK, COST, _ = machine_task_costs(CONFIG)


def ladder(blocks: int) -> Graph:
    """Blocks of conv, exp and two readers that are added: fusing has choices, and duplicates."""
    b = GraphBuilder("ladder")
    x = b.tensor((64, 1024))
    for i in range(blocks):
        c, e, left, right, y = (b.tensor((64, 1024)) for _ in range(5))
        b.op("conv", [x], [c], flops=1e8, name=f"conv{i}")
        b.op("exp", [c], [e], name=f"exp{i}")
        b.op("relu", [e], [left], name=f"left{i}")
        b.op("tanh", [e], [right], name=f"right{i}")
        b.op("add", [left, right], [y], name=f"add{i}")
        x = y
    b.output(x)
    return b.build()


def test_kernels_are_the_stored_ops_reached_forward() -> None:
    graph = ladder(1)  # conv, exp, left, right, add
    inline = np.array([False, True, True, False, False])
    assert [set(k) for k in kernels_of(graph, inline)] == [{0}, {3, 4}, {4}, {3}, {4}]


def test_window_holds_most_of_the_focus() -> None:
    graph = ladder(100)
    shown = window(graph, [300, 310, 320, 5], 50)
    assert {300, 310, 320} <= set(shown.ops.tolist()) and len(shown.ops) == 50
    assert all(0 <= a < b < 50 for a, b in shown.edges)
    assert len(window(graph, [], 10_000).ops) == graph.num_ops


def test_neighbouring_kernels_differ_in_colour() -> None:
    kernels = [frozenset((i,)) for i in range(30)]
    edges = [(i, i + 1) for i in range(29)]
    colours = kernel_colours(kernels, edges, 4)
    assert all(colours[a] != colours[b] for a, b in edges)


@pytest.mark.parametrize("devices", [1, 2])
def test_every_op_is_drawn_once(devices: int) -> None:
    graph, task = ladder(4), TASK
    default = task.realise(graph, task.initial(graph)[None])
    device = (np.arange(graph.num_ops)[None] % devices).astype(np.int16)
    plan = Plans(graph, device, default.priority, default.inline)
    figure = draw_graph(plan, default, MACHINE, "caption")
    names = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(names) == sorted(["conv", "exp", "relu", "tanh", "add"] * 4)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("sent to another device" in legend) == (devices == 2)
    plt.close(figure)


def test_large_graphs_show_a_window_and_say_so() -> None:
    graph, task = ladder(100), TASK
    default = task.realise(graph, task.initial(graph)[None])
    figure = draw_graph(default, default, MACHINE, "caption")
    assert len(scene(default, default).shown.ops) == MOST_OPS
    assert any("shown" in text.get_text() for text in figure.texts)
    plt.close(figure)


def test_bars_of_the_timeline_are_the_kernels_of_the_trace() -> None:
    graph, task = ladder(3), TASK
    plan = task.realise(graph, task.initial(graph)[None])
    trace = COST.simulate(plan)
    figure = draw_timeline([("found", trace)], graph, MACHINE, "caption")
    bars = next(c for c in figure.axes[0].collections if isinstance(c, PolyCollection))
    spans = np.array([[path.vertices[:, 0].min(), path.vertices[:, 0].max()] for path in bars.get_paths()])
    np.testing.assert_allclose(spans[:, 0], trace.kernel_start * 1e6)  # drawn in microseconds
    np.testing.assert_allclose(spans[:, 1], trace.kernel_end * 1e6)
    plt.close(figure)


def solved(folder: Path) -> Path:
    """A study of one graph whose stored decision stores every op: each op that fusing would have helped costs."""
    graph = ladder(3)
    problem = AssignProblem(graph, TASK, COST, evals=1)
    problem.best = TASK.initial(graph).copy()
    inlined = int(np.flatnonzero(problem.best[:, 0])[0])
    problem.best[inlined] = 0
    problem.best_cost = float(COST.price(TASK.realise(graph, problem.best[None])).cost[0])
    fields = {"initial": problem.initial_cost, "searched": problem.best_cost, "decision": "decisions/ladder.npz"}
    solved_row = row("hand", "ladder", problem.best_cost, **fields)
    path = folder / "cell" / "decisions" / "ladder.npz"
    answer_file.save(path, problem=problem, judged=problem.best_cost, row=solved_row, config=CONFIG)
    save_graph(folder / "graphs" / f"{graph.hash}.npz", graph)
    store(folder, [solved_row])
    return path


def test_bisect_names_the_op_that_fusion_lost(tmp_path: Path) -> None:
    case = load_answer(solved(tmp_path))
    blame = case.bisect()
    assert blame.worst == 0 and blame.changed.tolist() == case.decided.changed().tolist()
    assert blame.reverted[0] == blame.default < blame.judged


def test_views_are_no_difference(tmp_path: Path) -> None:
    """Views are inline whatever a decision says: canonical choices of the default and of the answer agree on them."""
    b = GraphBuilder("view")
    x, y, z, w = (b.tensor((64, 64)) for _ in range(4))
    b.op("conv", [x], [y], flops=1e6)
    b.op("reshape", [y], [z])
    b.op("relu", [z], [w])
    b.output(w)
    problem = AssignProblem(b.build(), TASK, COST, evals=1)
    path = tmp_path / "decisions" / "view.npz"
    answer_file.save(path, problem=problem, judged=problem.best_cost, row={}, config=CONFIG)
    assert not answer_file.load(path).changed().size


def test_a_decision_is_drawn_completely(tmp_path: Path) -> None:
    case = load_answer(solved(tmp_path))
    files = case.draw(tmp_path / "pictures")
    assert [f.name for f in files] == [
        *("ladder-graph.png", "ladder-graph.svg", "ladder-timeline.png", "ladder-timeline.svg", "ladder-perfetto.json")
    ]
    assert all(f.stat().st_size > 1000 for f in files)
    events = json.loads(files[-1].read_text())["traceEvents"]
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) == pytest.approx(case.decided.prices["judged"] * 1e6)
    assert not list((tmp_path / "pictures").glob(".*"))


def test_best_so_far_by_hand(tmp_path: Path) -> None:
    rows = [
        row("go", "a", 2.0, evals_cap=100, trace=[[0, 0.0, 8.0], [10, 0.1, 4.0], [50, 0.2, 2.0]]),
        row("go", "b", 4.0, evals_cap=100, trace=[[0, 0.0, 8.0], [20, 0.1, 4.0]]),
        row("go", "a", 4.0, evals_cap=20, trace=[[0, 0.0, 8.0]]),
    ]
    part = longest(collect(store(tmp_path, rows)).entries)["go"]
    assert [entry.budget for entry in part] == [100, 100]
    evals = np.array([0.0, 9.0, 10.0, 20.0, 99.0])
    assert ratio_at(part[0], evals).tolist() == [1, 1, 0.5, 0.5, 0.25]
    expected = np.sqrt([1, 1, 0.5 * 1, 0.5 * 0.5, 0.25 * 0.5])
    np.testing.assert_allclose(seed_curves(part, evals), expected[None])


def test_own_curves_come_down_from_where_a_search_began(tmp_path: Path) -> None:
    """From 12, above the default's 8, to 9, then below the default to 4; a search from the default has no approach."""
    above = row("go", "a", 4.0, trace=[[0, 8.0], [50, 4.0]], approach=[[1, 12.0], [10, 9.0]])
    store(tmp_path, [above, row("local", "a", 6.0, trace=[[0, 8.0], [3, 6.0]])])
    evals = np.array([1.0, 9, 10, 49, 50, 99])
    curves = {e.method: ratio_at(e, evals, own=True).tolist() for e in collect(tmp_path).entries}
    assert curves == {"go": [1.5, 1.5, 1.125, 1.125, 0.5, 0.5], "local": [1, 0.75, 0.75, 0.75, 0.75, 0.75]}


def test_a_method_keeps_its_colour() -> None:
    assert method_colours(["go", "local"])["go"] == method_colours(["random", "go", "zeta"])["go"]
    many = method_colours(["default", "go", "local", "scan", "random", "annealing", "xla_priority", "alpha", "beta"])
    assert len(set(many.values())) == len(many)
    assert many["default"] not in PALETTE


def test_plots_of_a_study_without_torch(tmp_path: Path) -> None:
    solved(tmp_path)
    code = (
        "import sys; from graphopt.report.command import main; "
        f"code = main([{str(tmp_path)!r}, '--plots', '--replay']); sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert {"curves.png", "speedup.png", "ladder-graph.png", "ladder-timeline.png"} <= made


def test_plots_survive_many_settings(tmp_path: Path) -> None:
    rows = [
        row("go", "a", 4.0, task=task, trace=[[0, 8.0]] if task == "fusion" else []) for task in ("fusion", "joint")
    ]
    store(tmp_path, rows)
    assert main([str(tmp_path), "--plots"]) == 0
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 4  # two bars, two of curves: joint has no traces


# --- The layered layout: edges go forward, nothing overlaps, easy graphs are drawn without crossings.


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 30))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    edges = draw(st.lists(pairs, max_size=50, unique=True)) if count > 1 else []
    return count, edges


@given(dags())
@settings(max_examples=60, deadline=None)
def test_edges_go_forward_and_ops_do_not_overlap(dag: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = dag
    layer = longest_path_layers(count, edges)
    assert all(layer[a] < layer[b] for a, b in edges)
    layout = layered(count, edges, 1.5)
    places = sorted(zip(layout.x.tolist(), layout.y.tolist()))
    for (x0, y0), (x1, y1) in pairwise(places):
        assert x0 != x1 or y1 - y0 >= 1 - 1e-6
    assert layout.y.min() >= 0 and layout.y.max() <= layout.height
    assert layout.x.max() < layout.width


@given(dags())
@settings(max_examples=40, deadline=None)
def test_routes_join_their_ops(dag: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = dag
    layout = layered(count, edges, 1.5)
    for (a, b), route in zip(edges, layout.routes):
        assert route[0][0].tolist() == [layout.x[a], layout.y[a]]
        assert route[-1][-1].tolist() == [layout.x[b], layout.y[b]]
        assert all((np.diff(line[:, 0]) > 0).all() for line in route)  # left to right within a row


def test_a_chain_is_a_straight_line() -> None:
    layout = layered(6, [(i, i + 1) for i in range(5)], 6.0)
    assert layout.x.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.ptp(layout.y) < 1e-9


def test_branches_given_in_a_tangled_order_do_not_cross() -> None:
    # 0 feeds 1, 2, 3; their chains continue to 4, 5, 6 in another order; 7 joins them
    edges = [(0, 1), (0, 2), (0, 3), (1, 6), (2, 4), (3, 5), (4, 7), (5, 7), (6, 7)]
    layout = layered(8, edges, 10.0)
    first, second = np.argsort(layout.y[[1, 2, 3]]), np.argsort(layout.y[[6, 4, 5]])
    assert first.tolist() == second.tolist()
    assert layout.y[[1, 2, 3]] == pytest.approx(layout.y[[6, 4, 5]])  # and they are straight


def test_long_chains_wrap_into_rows() -> None:
    layout = layered(60, [(i, i + 1) for i in range(59)], 1.5)
    assert 4 < layout.width < 20
    assert len(np.unique(layout.y)) > 2
    assert layout.width / layout.height == pytest.approx(1.5, rel=0.5)


def test_a_source_stands_before_its_reader() -> None:
    assert longest_path_layers(5, [(0, 1), (1, 2), (2, 3), (4 - 1, 4)]) == [0, 1, 2, 3, 4]
    assert longest_path_layers(4, [(0, 2), (2, 3), (1, 3)]) == [0, 1, 1, 2]
