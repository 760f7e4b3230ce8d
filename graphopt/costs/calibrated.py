"""`Calibrated`: what TorchInductor's code of a plan should take on one core, computed, not measured.

The program is lowered once, with every value stored. From the loops that it becomes, a plan's own follow: what is
stored, after Inductor's rules where a plan asks for nothing; what each stored value evaluates and reads; which loops
become one. Their operations, reads and writes cost what a preset says, which `python -m graphopt.calibrate` measures.
"""

from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from graphopt.core.compiler_choice import compiler_choice
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.knobs import KNOBS
from graphopt.core.operators import Category
from graphopt.core.plan import Plans
from graphopt.costs.loops.estimate import Estimate
from graphopt.costs.loops.preset import load
from graphopt.costs.loops.stored_values import Rules
from graphopt.errors import UserError
from graphopt.problems.cost_model import CostModel, Prices

CUT = "cut"
# Knobs -> what of Inductor's rules they set. The others are accepted, and without effect on a price.
RULES = {"reads_threshold": "reads", "opcount_threshold": "size", "acc_reads_threshold": "gathered"}


class Calibrated(CostModel):
    """preset: name of a file of numbers that comes with graphopt; null: what was measured here.

    Knobs that change arithmetic, not what is stored, are accepted and cost nothing. Calls of libraries cost their FLOP.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    reads: ClassVar[frozenset[Role | str]] = frozenset({Role.FUSION, CUT, *(knob.name for knob in KNOBS)})
    assumes = frozenset({CUT, *(knob.name for knob in KNOBS)})

    def __init__(self, *, name: str, preset: str | None) -> None:
        self.name, self.preset = name, load(preset)
        self._estimates: WeakKeyDictionary[Graph, Estimate] = WeakKeyDictionary()

    def price(self, plans: Plans) -> Prices:
        estimate, fixed = self.estimate(plans.graph), self._libraries(plans.graph)
        made = (estimate.made(*asked_of(plans, b)) for b in range(len(plans)))
        seconds = [estimate.seconds(one, self.preset) + fixed for one in made]
        return Prices(np.array(seconds), np.zeros(len(plans)))

    def estimate(self, graph: Graph) -> Estimate:
        """Of a graph's program, which is lowered once. Raises UserError for graphs that no compiler was asked about."""
        if graph not in self._estimates:
            self._estimates[graph] = _estimate(graph)
        return self._estimates[graph]

    def _libraries(self, graph: Graph) -> float:
        """Seconds of products of matrices and convolutions, which no plan changes."""
        return float(graph.flops[graph.category == Category.CONTRACTION].sum()) * self.preset.flop * 1e-9


def _estimate(graph: Graph) -> Estimate:
    own = compiler_choice(graph)
    if own is None or graph.program is None:
        raise UserError(
            f"cost=calibrated prices what TorchInductor lowers, and {graph.name} is not: choose dataset=lowered"
        )
    from graphopt.inductor.loop_reader import loop_program
    from graphopt.readers.pytorch.program_file import unpacked_program

    names = [graph.op_names[op] for op in np.flatnonzero(own.free).tolist()]
    return Estimate(loop_program(unpacked_program(graph.program, graph.name), names))


def asked_of(plans: Plans, b: int) -> tuple[Mapping[str, bool], frozenset[str], Rules]:
    """What a plan of the batch asks otherwise than the compiler's default: op -> whether to store it; what to keep
    apart; its rules."""
    graph = plans.graph
    own = compiler_choice(graph)
    assert own is not None
    changed = np.flatnonzero(own.free & (plans.inline[b] != own.inline))
    asked = {graph.op_names[op]: not plans.inline[b, op] for op in changed.tolist()}
    cut = np.flatnonzero(plans.choices[CUT][b]).tolist() if CUT in plans.choices else []
    return asked, frozenset(graph.op_names[op] for op in cut), Rules(**_settings(plans, b))


def _settings(plans: Plans, b: int) -> dict[str, Any]:
    found = {}
    for knob in KNOBS:
        choice = int(plans.choices[knob.name][b].flat[0]) if knob.name in plans.choices else 0
        if choice and knob.name in RULES:
            found[RULES[knob.name]] = knob.values[choice]
    return found
