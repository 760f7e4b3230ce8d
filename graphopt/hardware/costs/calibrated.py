"""`Calibrated`: what TorchInductor's code of a plan should take on one core, computed, not measured.

The program is lowered once, with every value stored. From the loops that it becomes, a plan's own follow: what is
stored, after Inductor's rules where a plan asks for nothing; what each stored value evaluates and reads; which loops
become one. Their operations, reads and writes cost what a preset says, which `graphopt measure calibrate` measures.
"""

from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from graphopt.core.compiler import KNOBS, compiler_choice
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.core.operators import Category
from graphopt.core.plan import Plans, Role
from graphopt.costs.loops.estimate import Estimate, Rules
from graphopt.costs.loops.preset import load
from graphopt.hardware.ranking.requests import ASSUMED, CUT, READS, CompilerRequest, request_of
from graphopt.problems.cost_model import CostModel, Prices

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
        graph, estimate = plans.graph, self.estimate(plans.graph)
        # Products of matrices and convolutions, which no plan changes.
        fixed = float(graph.flops[graph.category == Category.CONTRACTION].sum()) * self.preset.flop * 1e-9
        found: dict[str, float] = {}
        keys = []
        for b in range(len(plans)):
            requests, knobs = request_of(plans, b)
            request = CompilerRequest(requests, {name: choice for name, choice in knobs.items() if name in RULES})
            keys.append(key := request.key(graph))
            if key in found:
                continue
            stored = {name: word == "store" for name, word in requests.items() if word != CUT}
            cut = frozenset(name for name, word in requests.items() if word == CUT)
            changed = {RULES[k.name]: k.values[request.knobs[k.name]] for k in KNOBS if k.name in request.knobs}
            found[key] = estimate.seconds(estimate.made(stored, cut, Rules(**changed)), self.preset)
        return Prices(np.array([found[key] + fixed for key in keys]), np.zeros(len(plans)))

    def estimate(self, graph: Graph) -> Estimate:
        """Of a graph's program, which is lowered once. Raises UserError for graphs that no compiler was asked about."""
        if graph in self._estimates:
            return self._estimates[graph]
        own = compiler_choice(graph)
        if own is None or graph.program is None:
            raise UserError(
                f"cost=calibrated prices what TorchInductor lowers, and {graph.name} is not: choose dataset=lowered"
            )
        from graphopt.graphs.readers.pytorch.program_file import unpacked_program
        from graphopt.hardware.inductor.loop_reader import loop_program

        names = [graph.op_names[op] for op in np.flatnonzero(own.free).tolist()]
        self._estimates[graph] = Estimate(loop_program(unpacked_program(graph.program, graph.name), names))
        return self._estimates[graph]
