"""Cost models that price programs: they get the program itself, no plan of its graph.

Additive ones sum the costs of single ops, as TASO's does: blind to how ops act on one another. Ops that read weights
alone cost nothing, since they run once, before the program; so do views: reshape and, as in TASO, split, whose readers
see parts of one tensor.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeGuard

import numpy as np

from graphopt.core.graph import DTYPE_BYTES, DTYPES
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.rewrite.io.as_graph import program_of
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import ACTIVATION_FLOP, Operation, TensorType, window_flop

TermPrice = Callable[[int], float]
"""Seconds of a term alone."""


class ProgramCost(CostModel):
    """Devices, orders and fusion do not count, only which ops there are."""

    needs = frozenset({"terms"})
    reads = frozenset()  # of plans
    prices_programs = True

    @abstractmethod
    def price_program(self, program: Program) -> float:
        """The cost of a program."""

    def price_programs(self, programs: Sequence[Program]) -> list[float]:
        """The costs of programs that were made from one another."""
        return [self.price_program(program) for program in programs]

    def term_price(self, terms: Terms) -> TermPrice | None:
        """The cost of each term of a program, where a program costs the sum of its live terms; else None."""
        return None

    def alone(self, terms: Terms) -> TermPrice | None:
        """The cost of each term by itself, to search by: where whole programs are measured, their sum is no price."""
        return self.term_price(terms)

    def noise_of(self, program: Program) -> tuple[float, int]:
        """(relative standard error of a program's price, timings that it rests on); zeros where it is computed."""
        return 0.0, 0

    def price(self, plans: Plans) -> Prices:
        """That of the program which the plans' graph carries: all plans of a batch are of one graph."""
        program = program_of(plans.graph)
        cost = np.full(len(plans), self.price_program(program))
        return Prices(cost, np.zeros(len(plans)), *self.noise_of(program))


def prices_programs(cost: CostModel) -> TypeGuard[ProgramCost]:
    """Whether a cost model takes programs."""
    return cost.prices_programs


FREE = frozenset({"input", "weight", "fill", "identity_kernel", "item", "reshape", "split"})
GRID = 2.0**-50  # seconds; prices are multiples, so sums below 8 s are exact and do not depend on their order
BYTES = dict(zip(DTYPES, DTYPE_BYTES))
_PER_ELEMENT = {**ACTIVATION_FLOP, "add": 1.0, "mul": 1.0, "batch_norm": 2.0, "opaque": 1.0}


class Additive(ProgramCost):
    """`runtime` of a program on one device as a sum over its ops; `op_seconds` is the model."""

    objective = "runtime"
    provides = frozenset({"prices of single ops"})

    @abstractmethod
    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Seconds of one op alone."""

    def price_program(self, program: Program) -> float:
        return float(sum(map(self.term_price(program.terms), program.live())))

    def term_price(self, terms: Terms) -> TermPrice:
        known: dict[int, float] = {}  # of twins

        def of(term: int) -> float:
            if is_free(terms, term):
                return 0.0
            twin = terms.twin[term]
            seconds = known.get(twin)
            if seconds is None:
                seconds = self.op_seconds(terms.operation[term], input_types(terms, term), terms.types[term])
                known[twin] = seconds = round(seconds / GRID) * GRID
            return seconds

        return of


def is_free(terms: Terms, term: int) -> bool:
    """Whether a term costs nothing."""
    return terms.operation[term].name in FREE or bool(terms.static[term])


def input_types(terms: Terms, term: int) -> list[TensorType]:
    """Types of a term's operands."""
    return [terms.types[i][0] for i in terms.inputs[term]]


class Flops(Additive):
    """The roofline of the machine's first device: launch overhead + the longer of arithmetic and memory traffic.

    Arithmetic of matmul and conv runs at `contraction_flops`, all other at `vector_flops`. Traffic is every input and
    every result once. Padding, boundaries and caches do not count.
    """

    def __init__(self, *, name: str, machine: Machine) -> None:
        self.name, self._device = name, machine.devices[0]

    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        device, heavy = self._device, operation.name in ("matmul", "conv")
        peak = device.contraction_flops if heavy else device.vector_flops
        traffic = sum(prod(t.shape) * BYTES.get(t.dtype, 4) for t in (*inputs, *results))
        return device.launch + max(flop(operation, inputs, results) / peak, traffic / device.bandwidth)


def flop(operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
    """Floating-point operations of one op, a multiply-add being two; 0 where data only moves."""
    window = window_flop(operation, inputs, results)
    elements = sum(prod(result.shape) for result in results)
    return window if window is not None else elements * _PER_ELEMENT.get(operation.name, 0.0)
