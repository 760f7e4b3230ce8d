"""Beta keys: the right distribution, from shared uniform numbers."""

import numpy as np
import pytest
from scipy.special import betainc

from graphopt.errors import UserError
from graphopt.search.genetic.brkga import uniform_keys
from graphopt.search.genetic.proposals import beta_keys, beta_parameters

SHAPES = [(1 / 32, 1 / 32), (0.5, 0.1), (0.9, 3.1), (2.0, 2.0), (15.0, 1.0), (3.0, 60.0)]


def test_keys_invert_the_distribution_function() -> None:
    """F(key) is the uniform number that the key was drawn from, to the width of a table cell."""
    alpha, beta = np.repeat(np.array(SHAPES, np.float32), 500, axis=0).T
    keys = beta_keys(alpha, beta)(np.random.default_rng(1), 40)
    uniform = np.random.default_rng(1).random(keys.shape, np.float32)
    inside = (keys > 1e-6) & (keys < 1 - 1e-6)  # beyond, float32 keys pile up at the ends
    assert np.abs(betainc(alpha, beta, keys) - uniform)[inside].max() < 1 / 1024
    assert inside[:, alpha >= 0.5].mean() > 0.95


def test_all_ones_are_the_uniform_numbers_themselves() -> None:
    ones = np.ones(17, np.float32)
    drawn, uniform = (sampler(np.random.default_rng(5), 9) for sampler in (beta_keys(ones, ones), uniform_keys(17)))
    assert np.array_equal(drawn, uniform)


def test_a_larger_mean_gives_no_smaller_key_from_equal_random_numbers() -> None:
    means = np.array([0.25, 0.5, 0.75])
    low, middle, high = (
        beta_keys(*beta_parameters(np.full(300, mean), np.full(300, 4.0)))(np.random.default_rng(2), 10)
        for mean in means
    )
    assert (low <= middle).all() and (middle <= high).all()
    assert abs(high.mean() - 0.75) < 0.02


def test_keys_are_below_one_so_that_a_choice_exists() -> None:
    keys = beta_keys(np.full(1000, 0.2, np.float32), np.full(1000, 0.01, np.float32))(np.random.default_rng(0), 20)
    assert keys.max() < 1.0 and keys.min() >= 0.0


def test_parameters_must_be_positive() -> None:
    with pytest.raises(UserError, match="positive"):
        beta_keys(np.array([1.0, 0.0], np.float32), np.ones(2, np.float32))
