"""All pictures of one decision: the graph by kernel or device, the timeline, the trace file."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import matplotlib.pyplot as plt

from graphopt.answer import Answer
from graphopt.core.plan import Plans
from graphopt.core.trace import Trace, write_trace
from graphopt.records.packed import label_of
from graphopt.reporting.pictures.graph_picture import draw_graph
from graphopt.reporting.pictures.style import STYLE, save_figure
from graphopt.reporting.pictures.timeline import draw_timeline


@runtime_checkable
class Simulates(Protocol):
    """A cost model that can tell all that happens under one plan."""

    def simulate(self, plan: Plans) -> Trace: ...


def draw_answer(answer: Answer, folder: Path) -> list[Path]:
    """Draws an answer and its default; returns the files. A dot marks what the other does otherwise. No timeline
    without a simulator, nor where both have graphs of their own (rewritten programs)."""
    plan, default, name = answer.solution.plans, answer.solution.default_plans, label_of(answer.path)
    with plt.rc_context(STYLE):
        if plan.graph is not default.graph:
            sides = ("original", default, plan), ("rewritten", plan, default)
            return [
                file
                for label, own, other in sides
                for file in save_figure(draw_graph(own, other, answer.machine, f"{label}; {caption(answer)}"), folder,
                                        f"{name}-{label}")
            ]  # fmt: skip
        files = save_figure(draw_graph(plan, default, answer.machine, caption(answer)), folder, f"{name}-graph")
        simulator = next((model for model in (answer.cost, answer.judge) if isinstance(model, Simulates)), None)
        if simulator is None:
            return files
        runs = [("found", simulator.simulate(plan)), ("default", simulator.simulate(default))]
        figure = draw_timeline(runs, answer.graph, answer.machine, caption(answer))
        files += save_figure(figure, folder, f"{name}-timeline")
    trace = folder / f"{name}-perfetto.json"
    write_trace(trace, runs[0][1], answer.graph, answer.machine)
    return [*files, trace]


def caption(answer: Answer) -> str:
    """What was decided, by whom, and what it gained."""
    row, prices = answer.decided.header["row"], answer.decided.prices
    maker = f"{row.get('algo', 'an unknown method')}, {row.get('evals_cap', '?')} evaluations"
    gain = f"{prices['initial'] / prices['judged']:.3f}x the default" if prices["judged"] > 0 else "no ratio"
    return f"{answer.task} on {answer.machine.name} by {maker}: {gain}"
