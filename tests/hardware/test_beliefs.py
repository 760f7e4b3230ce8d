"""What was measured of a program changes the order of what is left, as a Bayesian linear regression says."""

import numpy as np

from graphopt.hardware.search.beliefs import KNOB, NOISE, OWN, Beliefs, _posterior, traits


def test_the_posterior_is_that_of_a_linear_regression() -> None:
    rng = np.random.default_rng(0)
    known, new, off = rng.normal(size=(7, 4)), rng.normal(size=(5, 4)), rng.normal(size=7)
    mean, spread = _posterior(new, known, off, measured=7)
    error = OWN**2 + NOISE**2
    covariance = np.linalg.inv(np.eye(4) + known.T @ known / error)
    np.testing.assert_allclose(mean, new @ covariance @ known.T @ off / error, rtol=1e-6)
    np.testing.assert_allclose(spread**2, np.einsum("pt,ts,ps->p", new, covariance, new) + OWN**2, rtol=1e-6)


def test_before_anything_is_measured_alike_decisions_come_as_predicted() -> None:
    order = Beliefs().most_promising([{i: KNOB} for i in range(4)], np.array([0.1, -0.2, 0.0, -0.1]), 3)
    assert order == [1, 3, 2]


def test_what_helped_more_than_predicted_is_tried_with_others() -> None:
    beliefs = Beliefs()
    beliefs.learn({"fast": KNOB}, 0.0, -0.3)
    beliefs.learn({"slow": KNOB}, -0.2, 0.1)
    left = [{"slow": KNOB, "other": KNOB}, {"other": KNOB}, {"fast": KNOB, "other": KNOB}]
    assert beliefs.lowest == -0.3
    assert beliefs.most_promising(left, np.array([-0.2, 0.0, 0.0]), 1) == [2]


def test_code_that_spends_more_on_what_is_dear_comes_later() -> None:
    """Both are predicted to be as fast; a third, full of reads, took longer than predicted."""
    default = {"read": 5.0, "add": 5.0}
    reads, adds = (traits([], [], kinds, default) for kinds in ({"read": 8.0, "add": 1.0}, {"read": 1.0, "add": 8.0}))
    beliefs = Beliefs()
    beliefs.learn(traits([], [], {"read": 9.0}, default), -0.1, 0.3)
    assert beliefs.most_promising([reads, adds], np.array([-0.1, -0.1]), 2) == [1, 0]


def test_several_that_are_measured_together_are_not_one_idea() -> None:
    """Of two settings with an equal prediction and their union, each is measured once the other is believed."""
    left = [{"a": KNOB}, {"a": KNOB, "more": 1e-6}, {"b": KNOB}]
    assert Beliefs().most_promising(left, np.array([0.05, 0.05, 0.0501]), 2)[1] == 2
