"""The contract of cost models that price programs: they get the program itself, no plan of its graph."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np

from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.rewrite.io.as_graph import program_of
from graphopt.rewrite.ir.terms import Program, Terms

TermPrice = Callable[[int], float]
"""Seconds of a term alone."""


class ProgramCost(CostModel):
    """Devices, orders and fusion do not count, only which ops there are."""

    needs = frozenset({"terms"})
    reads = frozenset()  # of plans
    prices_programs = True

    @abstractmethod
    def price_program(self, program: Program) -> float:
        """What a program costs."""

    def price_programs(self, programs: Sequence[Program]) -> list[float]:
        """What programs cost that were made from one another."""
        return [self.price_program(program) for program in programs]

    def term_price(self, terms: Terms) -> TermPrice | None:
        """What each term of a program costs, where a program costs the sum of its live terms; else None."""
        return None

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
