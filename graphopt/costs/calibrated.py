"""`Calibrated`: what TorchInductor's code of a plan should take on one core, computed, not measured.

The program is lowered once, with every value stored. From the loops that it becomes, a plan's own follow: what is
stored, after Inductor's rules where a plan asks for nothing; what each stored value evaluates and reads; which loops
become one. Their operations, reads and writes cost what a preset says, which `graphopt measure calibrate` measures.
"""

from collections.abc import Mapping
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from graphopt.core.compiler_choice import compiler_choice
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.knobs import KNOBS
from graphopt.core.operators import Category
from graphopt.core.plan import Plans
from graphopt.costs.loops.estimate import Estimate, Made, Rules
from graphopt.costs.loops.preset import load
from graphopt.errors import UserError
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.ranking.requests import ASSUMED, CUT, READS, CompilerRequest, request_of

# Knobs -> what of Inductor's rules they set. The others are accepted, and without effect on a price.
RULES = {"reads_threshold": "reads", "opcount_threshold": "size", "acc_reads_threshold": "gathered"}


class Calibrated(CostModel):
    """preset: name of a file of numbers that comes with graphopt; null: what was measured here.

    Knobs that change arithmetic, not what is stored, are accepted and cost nothing. Calls of libraries cost their FLOP.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, preset: str | None) -> None:
        self.name, self.preset = name, load(preset)
        self._estimates: WeakKeyDictionary[Graph, Estimate] = WeakKeyDictionary()

    def price(self, plans: Plans) -> Prices:
        estimate, fixed = self.estimate(plans.graph), self._libraries(plans.graph)
        asked = [_told(request_of(plans, b)) for b in range(len(plans))]
        keys = [one.key(plans.graph) for one in asked]
        different = dict(zip(keys, asked, strict=True))
        seconds = {key: estimate.seconds(_made(estimate, one), self.preset) for key, one in different.items()}
        return Prices(np.array([seconds[key] + fixed for key in keys]), np.zeros(len(plans)))

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


def _told(asked: CompilerRequest) -> CompilerRequest:
    """What counts here of it."""
    return CompilerRequest(asked.requests, {name: choice for name, choice in asked.knobs.items() if name in RULES})


def _made(estimate: Estimate, asked: CompilerRequest) -> Made:
    """What Inductor makes of what is asked."""
    stored = {name: word == "store" for name, word in asked.requests.items() if word != CUT}
    cut = frozenset(name for name, word in asked.requests.items() if word == CUT)
    return estimate.made(stored, cut, _rules(asked.knobs))


def _rules(knobs: Mapping[str, int]) -> Rules:
    """Inductor's, with knobs: name -> which of its values."""
    return Rules(**{RULES[knob.name]: knob.values[knobs[knob.name]] for knob in KNOBS if knob.name in knobs})
