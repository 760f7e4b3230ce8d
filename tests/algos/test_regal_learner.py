"""REGAL as an optimiser and as a learner: what its actions do to BRKGA, and learning where the best action is known."""

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphopt.algos.learner import answering
from graphopt.algos.regal import REGAL, ReinforceSettings, Use, _advantages
from graphopt.algos.regal_heads import LEVELS, Heads
from graphopt.algos.regal_inputs import MEMBERSHIPS, ORDERS, inputs
from graphopt.config.build import encoder
from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.costs.cost_model import CostModel, Prices
from graphopt.datasets.layered import layered_graph
from graphopt.problems.optimizer import solve
from graphopt.search.genetic.brkga import Brkga, Evolution
from graphopt.tasks.keys import KeyRole
from graphopt.tasks.task import AssignTask
from graphopt.utils import registry

EVOLUTION = Evolution(population=20, elites=0.2, mutants=0.1, elite_bias=0.7)


@cache
def machine() -> Machine:
    made: Machine = construct(registry.option("machine", "gpu2"), "machine")
    return made


@cache
def task(name: str = "placement_scheduling") -> AssignTask:
    made: AssignTask = construct(registry.option("task", name), "task", {"machine": machine()})
    return made


def simulator(objective: str = "peak_memory") -> CostModel:
    node = registry.option("cost", "simulator") | {"threads": 1, "objective": objective}
    made: CostModel = construct(node, "cost", {"machine": machine()})
    return made


def regal(cost: CostModel, *, flags: tuple[bool, bool, bool] = (True, True, True), prior: float = 0.2,
          on: str = "placement_scheduling", evals: int = 60, rate: float = 1e-3) -> REGAL:  # fmt: skip
    node = registry.option("encoder", "graphsage") | {"width": 8, "layers": 1}
    net = encoder({"algo": registry.option("algo", "regal"), "encoder": node, "seed": 0}, task(on))
    heads = Heads(kind="independent", width=8, op_spread=0.7, graph_spread=1.0, strength_spread=0.4,
                  placement_prior=prior, caution_prior=prior, placement_variance=4.67)  # fmt: skip
    learning = ReinforceSettings(evals=evals, samples=4, standard_runs=2, entropy=1e-3, value=1.0, rate=rate,
                        graph_rate=0.3, halved_after=200.0, gradient_clip=1.0)  # fmt: skip
    use = Use(placement=flags[0], scheduling=flags[1], elite_bias=flags[2])
    return REGAL(name="regal", task=task(on), cost=cost, encoder=net, seed=0, evolution=EVOLUTION, use=use,
                 heads=heads, learning=learning)  # fmt: skip


def graph(ops: int = 40, seed: int = 0) -> Graph:
    return layered_graph(ops, np.random.default_rng(seed), f"g{ops}_{seed}")


def test_without_actions_it_is_brkga() -> None:
    learner, plain = regal(simulator(), flags=(False, False, False)), Brkga(name="brkga", evolution=EVOLUTION)
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

    def __init__(self) -> None:
        self.name, self.objective = "parted", "runtime"

    def price(self, plans: Plans) -> Prices:
        wanted = wanted_devices(plans.graph)
        return Prices(1.0 + (plans.device != wanted).mean(1), np.zeros(len(plans)))


def wanted_devices(g: Graph) -> NDArray[np.int64]:
    return inputs(g, task()).member_NDX[:, :, MEMBERSHIPS.index("spectral_by_bytes")].argmax(1)


def test_learns_a_proposal_whose_optimum_is_known() -> None:
    """From a uniform start, on graphs that it never saw: its keys put far more ops where they belong."""
    learner = regal(Parted(), prior=0.0, evals=40, rate=3e-3)
    learner.log = learner.log_dict = lambda *args, **options: None  # type: ignore[assignment, method-assign]
    optimizer = learner.configure_optimizers()["optimizer"]
    train, unseen = [graph(40, seed) for seed in range(4)], [graph(60, seed) for seed in range(10, 14)]
    before = np.mean([right(learner, g) for g in unseen])
    for step in range(40):
        loss = learner.training_step(train, step)
        optimizer.zero_grad()
        loss.backward()
        learner.configure_gradient_clipping(optimizer)
        optimizer.step()
    after = np.mean([right(learner, g) for g in unseen])
    assert before < 0.6 and after > 0.75
    assert learner.train_evals == 40 * (40 * 4 * 4 + 0) + 4 * 2 * 40


def right(learner: REGAL, g: Graph) -> float:
    """Share of ops that one draw from the proposal puts where they belong."""
    with torch.no_grad():
        actions = learner.policy.propose(learner.observe([g]), 0).op[0].numpy()
    device = task().realise_keys(g, learner.sampler(g, actions)(np.random.default_rng(0), 200)).device
    return float((device == wanted_devices(g)).mean())


def test_solves_tasks_that_have_none_of_its_keys() -> None:
    learner = regal(simulator("runtime"), on="fusion")
    problem, _ = solve(learner, graph(), task("fusion"), simulator("runtime"), evals=50)
    assert problem.evals == 50 and len(ORDERS) == learner.extra_width(task("fusion"))


def test_rates_fall() -> None:
    made = regal(Parted()).configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    first = [group["lr"] for group in optimizer.param_groups]
    assert first == [1e-3, 0.3]
    for _ in range(200):
        optimizer.step()
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-4, 0.15])


def test_small_graphs_are_answered_on_one_thread_and_the_setting_comes_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with answering(graph()):
            assert torch.get_num_threads() == 1 and not torch.is_grad_enabled()
        assert torch.get_num_threads() == 2 and torch.is_grad_enabled()
    finally:
        torch.set_num_threads(before)
