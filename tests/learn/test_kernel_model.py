"""Learned models of kernels and of runs: what they compute, what teaches them, and that a search by them spends no
evaluations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fusion_graphs import GPU as ROUGH
from fusion_graphs import XLA, random_graph, random_requests
from small_graphs import fit, fusion_on
from test_joint_search import tasks_on

from graphopt.core.errors import ConfigError
from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.utils import registry
from graphopt.costs.one_kernel.kernel_time import kernel_table
from graphopt.costs.one_kernel.learned_kernel import COLUMNS, SCALE
from graphopt.costs.simulator import Simulator
from graphopt.learn.modelling.kernel_model import KernelModel, LastLayer, RunModel, durations
from graphopt.problems.assignment import AssignTask, Pricing
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.placement import Joint
from graphopt.run.config.construct import construct
from graphopt.search.fusion.modelled_scan import ModelledScan, modelled_by, plain_roofline

GPU = Device(
    vector_flops=1e10, contraction_flops=6e10, bandwidth=1e9, launch=1e-6, strided_factor=3.0, reread_factor=0.3,
    saturation=64.0, prologue_factor=1.5, cache_bytes=600.0, cache_speedup=2.0, clock=1e9, cores=4, fpus_per_core=32,
)  # fmt: skip
MACHINE = Machine(name="m", devices=(GPU,))
FUSION, SIMULATOR = fusion_on(MACHINE)


def model(*, plans: int = 9, rate: float = 1e-2, modelled: int = 200, fit: bool = True) -> KernelModel:
    torch.manual_seed(0)
    return KernelModel(name="kernel_model", task=FUSION, cost=SIMULATOR, seed=0, plans=plans, rate=rate, depth=2,
                       modelled=modelled, fit=fit)  # fmt: skip


def priced_by(machine: Machine, graph: Graph, requests: np.ndarray) -> np.ndarray:
    simulator = Simulator(name="s", machine=machine, objective="runtime", threads=1)
    return Pricing(graph, FUSION, simulator).decisions(requests).cost


def requests(graph: Graph, seed: int) -> np.ndarray:
    return random_requests(graph, seed, 20, 0.5)[:, :, None].astype(np.int16) & 1


@pytest.mark.parametrize("seed", range(4))
def test_an_untrained_model_is_a_plain_roofline(seed: int) -> None:
    graph, learner = random_graph(seed, 40), model()
    learned = priced_by(learner.machine, graph, requests(graph, seed))
    plain = priced_by(modelled_by(MACHINE, plain_roofline(GPU)), graph, requests(graph, seed))
    np.testing.assert_allclose(learned, plain, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_prices_are_those_of_the_network_that_was_trained(seed: int) -> None:
    """The compiled network against torch's, kernel by kernel."""
    graph, learner = random_graph(seed, 40), model()
    for part in learner.network.parameters():
        torch.nn.init.normal_(part, std=0.3)
    plan = FUSION.realise(graph, FUSION.initial(graph)[None])
    found = Simulator(name="s", machine=learner.machine, objective="runtime", threads=1).price_and_ends(plan)
    assert found is not None
    root, x = kernel_table(graph, plan.inline[0], learner.machine.devices[0])
    with torch.no_grad():
        out = learner.network(torch.from_numpy(x).float())[:, 0].double().numpy()
    np.testing.assert_allclose(durations(found[1])[root], GPU.launch * np.exp(x[:, 0] / SCALE + out), rtol=1e-4)


def test_durations_by_hand() -> None:
    assert durations(np.array([0.0, 5.0, 2.0, 0.0, 9.0])).tolist() == [0.0, 3.0, 2.0, 0.0, 4.0]


def test_it_learns_a_device_from_few_plans_of_other_graphs() -> None:
    """Prices of random plans of graphs that it never saw: its error is a third of the data sheet's at most."""
    learner = model()
    fit(learner, [random_graph(seed, 60) for seed in range(12)], 300)
    assert learner.train_evals == 12 * 9
    error = {}
    for name, machine in (("plain", modelled_by(MACHINE, plain_roofline(GPU))), ("learned", learner.machine)):
        ratios = [priced_by(machine, g, requests(g, 0)) / priced_by(MACHINE, g, requests(g, 0))
                  for g in (random_graph(seed, 60) for seed in range(100, 106))]  # fmt: skip
        error[name] = np.abs(np.log(np.concatenate(ratios))).mean()
    assert error["learned"] < error["plain"] / 3


def test_kernels_with_an_op_that_is_held_out_teach_nothing() -> None:
    graph = random_graph(1, 40)
    inline = FUSION.realise(graph, FUSION.initial(graph)[None]).inline[0]
    root, x = kernel_table(graph, inline, GPU)
    assert x.shape == (len(root), len(COLUMNS)) and root.tolist() == np.flatnonzero(~inline).tolist()
    held = np.zeros(graph.num_ops, np.bool_)
    held[root[0]] = True
    assert kernel_table(replace(graph, held_out=held), inline, GPU)[0].tolist() == root[1:].tolist()
    assert not len(kernel_table(replace(graph, held_out=np.ones_like(held)), inline, GPU)[0])


def last_layer(graph: Graph, seen: np.ndarray) -> LastLayer:
    """Of an untrained model, after the prices of some decisions."""
    problem = FUSION.open(graph, SIMULATOR, evals=0, seconds=np.inf, seed=0)
    fitted = LastLayer(problem, model().machine)
    for decision, cost in zip(seen, priced_by(MACHINE, graph, seen), strict=True):
        fitted.saw(FUSION.canonical(graph, decision), float(cost))
    return fitted


def test_prices_of_a_graph_teach_the_last_layer_its_kernels() -> None:
    """Differences of plans that it did not see: their errors are half of the data sheet's at most, over six graphs."""
    plain, fitted = [], []
    for seed in range(6):
        graph = random_graph(seed, 60)
        seen, others = (np.stack([FUSION.canonical(graph, one) for one in requests(graph, part)]) for part in (1, 2))
        true = priced_by(MACHINE, graph, others)
        for errors, machine in ((plain, model().machine), (fitted, last_layer(graph, seen).machine())):
            found = priced_by(machine, graph, others)
            errors.append(np.abs((found - found.mean()) - (true - true.mean())).mean())
    assert sum(fitted) < 0.5 * sum(plain)


def test_without_prices_the_last_layer_is_that_of_training() -> None:
    learner = model()
    for part in learner.network.parameters():
        torch.nn.init.normal_(part, std=0.3)
    problem = FUSION.open(random_graph(1, 40), SIMULATOR, evals=0, seconds=np.inf, seed=0)
    assert LastLayer(problem, learner.machine).machine() == learner.machine


def test_the_last_layer_counts_kernels_that_teach_nothing_in_training() -> None:
    graph = random_graph(3, 40)
    held = replace(graph, held_out=np.ones(graph.num_ops, np.bool_))
    seen = requests(graph, 0)
    assert last_layer(held, seen).machine() == last_layer(graph, seen).machine() != model().machine


def test_a_budget_is_spent_better_by_a_model_that_is_fitted_to_it() -> None:
    """20 evaluations of six graphs, untrained, in geometric mean."""
    gain = []
    for seed in range(6):
        graph = random_graph(seed, 80)
        fixed, fitted = (solve(model(fit=fit), graph, FUSION, SIMULATOR, evals=20)[0] for fit in (False, True))
        assert fitted.evals == fitted.distinct == 20
        gain.append(np.log(fixed.best_cost / fitted.best_cost))
    assert np.mean(gain) > 0.005


def test_the_search_ends_where_the_model_is_best() -> None:
    """With a model that is the machine's own, the answer without evaluations is as good as a search with them."""
    graph = random_graph(9, 60)
    task, simulator = fusion_on(Machine(name="m", devices=(replace(plain_roofline(GPU), name="ideal"),)))
    algo = ModelledScan(name="roofline_scan", model="roofline", depth=2, modelled=400)
    without, _ = solve(algo, graph, task, simulator, evals=0)
    searched, _ = solve(algo, graph, task, simulator, evals=400)
    assert without.best_cost < without.initial_cost and without.best_cost == pytest.approx(searched.best_cost, rel=0.02)


def test_xla_models_what_says_its_clock() -> None:
    algo = ModelledScan(name="modelled_scan", model="xla_gpu", depth=2, modelled=50)
    assert solve(algo, random_graph(2, 30), FUSION, SIMULATOR, evals=0)[0].best_cost < np.inf
    silent, _ = fusion_on(modelled_by(MACHINE, replace(GPU, clock=0.0)))
    with pytest.raises(ConfigError, match=r"needs clock, cores and fpus_per_core .* choose algo\.model=roofline"):
        solve(algo, random_graph(2, 30), silent, SIMULATOR, evals=0)


def test_nobody_writes_a_learned_device() -> None:
    with pytest.raises(ValueError, match="learned kernels are what algo=kernel_model makes"):
        Machine(name="m", devices=(replace(XLA, fusion_model="learned"),))


# ---- runs on several devices

LIMITS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}
PLAIN_TWO = Machine(
    name="two", devices=(plain_roofline(ROUGH), plain_roofline(ROUGH)), link_bandwidth=12e9, link_latency=1e-5
)
TWO = Machine(name="two", devices=(ROUGH, ROUGH), link_bandwidth=12e9, link_latency=1e-5)


def run_model(task: AssignTask, cost: Simulator, modelled: int = 60, caution: float = 1.0) -> RunModel:
    torch.manual_seed(0)
    changed = {"modelled": modelled, "plans": 4, "caution": caution}
    node = registry.option("algo", "run_model") | changed
    made: RunModel = construct(node, "algo", {"task": task, "cost": cost, "seed": 0})
    return made.eval()


def test_untrained_it_is_the_price_where_kernels_are_rooflines() -> None:
    """So its answer without evaluations is what the same search finds with as many."""
    graph, cost = random_graph(7, 40), Simulator(name="s", machine=PLAIN_TWO, objective="runtime", threads=1)
    for task in tasks_on(PLAIN_TWO):
        made = run_model(task, cost)
        answer, _ = solve(made, graph, task, cost, evals=0)
        searched, _ = solve(made.search, graph, task, cost, evals=60)
        assert answer.best_cost == pytest.approx(searched.best_cost, rel=1e-6), task.name
        assert answer.evals == 0


def test_a_budget_begins_with_the_answer() -> None:
    graph, cost = random_graph(7, 40), Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    task = Joint(name="joint", machine=TWO, levels=8, fuse=True, **LIMITS)
    made = run_model(task, cost)
    answer, _ = solve(made, graph, task, cost, evals=0)
    one, _ = solve(made, graph, task, cost, evals=1)
    many, _ = solve(made, graph, task, cost, evals=40)
    assert one.evals == 1 and one.best_cost == min(answer.best_cost, one.initial_cost)
    assert many.evals == 40 and many.best_cost <= one.best_cost


def test_links_are_taken_for_slower_with_caution() -> None:
    cost = Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    task = Joint(name="joint", machine=TWO, levels=8, fuse=True, **LIMITS)
    seen = run_model(task, cost, caution=4.0).machine
    assert np.allclose(seen.link_latency_DD, 4e-5) and np.allclose(seen.link_bandwidth_DD, 3e9)
    assert [device.fusion_model for device in seen.devices] == ["learned", "learned"]


def test_it_learns_the_kernels_of_every_task_from_fusions_on_one_device() -> None:
    cost = Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    task = Joint(name="joint", machine=TWO, levels=8, fuse=True, **LIMITS)
    made, graphs = run_model(task, cost), [random_graph(seed, 60) for seed in range(4)]
    plans = task.realise(graphs[0], task.initial(graphs[0])[None])
    price = float(cost.price(plans).cost[0])

    def error() -> float:
        seen = Simulator(name="m", machine=made.machine, objective="runtime", threads=1)
        return abs(float(np.log(seen.price(plans).cost[0] / price)))

    before = error()
    fit(made, graphs, 150)
    assert made.train_evals == 4 * len(graphs) and error() < 0.3 * before
