"""`brkga`: biased random-key genetic algorithm (Gonçalves, Resende 2011), the solver inside REGAL.

A chromosome is a vector of keys in [0, 1], which the task decodes into a plan. A generation keeps the elites, adds
mutants (new draws from the sampler), and fills up with children of an elite and a non-elite: each gene comes from the
elite with the gene's elite bias. The whole population is decoded and priced in one call.

REGAL replaces two things only: the sampler of the first population and of the mutants, and the elite biases.
Shape legend: P chromosomes, K keys.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.errors import ConfigError
from graphopt.optimizer import Optimizer
from graphopt.problem import Problem
from graphopt.search.moves import INFEASIBLE

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Sampler = Callable[[Generator, int], F32]
"""(random numbers, count) -> [count, K] chromosomes. Equal random numbers give comparable draws: see `uniform_keys`."""
Price = Callable[[F32], F64]
"""[P, K] -> [P] scores; raises OutOfBudget when no more may be priced."""


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Parameters of a BRKGA. Usual ranges: elites 0.1-0.25, mutants 0.1-0.3, elite bias 0.5-0.8."""

    population: int
    elites: float  # share of the population that lives on
    mutants: float  # share that is drawn anew
    elite_bias: float  # probability that a gene of a child comes from its elite parent

    def __post_init__(self) -> None:
        if self.population < 3 or not 1 <= self.elite_count < self.population - self.mutant_count:
            raise ConfigError(
                f"a population of {self.population} with elites={self.elites} and mutants={self.mutants} leaves no "
                "room for children; give at least 3 chromosomes and shares that sum to less than 1"
            )

    @property
    def elite_count(self) -> int:
        return max(1, round(self.elites * self.population))

    @property
    def mutant_count(self) -> int:
        return round(self.mutants * self.population)


class Brkga(Optimizer):
    """Plain BRKGA: uniform keys. yaml: conf/algo/brkga.yaml."""

    def __init__(self, *, name: str, evolution: Evolution) -> None:
        self.name, self.evolution = name, evolution

    def solve(self, problem: Problem) -> None:
        keys = problem.task.key_count(problem.graph)
        if keys and problem.open:
            evolve(priced_by(problem), uniform_keys(keys), problem.rng, self.evolution)


def uniform_keys(keys: int) -> Sampler:
    """Independent uniform keys on [0, 1)."""
    return lambda rng, count: rng.random((count, keys), np.float32)


def priced_by(problem: Problem) -> Price:
    """Scores billed to a problem; an infeasible chromosome scores beyond every feasible one, the worse the larger its
    excess."""

    def price(keys: F32) -> F64:
        cost = problem.cost_keys(keys)
        return np.where(np.isfinite(cost), cost, INFEASIBLE * (1.0 + problem.last_excess))

    return price


def evolve(price: Price, sampler: Sampler, rng: Generator, evolution: Evolution, *, bias: F32 | None = None,
           seeds: F32 | None = None) -> None:  # fmt: skip
    """Evolves until `price` raises OutOfBudget.

    bias: elite bias of every gene [K], in place of the common one. seeds: chromosomes that replace the first draws.
    """
    elite_bias = np.float32(evolution.elite_bias) if bias is None else bias
    keys = sampler(rng, evolution.population)
    if seeds is not None:
        keys[: len(seeds)] = seeds[: len(keys)]
    cost = price(keys)
    elites, mutants = evolution.elite_count, evolution.mutant_count
    while True:
        order = np.argsort(cost, kind="stable")
        keys, cost = keys[order], cost[order]
        children = _children(keys, elites, evolution.population - elites - mutants, elite_bias, rng)
        fresh = np.concatenate([children, sampler(rng, mutants)])
        keys = np.concatenate([keys[:elites], fresh])
        cost = np.concatenate([cost[:elites], price(fresh)])


def _children(keys: F32, elites: int, count: int, bias: F32 | np.float32, rng: Generator) -> F32:
    """[count, K] children of random pairs of an elite and another; chromosomes are sorted, the best first."""
    mother = rng.integers(0, elites, count)
    father = rng.integers(elites, len(keys), count)
    inherits = rng.random((count, keys.shape[1]), np.float32) < bias
    return np.where(inherits, keys[mother], keys[father])
