"""All pictures of one decision: the graph by kernel or device, the timeline, the trace file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import matplotlib.pyplot as plt

from graphopt.core.plan import Plans
from graphopt.core.trace import Trace, write_trace
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import Solution
from graphopt.report.pictures.graph_picture import draw_graph
from graphopt.report.pictures.style import STYLE, save_figure
from graphopt.report.pictures.timeline import draw_timeline


@runtime_checkable
class Simulates(Protocol):
    """A cost model that can tell all that happens under one plan."""

    def simulate(self, plan: Plans) -> Trace: ...


def draw_solution(solution: Solution, costs: Sequence[CostModel], folder: Path, name: str, caption: str) -> list[Path]:
    """Draws an answer and its default; returns the files. A dot marks what the other does otherwise. No timeline
    without a simulator, nor where both have graphs of their own (rewritten programs)."""
    plan, default, machine = solution.plans, solution.default_plans, solution.task.machine
    with plt.rc_context(STYLE):
        if plan.graph is not default.graph:
            sides = ("original", default, plan), ("rewritten", plan, default)
            return [
                file
                for label, own, other in sides
                for file in save_figure(draw_graph(own, other, machine, f"{label}; {caption}"), folder,
                                        f"{name}-{label}")
            ]  # fmt: skip
        files = save_figure(draw_graph(plan, default, machine, caption), folder, f"{name}-graph")
        simulator = next((model for model in costs if isinstance(model, Simulates)), None)
        if simulator is None:
            return files
        runs = [("found", simulator.simulate(plan)), ("default", simulator.simulate(default))]
        figure = draw_timeline(runs, solution.graph, machine, caption)
        files += save_figure(figure, folder, f"{name}-timeline")
    trace = folder / f"{name}-perfetto.json"
    write_trace(trace, runs[0][1], solution.graph, machine)
    return [*files, trace]
