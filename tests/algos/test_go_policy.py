"""GO's policy: what it may say, and what a task sees of those before it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from fusion_graphs import random_graph
from go_parts import FUSION, JOINT, NETWORK, go, probabilities
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.algos.go import GO
from graphopt.algos.ppo import sample
from graphopt.core.graph import Graph
from graphopt.core.head import named_counts
from graphopt.errors import ConfigError
from graphopt.problems.task import AssignTask

# ---- the policy


@pytest.mark.parametrize("task", [FUSION, JOINT], ids=["fusion", "joint"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_illegal_choices_have_no_probability(task: AssignTask, seed: int) -> None:
    """An op without a choice keeps the default; a head with fewer choices than another never draws the others'."""
    graph = random_graph(seed, 15)
    p_NHK = probabilities(go(task), [graph]).numpy()
    mask, default = task.mask(graph), task.initial(graph)
    np.testing.assert_allclose(p_NHK.sum(-1), 1.0, rtol=1e-5)
    for head, count in enumerate(named_counts(task.heads).values()):
        assert (p_NHK[:, head, count:] == 0).all()
        assert (p_NHK[mask[:, head], head, :count] > 0).all()
        kept = ~mask[:, head]
        assert (p_NHK[kept, head, default[kept, head]] == 1).all()


@pytest.mark.parametrize("task", [FUSION, JOINT], ids=["fusion", "joint"])
def test_the_prior_is_the_first_probability_of_the_default(task: AssignTask) -> None:
    """On average over networks and ops; single heads differ by the few hundredths of their random weights."""
    graph, found = random_graph(1, 40), []
    mask, default = task.mask(graph), task.initial(graph).astype(np.int64)
    for seed in range(8):
        learner = go(task)
        torch.manual_seed(seed)
        for head in learner.policy.heads:
            head.reset_parameters()
            torch.nn.init.normal_(head.weight, std=0.01)
        p_NHK = probabilities(learner, [graph]).numpy()
        found.append(np.take_along_axis(p_NHK, default[:, :, None], -1)[:, :, 0])
    for head, name in enumerate(named_counts(task.heads)):
        at_default = np.stack(found)[:, mask[:, head], head]
        assert at_default.mean() == pytest.approx(NETWORK.prior[name], abs=0.05)


def test_a_head_without_a_prior_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give algo\.network\.prior\.inline=0\.8"):
        go(network=replace(NETWORK, prior={}))


def test_a_graph_is_answered_alike_alone_and_in_any_batch() -> None:
    learner, graphs = go().eval(), [random_graph(seed, steps) for seed, steps in ((1, 40), (2, 7), (3, 21))]
    alone = [probabilities(learner, [graph]) for graph in graphs]
    for order in itertools.permutations(range(3)):
        together = probabilities(learner, [graphs[i] for i in order]).split([graphs[i].num_ops for i in order])
        for part, i in zip(together, order, strict=True):
            torch.testing.assert_close(part, alone[i], rtol=1e-4, atol=1e-5)


def test_the_graph_state_modulates_only_with_superposition() -> None:
    """Without it the gate is one everywhere; with it, it differs between graphs and not within one."""
    graphs = [random_graph(seed, 12) for seed in (1, 2)]
    for on in (True, False):
        learner = go(network=replace(NETWORK, superposition=on))
        gates = learner.policy.encode(learner.observe(graphs)).gate.split([g.num_ops for g in graphs])
        assert all(torch.equal(gate, gate[:1].expand_as(gate)) for gate in gates)
        assert torch.equal(gates[0][0], gates[1][0]) != on
        assert on or (gates[0] == 1).all()


# ---- several tasks, one after the other


def recurrent(on: bool) -> GO:
    """On the joint task, with large weights in heads and embeddings, so that decisions matter to those after them."""
    learner = go(JOINT, network=replace(NETWORK, recurrent=on)).eval()
    torch.manual_seed(1)
    for part in (*learner.policy.heads, *learner.policy.previous):
        torch.nn.init.normal_(part.weight, std=1.0)
    return learner


def said_of(learner: GO, graph: Graph, chosen: np.ndarray) -> np.ndarray:
    """[N, H, K] of the first iteration, were this decided."""
    observation = learner.observe([graph])
    with torch.no_grad():
        encoded = learner.policy.encode(observation)
        chosen_1NH = torch.from_numpy(chosen.astype(np.int64))[None]
        return learner.policy(observation, encoded, observation.default, chosen_1NH)[0].numpy()


@pytest.mark.parametrize("on", [True, False])
def test_a_task_sees_what_those_before_it_decided_and_nothing_of_those_after_it(on: bool) -> None:
    learner, graph = recurrent(on), random_graph(3, 30)
    base = JOINT.initial(graph)
    for head in range(3):
        changed = base.copy()
        free = JOINT.mask(graph)[:, head]
        changed[free, head] = (changed[free, head] + 1) % JOINT.heads[head].count
        moved = [
            not np.allclose(a, b)
            for a, b in zip(*(said_of(learner, graph, d).transpose(1, 0, 2) for d in (base, changed)))
        ]
        assert moved == [on and later > head for later in range(3)]


def test_samples_are_drawn_from_what_is_said_of_them() -> None:
    """Of many draws in one batch, each given its own earlier heads: the same log-probabilities as one at a time, and
    frequencies as said."""
    learner, graph = recurrent(True), random_graph(3, 12)
    observation = learner.observe([graph])
    with torch.no_grad():
        encoded = learner.policy.encode(observation)
        drawn = learner.policy.decide(observation, encoded, observation.default, lambda p: sample(p, 400))
        together = learner.policy(observation, encoded, observation.default, drawn).numpy()
    for row in (0, 7, 399):
        np.testing.assert_allclose(together[row], said_of(learner, graph, drawn[row].numpy()), atol=1e-4)
    expected = np.exp(together).mean(0)
    found = np.stack([(drawn.numpy() == choice).mean(0) for choice in range(JOINT.num_choices)], 2)
    np.testing.assert_allclose(found, expected, atol=0.12)


def test_graphs_of_a_batch_do_not_see_each_other_however_many_samples() -> None:
    learner, graphs = recurrent(True), [random_graph(seed, steps) for seed, steps in ((1, 40), (2, 7))]
    sizes = [graph.num_ops for graph in graphs]
    observation = learner.observe(graphs)
    torch.manual_seed(0)
    with torch.no_grad():
        encoded = learner.policy.encode(observation)
        drawn = learner.policy.decide(observation, encoded, observation.default, lambda p: sample(p, 3))
        said = learner.policy(observation, encoded, observation.default, drawn).numpy()
    for part, decided, graph in zip(
        np.split(said[1], [sizes[0]]), np.split(drawn[1].numpy(), [sizes[0]]), graphs, strict=True
    ):
        np.testing.assert_allclose(part, said_of(learner, graph, decided), rtol=1e-3, atol=1e-4)


def test_alone_one_head_is_open_and_the_others_keep_the_default() -> None:
    learner, graph = go(JOINT, alone=1.0), random_graph(1, 30)
    observation, opened = learner.observe([graph]), set()
    for _ in range(30):
        allowed = learner._opened(observation).allowed.numpy().sum(-1) > 1
        assert allowed.any(0).sum() == 1
        opened.add(int(allowed.any(0).argmax()))
        assert not (allowed & ~JOINT.mask(graph)).any()
    assert opened == {0, 1, 2}
    assert go(JOINT)._opened(observation) is observation
