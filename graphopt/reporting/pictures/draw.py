"""All pictures of one decision: the graph by kernel or device, the timeline, the trace file."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import matplotlib.pyplot as plt

from graphopt.core.plan import Plans
from graphopt.core.trace import Trace, write_trace
from graphopt.records.packed import label_of
from graphopt.reporting.pictures.graph_picture import draw_graph
from graphopt.reporting.pictures.style import STYLE, save_figure
from graphopt.reporting.pictures.timeline import draw_timeline
from graphopt.reporting.replay import Case, RewriteCase


@runtime_checkable
class Simulates(Protocol):
    """A cost model that can tell all that happens under one plan."""

    def simulate(self, plan: Plans) -> Trace: ...


def draw_any(case: Case | RewriteCase, folder: Path) -> list[Path]:
    """Draws an answer of either kind; returns the files."""
    return draw_case(case, folder) if isinstance(case, Case) else draw_rewriting(case, folder)


def draw_rewriting(case: RewriteCase, folder: Path) -> list[Path]:
    """Draws the program as it was given and as it was rewritten; a dot marks ops that the other has not."""
    given, best = case.original_plans(), case.plans()
    name, files = label_of(case.path), []
    with plt.rc_context(STYLE):
        for label, plan, other in (("original", given, best), ("rewritten", best, given)):
            files += save_figure(draw_graph(plan, other, case.machine, f"{label}; {caption(case)}"), folder,
                                 f"{name}-{label}")  # fmt: skip
    return files


def draw_case(case: Case, folder: Path) -> list[Path]:
    """Draws a decision and, beside it, its default; returns the files. Without a simulator there is no timeline."""
    name = label_of(case.path)
    plan, default = case.plans(), case.default_plans()
    with plt.rc_context(STYLE):
        files = save_figure(draw_graph(plan, default, case.machine, caption(case)), folder, f"{name}-graph")
        simulator = next((model for model in (case.cost, case.judge) if isinstance(model, Simulates)), None)
        if simulator is None:
            return files
        runs = [("found", simulator.simulate(plan)), ("default", simulator.simulate(default))]
        figure = draw_timeline(runs, case.graph, case.machine, caption(case))
        files += save_figure(figure, folder, f"{name}-timeline")
    trace = folder / f"{name}-perfetto.json"
    write_trace(trace, runs[0][1], case.graph, case.machine)
    return [*files, trace]


def caption(case: Case | RewriteCase) -> str:
    """What was decided, by whom, and what it gained."""
    row, prices = case.decision.header["row"], case.decision.prices
    maker = f"{row.get('algo', 'an unknown method')}, {row.get('evals_cap', '?')} evaluations"
    gain = f"{prices['initial'] / prices['judged']:.3f}x the default" if prices["judged"] > 0 else "no ratio"
    return f"{case.task.name} on {case.machine.name} by {maker}: {gain}"
