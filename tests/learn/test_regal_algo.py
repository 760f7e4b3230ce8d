"""REGAL: its actions, their probabilities, what they do to BRKGA, and that it learns a known optimum."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.learn.encoders.features import batch, graph_features
from graphopt.learn.learner import inference
from graphopt.learn.regal import (
    DESCRIPTORS,
    FEW,
    LEVELS,
    MEMBERSHIPS,
    ORDERS,
    REGAL,
    GraphPolicy,
    Heads,
    Policy,
    PublishedPolicy,
    REGALObservation,
    ReinforceSettings,
    Use,
    _advantages,
    betas,
    elite_bias,
    inputs,
    live_bytes,
    membership,
    opposite_pairs,
    share,
)
from graphopt.problems.assignment import AssignTask
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import solve
from graphopt.run.config.build import encoder
from graphopt.run.config.construct import construct
from graphopt.search.genetic.brkga import Brkga
from graphopt.search.genetic.evolution import Evolution
from graphopt.search.walks.key_moves import RegalLocal
from tests.toy import toy_graph

# --- REGAL's actions: the Betas they stand for, their probabilities, and who depends on whom.


Actions = Literal["graph", "ordinal", "categorical"]


@cache
def machine(name: str = "gpu2") -> Machine:
    made: Machine = construct(registry.option("machine", name), "machine")
    return made


@cache
def task(name: str = "placement_scheduling", on: str = "gpu2") -> AssignTask:
    made: AssignTask = construct(registry.option("task", name), "task", {"machine": machine(on)})
    return made


def untrained(kind: Literal["independent", "autoregressive"] = "independent") -> GraphPolicy:
    torch.manual_seed(0)
    node = registry.option("encoder", "graphsage") | {"width": 8, "layers": 1}
    heads = Heads(kind=kind, width=8, op_spread=1.0, graph_spread=1.0, strength_spread=0.4, placement_prior=0.2,
                  caution_prior=0.2, placement_variance=3.0)  # fmt: skip
    return GraphPolicy(construct(node, "encoder", {"extra_width": len(ORDERS)}), heads)


def policy(kind: Literal["independent", "autoregressive"] = "independent") -> GraphPolicy:
    made = untrained(kind)
    for head in (made.placement, made.scheduling, made.elite_bias):  # so that what is trained matters
        torch.nn.init.normal_(head.out.weight, std=0.1)
    torch.nn.init.normal_(made.graph_mean.weight, std=0.1)
    return made.eval()


def published(kind: Literal["independent", "autoregressive"], categorical: bool) -> PublishedPolicy:
    torch.manual_seed(0)
    node = registry.option("encoder", "graphsage") | {"width": 8, "layers": 1}
    heads = replace(untrained(kind).heads, graph_spread=0.0, op_spread=2.0)
    made = PublishedPolicy(construct(node, "encoder", {"extra_width": len(ORDERS)}), heads, 2, categorical)
    torch.nn.init.normal_(made.output[-1].weight, std=0.1 if categorical else 0.01)
    return made.eval()


def ask(*graphs: Graph, on: str = "gpu2") -> REGALObservation:
    read = [inputs(graph, task(on=on)) for graph in graphs]
    order, member, whole = (torch.from_numpy(np.concatenate(part)) for part in zip(*read, strict=True))
    return REGALObservation(batch([graph_features(graph, machine(on)) for graph in graphs]), order, member, whole)


def test_betas_have_the_moments_that_their_indices_say() -> None:
    m, v = (index.ravel() for index in np.meshgrid(np.arange(LEVELS), np.arange(LEVELS)))
    alpha, beta = (parameter.astype(np.float64) for parameter in betas(m, v))
    mean = alpha / (alpha + beta)
    variance = alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1))
    mu = (m + 1) / (LEVELS + 1)
    np.testing.assert_allclose(mean, mu, rtol=1e-5)
    np.testing.assert_allclose(variance, mu * (1 - mu) * (v + 1) / (LEVELS + 1), rtol=1e-5)
    assert (alpha + beta).max() == pytest.approx(16) and (alpha + beta).min() == pytest.approx(1 / 16)
    rho = elite_bias(np.arange(LEVELS))
    assert rho.min() > 0.5 and rho.max() < 1 and np.all(np.diff(rho) > 0)


@pytest.mark.parametrize("kind", ["independent", "autoregressive"])
@pytest.mark.parametrize("actions", ["graph", "ordinal", "categorical"])
def test_log_probabilities_are_those_of_the_drawn_indices(
    kind: Literal["independent", "autoregressive"], actions: str
) -> None:
    """On one op with everything else fixed: frequencies over many draws against the probabilities that it reports."""
    net: Policy = policy(kind) if actions == "graph" else published(kind, actions == "categorical")
    observation = ask(toy_graph(1))
    torch.manual_seed(1)
    net.heads = replace(net.heads, graph_spread=0.0)
    action = net.propose(observation, 1500)
    _, of_op, entropy = net.log_prob(observation, action)
    for a in range(action.op.shape[2]):
        for index in action.op[:, 0, a].unique():
            hit = action.op[:, 0, a] == index
            assert hit.float().mean().item() == pytest.approx(of_op[hit, 0, a][0].exp().item(), abs=0.05)
    assert 0 < entropy.item() < np.log(LEVELS)


def test_a_graphs_action_is_normal_around_its_mean() -> None:
    net, observation = policy(), ask(toy_graph(5), toy_graph(7))
    action = net.propose(observation, 2)
    of_graph, _, _ = net.log_prob(observation, action)
    mean = net.encode(observation).mean
    expected = torch.distributions.Normal(mean, net.log_graph_spread.exp()).log_prob(action.graph)
    difference = (expected - of_graph).detach()
    torch.testing.assert_close(difference, torch.full_like(difference, -0.5 * float(np.log(2 * np.pi))))


def test_graphs_of_a_batch_do_not_see_each_other() -> None:
    net, one, two = policy(), toy_graph(5), toy_graph(9, seed=3)
    together = net.propose(ask(one, two), 0).op
    assert torch.equal(together[:, :5], net.propose(ask(one), 0).op)
    assert torch.equal(together[:, 5:], net.propose(ask(two), 0).op)


def test_the_untrained_policy_proposes_the_spectral_parts() -> None:
    net = untrained()
    observation = ask(layered_graph(60, np.random.default_rng(0), "g"))
    mean_0, mean_1 = (net.propose(observation, 0).op[0, :, column].numpy() for column in (0, 2))
    inside = observation.member[:, 0, MEMBERSHIPS.index("spectral_by_bytes")].numpy()
    assert np.all((mean_0 > mean_1)[inside > 0.2]) and np.all((mean_0 < mean_1)[inside < -0.2])
    assert np.all(np.abs(mean_0 - 7.5) <= 0.2 * (LEVELS + 1) + 1)


def test_membership_is_the_signed_distance_to_the_part() -> None:
    position = np.array([0.0, 0.125, 0.25, 0.5, 0.9])
    of_four = membership(position, 4)
    assert of_four.argmax(1).tolist() == [0, 0, 0, 1, 3]
    assert of_four[1].tolist() == pytest.approx([0.5, -0.5, -1, -1])
    two = membership(position, 2)
    np.testing.assert_allclose(two[:, 0], -two[:, 1])


def test_share_splits_the_weight() -> None:
    value, weight = np.array([3.0, 1.0, 2.0, 2.0]), np.array([4.0, 2.0, 1.0, 1.0])
    assert share(value, weight).tolist() == [0.75, 0.125, 0.375, 0.375]


def test_inputs_are_bounded_and_depend_on_neither_names_nor_scale() -> None:
    """But list schedules and descriptors, which depend on scale."""
    graph = layered_graph(80, np.random.default_rng(1), "g")
    for one, other in zip(inputs(graph, task()), inputs(replace(graph, name="other"), task()), strict=True):
        assert np.isfinite(one).all() and np.abs(one).max() <= 3.0
        np.testing.assert_array_equal(one, other)
    first, second = (inputs(g, task()) for g in (graph, replace(graph, tensor_bytes=graph.tensor_bytes * 7)))
    free = [column for column, name in enumerate(MEMBERSHIPS) if not name.startswith("heft")]
    np.testing.assert_allclose(first.member_NDX[:, :, free], second.member_NDX[:, :, free], atol=1e-3)
    free = [column for column, name in enumerate(ORDERS) if name != "bottom_level"]
    np.testing.assert_allclose(first.order_NX[:, free], second.order_NX[:, free], atol=1e-3)


def test_descriptors_of_a_graph_by_hand() -> None:
    """A chain a -> b -> c of 3 equal ops after a weight of the same size."""
    b = GraphBuilder("chain")
    weight = b.tensor((100,), num_bytes=100, weight=True)
    made = [b.tensor((100,), num_bytes=100) for _ in range(3)]
    for number, result in enumerate(made):
        b.op("relu", [weight] if number == 0 else [made[number - 1]], [result], flops=1e9)
    graph = b.build()
    np.testing.assert_array_equal(live_bytes(graph), [100, 200, 200])
    said = dict(zip(DESCRIPTORS, inputs(graph, task()).whole_1X[0].tolist(), strict=True))
    assert said["weights"] == pytest.approx(2 * 100 / 300 - 1) and said["live"] == pytest.approx(
        1 / (1 + (FEW * 300 / 200) ** 3)
    )
    assert said["largest"] == pytest.approx(np.log10(0.5) + 1.5, abs=1e-4)
    assert said["even"] == pytest.approx(1 - np.log10(3 * (0.5**2 + 2 * 0.25**2)), abs=1e-4)
    assert said["spread"] == 0.0  # a chain has nothing to run beside


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_actions_of_graphs_come_in_opposite_pairs(samples: int) -> None:
    noise = opposite_pairs(torch.zeros(samples, 2, 300))
    half = samples // 2
    assert (noise.shape == (samples, 2, 300) and torch.equal(noise[-half:], -noise[:half])) or samples == 1
    assert noise[0].std().item() == pytest.approx(1.0, abs=0.15)


def test_descriptors_reach_the_actions_of_their_graph() -> None:
    net, observation = policy(), ask(toy_graph(5), toy_graph(7))
    torch.nn.init.normal_(net.describe.weight)
    before = net.encode(observation).mean
    after = net.encode(replace(observation, whole=observation.whole + torch.tensor([[1.0], [0.0]]))).mean
    assert torch.equal(before[1], after[1]) and (before[0] != after[0]).all()


def test_without_strength_keys_are_uniform() -> None:
    net, observation = policy(), ask(layered_graph(30, np.random.default_rng(0), "g"))
    with torch.no_grad():
        net.graph_mean.weight[-2:], net.graph_mean.bias[-2:], net.describe.weight[-2:] = 0.0, 0.0, 0.0
    alpha, beta = betas(*net.propose(observation, 0).op[0, :, :2].T.numpy())
    assert len(np.unique(alpha)) == 1 and alpha[0] == pytest.approx(1.0, abs=0.15) == beta[0]
    with torch.no_grad():
        net.graph_mean.bias[-2] = 1.0
    assert (
        len(np.unique(net.propose(observation, 0).op[0, :, 0]))
        > 1
        == len(np.unique(net.propose(observation, 0).op[0, :, -3]))
    )


@pytest.mark.parametrize("actions", ["ordinal", "categorical"])
def test_as_published_it_starts_from_uniform_keys_and_reads_no_orders(actions: Actions) -> None:
    learner, g = regal(simulator(), actions=actions), layered_graph(30, np.random.default_rng(0), "g")
    observation = learner.observe([g])
    assert not observation.order.any() and not observation.whole.any() and observation.member.numel() == 0
    made = learner.policy.propose(observation, 0).op[0].numpy()
    assert (made == made[0]).all()  # every op alike
    for mean, variance in zip(made[0, :6:2], made[0, 1:6:2]):
        assert betas(mean, variance) == pytest.approx((1.0, 1.0), abs=0.15)
    drawn = learner.policy.propose(observation, 200)
    assert drawn.graph.shape == (200, 1, 0) and drawn.op[:, 0, 0].unique().numel() > 3
    of_graph, of_op, _ = learner.policy.log_prob(observation, drawn)
    assert of_graph.shape == (200, 1, 0) and of_op.shape == drawn.op.shape


# --- REGAL as an optimiser and as a learner: what its actions do to BRKGA, and learning where the best action is
# known.

EVOLUTION = Evolution(population=20, elites=0.2, mutants=0.1, elite_bias=0.7)
LOCAL: RegalLocal = construct(registry.option("algo", "regal_local") | {"start": "heuristic"}, "algo", {})


def simulator(objective: str = "peak_memory") -> CostModel:
    node = registry.option("cost", "simulator") | {"threads": 1, "objective": objective}
    made: CostModel = construct(node, "cost", {"machine": machine()})
    return made


def regal(cost: CostModel, *, flags: tuple[bool, bool, bool] = (True, True, True), prior: float = 0.2,
          on: str = "placement_scheduling", evals: int = 60, rate: float = 1e-3,
          actions: Actions = "graph", local_evals: int = 0) -> REGAL:  # fmt: skip
    node = registry.option("encoder", "graphsage") | {"width": 8, "layers": 1}
    net = encoder({"algo": registry.option("algo", "regal"), "encoder": node, "seed": 0}, task(on))
    spread = 0.7 if actions == "graph" else 3.0
    heads = Heads(kind="independent", width=8, op_spread=spread, graph_spread=1.0, strength_spread=0.4,
                  placement_prior=prior, caution_prior=prior, placement_variance=4.67)  # fmt: skip
    learning = ReinforceSettings(evals=evals, samples=4, entropy=1e-3, value=1.0, rate=rate,
                        graph_rate=0.3, halved_after=200.0, gradient_clip=1.0)  # fmt: skip
    use = Use(placement=flags[0], scheduling=flags[1], elite_bias=flags[2])
    return REGAL(name="regal", task=task(on), cost=cost, encoder=net, seed=0, evolution=EVOLUTION, use=use,
                 actions=actions, heads=heads, learning=learning, local=LOCAL, local_evals=local_evals)  # fmt: skip


def graph(ops: int = 40, seed: int = 0) -> Graph:
    return layered_graph(ops, np.random.default_rng(seed), f"g{ops}_{seed}")


@pytest.mark.parametrize("local_evals", [0, 80])
def test_without_actions_it_is_brkga(local_evals: int) -> None:
    learner, plain = (
        regal(simulator(), flags=(False, False, False), local_evals=local_evals),
        Brkga(name="brkga", start="random", local=LOCAL, local_evals=local_evals, evolution=EVOLUTION),
    )
    one, _ = solve(learner, graph(), task(), simulator(), evals=200, seed=3)
    other, _ = solve(plain, graph(), task(), simulator(), evals=200, seed=3)
    assert one.best_cost == other.best_cost and [s.cost for s in one.trace] == [s.cost for s in other.trace]


def test_each_action_moves_its_own_keys_only() -> None:
    g = graph()
    roles = task().layout(g).role
    actions = np.full((g.num_ops, 7), 12)  # means of 13/17
    cases = ((True, False, False), {KeyRole.AFFINITY}), ((False, True, False), {KeyRole.PRIORITY, KeyRole.TRANSFER})
    for flags, moved in cases:
        keys = regal(simulator(), flags=flags).sampler(g, actions)(np.random.default_rng(0), 4000)
        for role in KeyRole:
            mean = keys[:, roles == role].mean() if (roles == role).any() else 0.0
            expected = 13 / 17 if role in moved else 0.5
            assert role == KeyRole.CHOICE or mean == pytest.approx(expected, abs=0.02)


def test_the_elite_bias_of_a_gene_is_that_of_its_op() -> None:
    g, learner = graph(), regal(simulator())
    actions = np.tile(np.arange(g.num_ops)[:, None] % LEVELS, 7)
    bias = learner.bias(g, actions)
    assert bias is not None
    np.testing.assert_allclose(bias, 0.5 + 0.5 * (task().layout(g).op % LEVELS + 0.5) / LEVELS, rtol=1e-6)
    assert regal(simulator(), flags=(True, True, False)).bias(g, actions) is None


def test_advantages_are_against_the_other_samples() -> None:
    reward = torch.tensor([[-1.0, -0.5], [-0.8, -0.5], [-0.6, -0.5]])
    advantage = _advantages(reward, torch.zeros(2))
    assert advantage[:, 1].tolist() == [0.0, 0.0, 0.0]
    assert advantage[0, 0] < advantage[1, 0] < advantage[2, 0] and advantage[:, 0].sum().item() == pytest.approx(
        0.0, abs=1e-5
    )
    alone = _advantages(torch.tensor([[-0.9, -1.1]]), torch.tensor([-1.0, -1.0]))
    assert alone[0].tolist() == pytest.approx([1.0, -1.0])


class Parted(CostModel):
    """Ops of the first spectral part want device 0, the others device 1: cost 1 + share of the ops that do not."""

    def __init__(self, wanted: Callable[[Graph], NDArray[np.int64]]) -> None:
        self.name, self.objective, self.wanted = "parted", "runtime", wanted

    def price(self, plans: Plans) -> Prices:
        wanted = self.wanted(plans.graph)
        return Prices(1.0 + (plans.device != wanted).mean(1), np.zeros(len(plans)))


def wanted_devices(g: Graph) -> NDArray[np.int64]:
    return inputs(g, task()).member_NDX[:, :, MEMBERSHIPS.index("spectral_by_bytes")].argmax(1)


def the_second(g: Graph) -> NDArray[np.int64]:
    """Which an output for each device says."""
    return np.ones(g.num_ops, np.int64)


@pytest.mark.parametrize(
    ("actions", "wanted"), [pytest.param("graph", wanted_devices, marks=pytest.mark.slow), ("categorical", the_second)]
)
def test_learns_a_proposal_whose_optimum_is_known(actions: Actions, wanted: Callable[[Graph], NDArray[np.int64]]
                                                  ) -> None:  # fmt: skip
    """From a uniform start, on graphs that it never saw: its keys put far more ops where they belong. A third of such
    short trainings of graphs' actions end where a strength is 0 and keys are uniform; so two of six are asked."""
    learned = 0
    for seed in range(6):
        learned += _learns(actions, wanted, seed)
        if learned == 2:
            break
    assert learned == 2


def _learns(actions: Actions, wanted: Callable[[Graph], NDArray[np.int64]], seed: int) -> bool:
    """Whether 40 steps of training, with actions drawn by a seed, bring three quarters of the ops where they belong."""
    learner = regal(Parted(wanted), prior=0.0, evals=40, rate=3e-3 if actions == "graph" else 1e-2, actions=actions)
    learner.log = learner.log_dict = lambda *args, **options: None  # type: ignore[assignment, method-assign]
    optimizer = learner.configure_optimizers()["optimizer"]
    train, unseen = [graph(40, seed) for seed in range(4)], [graph(60, seed) for seed in range(10, 14)]
    before = np.mean([right(learner, g, wanted) for g in unseen])
    torch.manual_seed(seed)
    for step in range(40):
        loss = learner.training_step(train, step)
        optimizer.zero_grad()
        loss.backward()
        learner.configure_gradient_clipping(optimizer)
        optimizer.step()
    after = np.mean([right(learner, g, wanted) for g in unseen])
    assert before < 0.6 and learner.train_evals == 40 * 40 * 4 * 4 + 4 * 40
    return bool(after > 0.75)


def right(learner: REGAL, g: Graph, wanted: Callable[[Graph], NDArray[np.int64]]) -> float:
    """Share of ops that one draw from the proposal puts where they belong."""
    with torch.no_grad():
        actions = learner.policy.propose(learner.observe([g]), 0).op[0].numpy()
    device = task().realise_keys(g, learner.sampler(g, actions)(np.random.default_rng(0), 200)).device
    return float((device == wanted(g)).mean())


def test_small_graphs_are_answered_on_one_thread_and_the_setting_comes_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with inference(graph()):
            assert torch.get_num_threads() == 1 and not torch.is_grad_enabled()
        assert torch.get_num_threads() == 2 and torch.is_grad_enabled()
    finally:
        torch.set_num_threads(before)


def test_autoregressive_ops_depend_on_earlier_ones_of_their_own_graph_only() -> None:
    net, observation = policy("autoregressive"), ask(toy_graph(4), toy_graph(3, seed=1))
    action = net.propose(observation, 1)
    _, before, _ = net.log_prob(observation, action)
    changed = action.op.clone()
    changed[0, 1] = (changed[0, 1] + 8) % LEVELS  # op 1 of the first graph
    _, after, _ = net.log_prob(observation, action._replace(op=changed))
    same = (before == after).all(2)[0].tolist()
    assert same[0] and not any(same[2:4]) and all(same[4:])
