"""Prices that are measured: what they say of their noise, and which of two is lower."""

import math

import numpy as np
import pytest

from graphopt.problems.cost_model import SURE, Price, Prices, better


def test_prices_of_a_batch_have_each_its_own_noise() -> None:
    prices = Prices(np.array([2.0, 3.0]), np.zeros(2), np.array([0.01, 0.0]), np.array([7, 0]))
    assert (prices.of(0), prices.of(1)) == (Price(2.0, 0.01, 7), Price(3.0))
    assert Prices(np.array([2.0, 3.0]), np.zeros(2), 0.5, 4).of(1) == Price(3.0, 0.5, 4)
    assert Prices(np.array([2.0]), np.zeros(1)).of(0) == Price(2.0, 0.0, 0)


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (Price(1.0), Price(1.0), False),
        (Price(math.nextafter(1.0, 0.0)), Price(1.0), True),  # computed: any difference
        (Price(0.9, 0.05), Price(1.0, 0.05), False),  # 0.1 of two errors of 0.067
        (Price(0.8, 0.05), Price(1.0, 0.05), True),  # 0.2 of 0.064
        (Price(0.95, 0.0), Price(1.0, 0.02), True),
        (Price(0.97, 0.0), Price(1.0, 0.02), False),
        (Price(1.0, 0.9), Price(math.inf), True),
        (Price(math.inf), Price(math.inf), False),
    ],
)
def test_what_is_shown_to_be_better(a: Price, b: Price, shown: bool) -> None:
    assert better(a, b) is shown
    assert not (better(a, b) and better(b, a))


def test_of_equal_plans_none_is_better_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    measured = 1.0 + rng.normal(0, 0.03, (4000, 2))
    said = [better(Price(a, 0.03), Price(b, 0.03)) or better(Price(b, 0.03), Price(a, 0.03)) for a, b in measured]
    assert SURE == 2.0 and 0.03 < np.mean(said) < 0.07
