"""Proposals: distributions of random keys other than the uniform one, for `graphopt.search.genetic.brkga`.

Beta keys are drawn by inverting their distribution functions on shared uniform numbers, so equal random numbers give
comparable draws whatever the parameters are (common random numbers). Beta(1, 1) gives the uniform numbers themselves.

Shape legend: K keys, P distinct distributions, Q points of a table.
"""

from functools import lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.errors import UserError
from graphopt.search.genetic.brkga import F32, Sampler
from graphopt.utils.compiled import njit

POINTS = 1025  # of an inverse distribution function: exact at these, linear between, so off by less than 1/1024 in u


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
