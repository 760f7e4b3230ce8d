"""Biased random-key genetic algorithm (Gonçalves, Resende 2011), the solver inside REGAL.

A chromosome is a vector of keys in [0, 1], which the task decodes into a plan. A generation keeps the elites, adds
mutants (new draws from the sampler), and fills up with children of an elite and a non-elite. Each gene comes from the
elite with the gene's elite bias. The whole population is decoded and priced in one call.

REGAL replaces two things only: the sampler of the first population and of the mutants, and the elite biases.

Common random numbers: `evolve` draws two seeds from its generator, one for the sampler and one for mating (who mates
with whom, and a counter-based stream per child). So two runs from equal generators mate alike under any samplers, and
samplers that use one uniform number per gene, in order, see the same numbers gene by gene.

Beta keys are drawn by inverting their distribution functions on shared uniform numbers, so equal random numbers give
comparable draws under any parameters. Beta(1, 1) gives the uniform numbers themselves.

Shape legend: P chromosomes, K keys, C children, Q points of a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.core.errors import ConfigError, UserError
from graphopt.core.utils.compiled import njit
from graphopt.core.utils.marks import Between, Share
from graphopt.problems.assignment import AssignProblem, Pricing
from graphopt.problems.problem import OutOfBudget
from graphopt.search.walks.moves import penalised

MOST_CHROMOSOMES = 1_000_000
POINTS = 1025  # of an inverse distribution function: exact at these, linear between, so off by less than 1/1024 in u
KEYS_PER_CALL = 1 << 22  # keys decoded and priced at a time: plans stay small, and the clock is looked at

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Sampler = Callable[[Generator, int], F32]
"""(random numbers, count) -> a new array [count, K] of chromosomes. Equal random numbers give comparable draws: use
`rng.random((count, K), np.float32)` as `uniform_keys` does, and transform gene by gene."""
Price = Callable[[F32], F64]
"""[P, K] -> [P] scores; raises OutOfBudget when no more may be priced."""


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Parameters of a BRKGA. Usual ranges: elites 0.1-0.25, mutants 0.1-0.3, elite bias 0.5-0.8."""

    population: Annotated[int, Between(3, MOST_CHROMOSOMES)]
    elites: Share  # share of the population that lives on
    mutants: Share  # share that is drawn anew
    elite_bias: Share  # probability that a gene of a child comes from its elite parent

    def __post_init__(self) -> None:
        if not 1 <= self.elite_count < self.population - self.mutant_count:
            raise ConfigError(
                f"a population of {self.population} with elites={self.elites} and mutants={self.mutants} leaves no "
                "room for children; give shares that sum to less than 1"
            )

    @property
    def elite_count(self) -> int:
        return max(1, round(self.elites * self.population))

    @property
    def mutant_count(self) -> int:
        return round(self.mutants * self.population)


def uniform_keys(keys: int) -> Sampler:
    """Independent uniform keys on [0, 1)."""
    return lambda rng, count: rng.random((count, keys), np.float32)


def beta_keys(alpha: F32, beta: F32) -> Sampler:
    """Independent keys, key k from Beta(alpha[k], beta[k]), all in [0, 1).

    The first use of a pair of parameters costs about 2 ms, so round them: a few hundred different pairs are plenty.
    """
    if not (np.all(np.isfinite(alpha) & np.isfinite(beta)) and np.all((alpha > 0) & (beta > 0))):
        raise UserError("the parameters of a Beta distribution must be positive and finite")
    pairs, row = np.unique(np.stack([alpha, beta], 1).astype(np.float32), axis=0, return_inverse=True)
    tables = np.array([_quantiles(float(a), float(b)) for a, b in pairs], np.float32).reshape(-1, POINTS)
    which = row.ravel().astype(np.int32)

    def sample(rng: Generator, count: int) -> F32:
        keys = rng.random((count, len(which)), np.float32)
        _invert(tables, which, keys)
        return keys

    return sample


def beta_parameters(mean: NDArray[np.floating], concentration: NDArray[np.floating]) -> tuple[F32, F32]:
    """(alpha [K], beta [K]) of Betas with given means in (0, 1) and alpha + beta = concentration.

    A mean of a half with 2 is the uniform distribution. Means are rounded to 64ths, so that few distributions differ.
    """
    rounded = np.clip(np.round(mean * 64.0), 1, 63) / 64.0
    return (rounded * concentration).astype(np.float32), ((1.0 - rounded) * concentration).astype(np.float32)


def priced_by(problem: AssignProblem) -> Price:
    """Scores billed to a problem; an infeasible chromosome scores beyond every feasible one, the worse the larger its
    excess."""
    rows = max(1, KEYS_PER_CALL // max(1, problem.task.key_count(problem.graph)))

    def price(keys: F32) -> F64:
        scores = np.empty(len(keys))
        for first in range(0, len(keys), rows):
            cost = problem.cost_keys(keys[first : first + rows])
            scores[first : first + rows] = penalised(cost, problem.last_excess)
        return scores

    return price


def evolve(price: Price, sampler: Sampler, rng: Generator, evolution: Evolution, *, bias: F32 | None = None,
           seeds: F32 | None = None) -> None:  # fmt: skip
    """Evolves until `price` raises OutOfBudget.

    bias: elite bias of every gene [K], in place of the common one. seeds: chromosomes that replace the first draws.
    """
    sampling, mating = (np.random.default_rng(seed) for seed in rng.integers(0, 2**63, 2))
    keys = sampler(sampling, evolution.population)
    if seeds is not None:
        keys[: len(seeds)] = seeds[: len(keys)]
    elite_bias = np.full(keys.shape[1], evolution.elite_bias, np.float32) if bias is None else bias
    elites, first_mutant = evolution.elite_count, evolution.population - evolution.mutant_count
    cost, following = price(keys), np.empty_like(keys)
    while True:
        order = np.argsort(cost, kind="stable")
        following[:elites] = keys[order[:elites]]
        _mate(keys, order, elites, elite_bias, mating, following[elites:first_mutant])
        following[first_mutant:] = sampler(sampling, evolution.mutant_count)
        keys, following = following, keys
        cost = np.concatenate([cost[order[:elites]], price(keys[elites:])])


def run_alone(pricing: Pricing, sampler: Sampler, evolution: Evolution, *, evals: int, seed: int,
              bias: F32 | None = None) -> float:  # fmt: skip
    """The best score of a run by itself: the default's plan is no candidate, so graphs on which little beats it tell
    samplers and settings apart as well."""
    left, best = evals, np.inf

    def price(keys: F32) -> F64:
        nonlocal left, best
        if not len(allowed := keys[:left]):
            raise OutOfBudget
        prices = pricing.keys(allowed)
        scores = penalised(prices.cost, prices.excess)
        left, best = left - len(allowed), min(best, float(scores.min()))
        if len(allowed) < len(keys):
            raise OutOfBudget
        return scores

    try:
        evolve(price, sampler, np.random.default_rng(seed), evolution, bias=bias)
    except OutOfBudget:
        return best
    raise AssertionError("a run ends by its budget")


def _mate(keys: F32, order: I64, elites: int, bias: F32, rng: Generator, children: F32) -> None:
    """Fills `children` [C, K] with those of random pairs of an elite and another; `order`: of keys, best first."""
    count = len(children)
    mother, father = rng.integers(0, elites, count), rng.integers(elites, len(keys), count)
    streams = rng.integers(0, 2**64, count, np.uint64)
    _cross(keys, order[mother], order[father], bias, streams, children)


@njit(cache=True, nogil=True)
def _cross(keys, mother, father, bias, streams, children):  # type: ignore[no-untyped-def]
    words = np.empty((children.shape[1] + 1) // 2, np.uint64)
    for i in range(len(children)):
        _splitmix(streams[i], words)
        _inherit(keys[mother[i]], keys[father[i]], bias, words.view(np.uint32), children[i])


@njit(cache=True, nogil=True)
def _splitmix(stream, words):  # type: ignore[no-untyped-def]
    """Random words by position in a stream (SplitMix64: Steele, Lea, Flood 2014): vector code, no state."""
    for i in range(len(words)):
        z = stream + np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words[i] = z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def _inherit(mother, father, bias, words, child):  # type: ignore[no-untyped-def]
    """A gene is the mother's with its bias. Both are read before the choice: that makes vector code."""
    for k in range(len(child)):
        uniform = np.float32(np.int32(words[k] >> np.uint32(8))) * np.float32(2.0**-24)
        hers, his = mother[k], father[k]
        child[k] = hers if uniform < bias[k] else his


@lru_cache(maxsize=4096)
def _quantiles(alpha: float, beta: float) -> F32:
    """[Q] inverse of the distribution function of Beta(alpha, beta) at equally spaced points of [0, 1]."""
    from scipy.special import betaincinv  # heavy to import

    return np.asarray(betaincinv(alpha, beta, np.linspace(0.0, 1.0, POINTS)), np.float32)


@njit(cache=True, nogil=True)
def _invert(tables, which, keys):  # type: ignore[no-untyped-def]
    """Uniform keys -> keys, in place: linear interpolation in the table of each key."""
    cells, below_one = np.float32(tables.shape[1] - 1), np.float32(1.0 - 2.0**-24)
    for b in range(len(keys)):
        for k in range(len(which)):
            at = keys[b, k] * cells
            cell = int(at)
            left = tables[which[k], cell]
            inside = left + (tables[which[k], cell + 1] - left) * (at - np.float32(cell))
            keys[b, k] = min(inside, below_one)
