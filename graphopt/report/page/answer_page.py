"""The page of one answer: decisions, their gains, the graph by kernels, the run on its devices, commands.

Shape legend: N ops, K kernels.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.operators import OPERATORS
from graphopt.core.plan import Plans
from graphopt.core.trace import Trace
from graphopt.core.utils.terminal import printable
from graphopt.report.changes import heaviest
from graphopt.report.page.page import GREY, Part, bokeh, plain, write_page
from graphopt.report.pictures.layout import layered, longest_path_layers
from graphopt.report.pictures.membership import differing_ops, kernel_colours, kernels_of, new_ops
from graphopt.report.pictures.style import PALETTE
from graphopt.report.pictures.timeline import CATEGORY_COLOUR, Simulates
from graphopt.report.price_words import duration, gain
from graphopt.report.tables.table import Table

MOST_CHANGES = 500  # decisions in the table
DETAILED = 400  # ops in view below which single ops are shown, kernels above
SWEPT = 1500  # ops up to which the layout untangles edges
SINGLE = "#b8bec6"


def answer_page(answer: Any, target: Path) -> Path:
    """Writes the page of an `Answer`, which imports this module. Raises ConfigError without Bokeh."""
    row = {**answer.facts, **answer.decided.prices, "objective": answer.objective, "judge": answer.judge.name}
    found, default = answer.solution.plans, answer.solution.default_plans
    changes = _changes(answer)
    parts = [Part("Decisions that matter", table=changes, note=changes.note, filter=True),
             *_graphs(answer, found, default), *_timeline(answer, found, default),
             Part("Commands", code="\n".join(_commands(answer, changes)))]  # fmt: skip
    graph = answer.graph
    title = printable(f"{graph.name}: {answer.task} on {answer.machine.name} by {row.get('algo', 'an unknown method')}")
    stored = [int((~plans.inline[0]).sum()) for plans in (default, found)]
    facts = "".join(f" {label.capitalize()}: {text}." for label, text in answer.decided.facts())
    verdict = f"{gain(row)}. {graph.num_ops:,} ops; kernels {stored[0]:,} -> {stored[1]:,}.{facts}"
    return write_page(
        target, title, printable(verdict), [part for part in parts if part.table is None or part.table.rows]
    )


def _changes(answer: Any) -> Table:
    """The gain of each decision; where prices are measured, none goes back alone: each would have to be timed."""
    columns = ["op", "operator", "in the model", "change", "price when it alone goes back"]
    if not answer.decided.described:
        gone = [[printable(one.op), one.operator, printable(one.source), "replaced"] for one in answer.replaced()]
        rules = [[printable(rule), "", "", "rule applied"] for rule in answer.rules()]
        return Table("", ["op or rule", *columns[1:-1]], gone + rules, left=4)
    every = answer.choices.changed()
    ops, worth = heaviest(answer.graph, every)[:MOST_CHANGES], ["-"] * MOST_CHANGES
    if answer.judge.deterministic:
        change = answer.reverted_prices(ops) / answer.price - 1
        order = np.argsort(-change, kind="stable")
        ops, worth = ops[order], [f"{100 * each:+.2f} %" for each in change[order]]
    rows = [[printable(answer.graph.op_names[op]), OPERATORS[answer.graph.kind[op]].name,
             printable(answer.decided.source(answer.graph.op_names[op])), printable(answer.change_in_words(op)), alone]
            for op, alone in zip(ops.tolist(), worth)]  # fmt: skip
    left = len(every) - len(ops)
    return Table("", columns, rows, left=4, note=f"{left:,} more ops differ." if left else "")


def _commands(answer: Any, changes: Table) -> Iterator[str]:
    """An answer whose folder goes with the process has to be saved first."""
    path = str(answer.path) if answer.folder is None else "answer.npz"
    file = shlex.quote(path)
    if answer.folder is not None:
        yield f'answer.save("{path}")   # in Python; then:'
    yield f"graphopt answer show {file}"
    yield f"graphopt answer replay {file}"
    if answer.decided.described and changes.rows:
        yield f"graphopt answer veto {file} {shlex.quote(changes.rows[0][0])} -o edited.npz   # without this decision"


# ---- the graph


def _graphs(answer: Any, found: Plans, default: Plans) -> Iterator[Part]:
    if found.graph is default.graph:
        yield _graph(found, differing_ops(found, default).tolist(), "The graph", answer)
    else:
        yield _graph(default, new_ops(default.graph, found.graph).tolist(), "The graph before", answer)
        yield _graph(found, new_ops(found.graph, default.graph).tolist(), "The graph after", answer)


def _graph(plans: Plans, changed: Sequence[int], title: str, answer: Any) -> Part:
    """Ops as squares in the colour of their kernel (or of their device, where there are several), edges between them.
    From far a kernel is one circle."""
    models, plotting = bokeh().models, bokeh().plotting
    graph, marked, several = plans.graph, set(changed), len(np.unique(plans.device[0])) > 1
    source, target, _ = graph.edges
    edges = sorted(set(zip(source.tolist(), target.tolist())))
    owners = [
        of or frozenset((op,)) for op, of in enumerate(kernels_of(graph, plans.inline[0]))
    ]  # results without readers are by themselves
    x, y, routes = _places(graph.num_ops, edges)
    roots = [min(of) for of in owners]
    numbers = kernel_colours(owners, edges, len(PALETTE))
    size = np.bincount(roots, minlength=graph.num_ops)
    devices = plans.device[0].tolist()

    def colour(root: int) -> str:
        if several:
            return PALETTE[devices[root] % len(PALETTE)]
        return PALETTE[numbers[root]] if size[root] > 1 else SINGLE

    names = [printable(name) for name in graph.op_names]
    ops = models.ColumnDataSource({
        "x": x, "y": y, "name": names, "operator": [OPERATORS[kind].name for kind in graph.kind.tolist()],
        "kernel": [names[root] for root in roots], "device": [answer.machine.devices[devices[r]].name for r in roots],
        "colour": [colour(root) for root in roots],
        "line": ["#d00000" if op in marked else GREY for op in range(len(names))],
        "width": [2.5 if op in marked else 0.5 for op in range(len(names))], "alpha": np.ones(len(names)),
    })  # fmt: skip
    wires = models.ColumnDataSource({"xs": [line[:, 0] for line in routes], "ys": [-line[:, 1] for line in routes]})
    at = np.flatnonzero(size)
    kernels = models.ColumnDataSource({
        "x": np.bincount(roots, x)[at] / size[at], "y": np.bincount(roots, y)[at] / size[at], "ops": size[at],
        "name": [names[root] for root in at], "colour": [colour(root) for root in at.tolist()],
        "alpha": np.full(len(at), 0.85), "radius": 0.3 + 0.12 * np.sqrt(size[at]),
    })  # fmt: skip
    far = graph.num_ops > DETAILED
    figure = plotting.figure(height=560, sizing_mode="stretch_width", tools="pan,wheel_zoom,box_zoom,reset",
                             active_scroll="wheel_zoom", x_axis_type=None, y_axis_type=None, lod_threshold=None,
                             x_range=_range(x), y_range=_range(y))  # fmt: skip
    plain(figure)
    lines = figure.multi_line("xs", "ys", source=wires, line_color=GREY, line_alpha=0.45)
    squares = figure.rect("x", "y", width=0.62, height=0.5, source=ops, fill_color="colour", line_color="line",
                          line_width="width", fill_alpha="alpha", line_alpha="alpha")  # fmt: skip
    circles = figure.circle(
        "x", "y", radius="radius", source=kernels, fill_color="colour", line_color=None, fill_alpha="alpha"
    )
    lines.visible, squares.visible, circles.visible = not far, not far, far
    figure.add_tools(
        models.HoverTool(
            renderers=[squares], tooltips=[(w, f"@{w}") for w in ("name", "operator", "kernel", "device")]
        ),
        models.HoverTool(renderers=[circles], tooltips=[("kernel", "@name"), ("ops", "@ops")]),
    )
    near = models.CustomJS(args={"ops": ops, "range": figure.x_range, "other": figure.y_range,
                                 "details": [squares, lines], "circles": circles, "most": DETAILED}, code="""
        let seen = 0;
        const {x, y} = ops.data;
        for (let i = 0; i < x.length; i++)
          seen += x[i] >= range.start && x[i] <= range.end && y[i] >= other.start && y[i] <= other.end;
        for (const renderer of details) renderer.visible = seen <= most;
        circles.visible = seen > most;""")  # fmt: skip
    if far:
        for range_ in (figure.x_range, figure.y_range):
            range_.js_on_change("start", near)
            range_.js_on_change("end", near)
    colours = "devices" if several else "kernels of more than one op"
    note = f"Colours: {colours}. A red frame: decided otherwise than by default. " + (
        f"From far a circle is a kernel; with at most {DETAILED} ops in view, single ops are shown." if far else ""
    )
    from bokeh.layouts import column

    return Part(title, plot=column(_search(ops, kernels, figure), figure, sizing_mode="stretch_width"), note=note)


def _search(ops: Any, kernels: Any, figure: Any) -> Any:
    """A field: ops that do not match fade, and the view moves to those that do. ops, kernels: sources of the figure."""
    models = bokeh().models
    search = models.TextInput(placeholder="search an op, an operator or a kernel", width=320)
    search.js_on_change("value_input", models.CustomJS(args={"ops": ops, "kernels": kernels, "x": figure.x_range,
                                                                   "y": figure.y_range}, code="""
        const wanted = this.value_input.toLowerCase(), {alpha} = ops.data, found = [];
        for (let i = 0; i < alpha.length; i++) {
          const like = ["name", "operator", "kernel"].some(key => ops.data[key][i].toLowerCase().includes(wanted));
          alpha[i] = like ? 1 : 0.12;
          if (like && wanted) found.push(i);
        }
        const hit = new Set(found.map(i => ops.data.kernel[i]));
        kernels.data.alpha = kernels.data.name.map(name => !wanted || hit.has(name) ? 0.85 : 0.08);
        ops.change.emit();
        kernels.change.emit();
        if (!wanted) { x.reset(); y.reset(); }
        if (found.length > 0) {
          const xs = found.map(i => ops.data.x[i]), ys = found.map(i => ops.data.y[i]);
          x.start = Math.min(...xs) - 4; x.end = Math.max(...xs) + 4;
          y.start = Math.min(...ys) - 3; y.end = Math.max(...ys) + 3;
        }"""))  # fmt: skip
    return search


def _range(values: np.ndarray) -> Any:
    """All of them, with a margin."""
    return bokeh().models.Range1d(float(values.min()) - 1.5, float(values.max()) + 1.5)


def _places(count: int, edges: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """([N] x, [N] y, lines of the edges, each [points, 2] with y downwards): layers from left to right, rows below each
    other; of large graphs without untangling."""
    if count <= SWEPT:
        made = layered(count, edges, 2.4)
        return made.x, -made.y, [line for lines in made.routes for line in lines]
    layer = np.array(longest_path_layers(count, edges))
    rows = np.zeros(count)
    filled = np.zeros(int(layer.max()) + 1)
    for op in range(count):
        rows[op] = filled[layer[op]]
        filled[layer[op]] += 1
    per_row = max(1, round(np.sqrt(2.4 * len(filled) * max(1.0, filled.mean()))))
    heights = np.array([filled[i : i + per_row].max() for i in range(0, len(filled), per_row)])
    tops = np.concatenate([[0.0], np.cumsum(heights + 1.0)])
    x, y = (layer % per_row).astype(float), rows + tops[layer // per_row]
    return x, -y, [np.array([[x[a], y[a]], [x[b], y[b]]]) for a, b in edges]


# ---- the run


def _timeline(answer: Any, found: Plans, default: Plans) -> Iterator[Part]:
    """The runs of every device and link over time, of the answer and of the default."""
    simulator = next((model for model in (answer.cost, answer.judge) if isinstance(model, Simulates)), None)
    if simulator is None or found.graph is not default.graph:
        return
    models, plotting = bokeh().models, bokeh().plotting
    lanes = list[str]()
    bars: dict[str, list[Any]] = {key: [] for key in ("lane", "start", "end", "name", "colour", "time")}
    for label, plans in (("found", found), ("default", default)):
        trace: Trace = simulator.simulate(plans)
        for device in np.unique(trace.kernel_device).tolist():
            lane = f"{label}: {answer.machine.devices[device].name}"
            lanes.append(lane)
            for k in np.flatnonzero(trace.kernel_device == device).tolist():
                op = int(trace.kernel_op[k])
                start, end = float(trace.kernel_start[k]), float(trace.kernel_end[k])
                for key, value in (("lane", lane), ("start", 1e6 * start), ("end", 1e6 * end),
                                   ("name", printable(answer.graph.op_names[op])), ("time", duration(end - start)),
                                   ("colour", CATEGORY_COLOUR[answer.graph.category[op]])):  # fmt: skip
                    bars[key].append(value)
    figure = plotting.figure(y_range=list(reversed(lanes)), height=90 + 42 * len(lanes), sizing_mode="stretch_width",
                             tools="xpan,xwheel_zoom,reset", active_scroll="xwheel_zoom",
                             output_backend="webgl")  # fmt: skip
    plain(figure)
    drawn = figure.hbar(y="lane", left="start", right="end", height=0.7, source=models.ColumnDataSource(bars),
                        fill_color="colour", line_color=None)  # fmt: skip
    figure.add_tools(models.HoverTool(renderers=[drawn], tooltips=[("kernel", "@name"), ("time", "@time")]))
    figure.xaxis.axis_label = "time (us)"
    yield Part(
        "What runs when", plot=figure, note="Colours: the operator that a kernel ends with. Zoom with the wheel."
    )
