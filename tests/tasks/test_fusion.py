"""The fusion task: defaults, masks, decisions and keys that say the same thing, plans that are always valid."""

import numpy as np
import pytest
from fusion_graphs import GPU, RICH, random_graph
from fusion_reference import Reference
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.fusible import view_inline
from graphopt.core.kernels import KernelLimits, default_inline, legalise
from graphopt.core.machine import Machine
from graphopt.core.oracles import check
from graphopt.costs.simulator import Simulator
from graphopt.tasks.fusion import Fusion

CAPS = {"max_ops": 12, "max_inputs": 8, "max_duplicates": 4}
MACHINE = Machine(name="m", devices=(GPU, RICH))
SEEDS = st.integers(0, 10**6)


def fusion(decision: str, levels: int = 20, **caps: int) -> Fusion:
    return Fusion(name="fusion", machine=MACHINE, decision=decision, levels=levels, **{**CAPS, **caps})


BOTH = pytest.mark.parametrize("task", [fusion("binary"), fusion("priority", 5)], ids=["binary", "priority"])


def draws(task: Fusion, graph, seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, task.num_choices, (rows, graph.num_ops, 1)).astype(np.int16)


@BOTH
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_every_decision_and_every_key_makes_a_valid_plan_on_the_first_device(task: Fusion, seed: int) -> None:
    graph = random_graph(seed, 25)
    keys = np.random.default_rng(seed).random((2, task.key_count(graph)))
    for plans in (
        task.realise(graph, draws(task, graph, seed, 2)),
        task.realise(graph, task.initial(graph)[None]),
        task.realise_keys(graph, keys),
    ):
        assert not plans.device.any()
        for b in range(len(plans)):
            assert check(plans[b], MACHINE) == []


@BOTH
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_the_canonical_decision_has_the_same_plan_and_is_its_own_canonical(task: Fusion, seed: int) -> None:
    graph = random_graph(seed, 25)
    for decision in (*draws(task, graph, seed, 2), task.initial(graph)):
        canonical = task.canonical(graph, decision)
        plan, again = (task.realise(graph, d[None]).inline[0] for d in (decision, canonical))
        assert np.array_equal(plan, again)
        assert np.array_equal(task.canonical(graph, canonical), canonical)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_a_canonical_binary_decision_says_what_happens(seed: int) -> None:
    graph, task = random_graph(seed, 25), fusion("binary")
    canonical = task.canonical(graph, draws(task, graph, seed, 1)[0])[:, 0].astype(bool)
    views = view_inline(graph)
    assert not (canonical & views).any()
    assert np.array_equal(canonical | views, task.realise(graph, canonical[None, :, None].astype(np.int16)).inline[0])


@BOTH
def test_the_mask_is_who_has_a_choice(task: Fusion) -> None:
    """Views, outputs, opaque ops and what they read have none; what the mask hides does not matter."""
    graph = random_graph(4, 60)
    hidden = ~task.mask(graph)
    assert set(np.flatnonzero(~hidden[:, 0]).tolist()) == Reference(graph).may_inline
    base, other = draws(task, graph, 1, 1), draws(task, graph, 2, 1)
    mixed = np.where(hidden, other, base)
    assert np.array_equal(task.realise(graph, mixed).inline, task.realise(graph, base).inline)


@BOTH
def test_keys_are_decisions(task: Fusion) -> None:
    """Key k means level floor(k x choices); 1.0 is the last level."""
    graph, choices = random_graph(5, 50), task.num_choices
    decisions = draws(task, graph, 6, 4)
    low, high = decisions[:, :, 0] / choices, (decisions[:, :, 0] + 0.999) / choices
    expected = task.realise(graph, decisions).inline
    assert np.array_equal(task.realise_keys(graph, low).inline, expected)
    assert np.array_equal(task.realise_keys(graph, high).inline, expected)
    last = np.full((1, graph.num_ops, 1), choices - 1, np.int16)
    ones = task.realise_keys(graph, np.ones((1, graph.num_ops)))
    assert np.array_equal(ones.inline, task.realise(graph, last).inline)


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_the_initial_decision_is_the_compilers_default(task: Fusion, seed: int) -> None:
    """As a binary decision exactly; as priorities, its ops are all tried, so none that fits is lost."""
    graph = random_graph(seed, 60)
    default, plan = default_inline(graph, task.limits), task.realise(graph, task.initial(graph)[None]).inline[0]
    assert np.array_equal(plan, default)


def test_the_default_is_faster_than_storing_everything() -> None:
    cost = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1)
    task = fusion("binary")
    for seed in range(5):
        graph = random_graph(seed, 60)
        nothing = np.zeros((1, graph.num_ops, 1), np.int16)
        default, stored = (
            float(cost.price(task.realise(graph, d)).cost[0]) for d in (task.initial(graph)[None], nothing)
        )
        assert default < stored


def test_two_levels_of_priority_try_later_ops_first_as_the_binary_task_does() -> None:
    """With one level there is no order but that of the graph; both tasks then agree wherever caps do not bind."""
    loose = {"max_ops": 1000, "max_inputs": 1000, "max_duplicates": 1000}
    binary, priority = fusion("binary", **loose), fusion("priority", 2, **loose)
    for seed in range(10):
        graph = random_graph(seed, 40)
        decisions = draws(binary, graph, seed, 3)
        assert np.array_equal(binary.realise(graph, decisions).inline, priority.realise(graph, decisions).inline)


def test_caps_are_those_of_the_configuration() -> None:
    task = fusion("binary", max_ops=2, max_inputs=3, max_duplicates=1)
    assert task.limits == KernelLimits(2, 3, 1)
    graph = random_graph(8, 60)
    everything = np.ones((1, graph.num_ops, 1), np.int16)
    assert np.array_equal(
        task.realise(graph, everything).inline,
        legalise(graph, everything[:, :, 0].astype(np.uint8), KernelLimits(2, 3, 1)),
    )
