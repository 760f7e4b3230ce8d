"""Scores of rankings, against another implementation and by hand."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from graphopt.hardware.ranking.measured_plans import agreement, measured_again, needed, spearman


def test_rank_correlation_is_scipys_also_with_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 8, 30).astype(float), rng.random(30)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(np.ones(5), np.arange(5.0)) == 0.0


def test_intervals_hold_the_value_and_noise_limits_what_can_be_seen() -> None:
    rng = np.random.default_rng(1)
    truth = rng.random(40) + 1
    found = agreement(spearman, truth + rng.normal(0, 0.1, 40), truth)
    assert found.low < found.value < found.high < 1.0
    assert measured_again(spearman, truth, np.zeros(40)) == pytest.approx(1.0)
    assert 0.5 < measured_again(spearman, truth, np.full(40, 0.1)) < 0.98


def test_evaluations_until_nine_tenths_of_the_gain() -> None:
    ratio = np.array([1.5, 0.8, 0.91, 0.81])
    assert needed(np.arange(4), ratio) == 2 and needed(np.array([2, 0, 3, 1]), ratio) == 3
