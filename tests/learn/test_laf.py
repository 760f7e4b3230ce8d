"""LAF: labels by hand, what its guide picks, what it spends, and that it learns which ops matter."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fusion_graphs import GPU, RICH, random_graph
from small_graphs import fit, fusion_on
from torch import nn
from toy import ToyCost, ToyTask, toy_graph, toy_problem

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision
from graphopt.core.utils import registry
from graphopt.learn.advantages import Collection, ExampleSet, Samples, SampleSet, advantages, compressed
from graphopt.learn.laf import LAF, Guidance, LAFSearchSettings, LearnedMutations, Model, Refit, RegressionSettings
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import solve
from graphopt.run.config.build import encoder
from graphopt.search.walks.local import ProgressiveSearch, Steps, mutated
from graphopt.search.walks.moves import slots_in, slots_of

MACHINE = Machine(name="m", devices=(GPU,))
FUSION, SIMULATOR = fusion_on(MACHINE)
STEPS = Steps(start="initial", hops=1, change=0.5, centre="changed")
GUIDE = Guidance(top=20.0, refresh=4, order="magnitude", fresh=False)
MODEL = Model(target="magnitude")
NO_REFIT = Refit(every=0, steps=1, rate=1e-2)
LEARNING = RegressionSettings(
    transform="log", priority=0.9, important=0.1, least_labels=1, rate=3e-3, gradient_clip=1.0
)


def laf(task: AssignTask = FUSION, cost: CostModel = SIMULATOR, *, folder: Path | None = None, steps: Steps = STEPS,
        guide: Guidance = GUIDE, refit: Refit = NO_REFIT, model: Model = MODEL,
        **learning: Any) -> LAF:  # fmt: skip
    node = registry.option("encoder", "graphsage") | {"width": 32, "layers": 2}
    net = encoder({"algo": registry.option("algo", "laf"), "encoder": node, "seed": 0}, task)
    collection = Collection(folder=str(folder), chains=["initial", "random"], sweeps=3, temperature=1.0, slots=1000,
                            surveys=True, workers=1)  # fmt: skip
    return LAF(name="laf", task=task, cost=cost, encoder=net, seed=0, model=model, collection=collection,
               learning=replace(LEARNING, **learning),
               search=LAFSearchSettings(steps=steps, guide=guide, refit=refit))  # fmt: skip


def trace(problem: AssignProblem) -> list[tuple[int, float]]:
    return [(step.evals, step.cost) for step in problem.trace]


# ---- labels


def samples(price: list[list[float]]) -> Samples:
    none = np.zeros(0, np.int32)
    rows = np.arange(len(price), dtype=np.int32)
    return Samples(np.zeros((len(price), 1), np.int16), rows, np.array(price), none, none, none.astype(np.int16), 0)


def test_advantages_and_their_transform_by_hand() -> None:
    """f is counted from the first choice; sigma is the median of 1, 2 and 5, without the 0."""
    price = np.array([[4.0, 5.0], [4.0, 2.0], [9.0, 4.0], [3.0, 3.0]])
    np.testing.assert_array_equal(advantages(price), [[0, 1], [0, -2], [0, -5], [0, 0]])
    examples = ExampleSet([samples(price.tolist())], 0.25, 1)
    assert examples.sigma == 2.0
    expected = np.array([np.log(1.5), -np.log(2.0), -np.log(3.5), 0.0])
    np.testing.assert_allclose(compressed(advantages(price), examples.sigma)[:, 1], expected)


def test_infinite_prices_are_no_labels() -> None:
    found = advantages(np.array([[1.0, np.inf, 3.0], [np.inf, 1.0, 2.0], [1.0, 2.0, np.nan]]))
    np.testing.assert_array_equal(np.isnan(found), [[False, True, False], [True] * 3, [False, False, True]])


def test_how_often_samples_are_drawn_by_hand() -> None:
    """Two graphs, ten samples, two of them (-5 and 9) the largest tenth of their graph: nine draws of ten are these,
    the tenth is any of the ten."""
    one = ExampleSet([samples([[4.0, 5.0], [4.0, 2.0], [9.0, 4.0], [3.0, 3.0]])], 0.25, 1)
    moving = replace(samples([[0.0, 9.0], *[[0.0, 1.0]] * 5]), changed_at=np.array([1], np.int32),
                     changed_entry=np.array([1], np.int32), changed_to=np.array([1], np.int16))  # fmt: skip
    both = SampleSet({"one": one, "two": ExampleSet([moving], 0.1, 1)}, 0.9)
    assert both.decisions == [("one", 0), ("two", 0), ("two", 1)]
    large, small = 0.9 / 2 + 0.1 / 10, 0.1 / 10
    np.testing.assert_allclose(both.probability(one.at(0))[:, 1], [small, small, large, small])
    rng, drawn = np.random.default_rng(0), [0.0, 0.0, 0.0]
    for _ in range(3000):
        key, example, share = both.draw(rng)
        drawn[0 if key == "one" else 1 if len(example.row) == 2 else 2] += 1 / 3000
        assert share.sum() == pytest.approx(1.0) and (share[:, 0] == 0).all()
    assert drawn == pytest.approx([large + 3 * small, large + small, 4 * small], abs=0.03)
    np.testing.assert_allclose(SampleSet({"one": one}, None).draw(rng)[2][:, 1], [0.25] * 4)


def test_the_ablations_change_labels_only() -> None:
    graph, task, price = toy_graph(2), ToyTask({"inline": 2}), [[4.0, 5.0], [4.0, 1.0]]
    found = {}
    for name, changes in {"signed": {"model": Model(target="signed")}, "raw": {"transform": "none"}}.items():
        learner = laf(task, ToyCost(graph, 2), **changes)
        learner._examples[graph.hash] = ExampleSet([samples(price)], 0.5, 1)
        found[name] = learner.labels(graph, learner._examples[graph.hash].at(0))[:, 1]
    np.testing.assert_allclose(found["signed"], [np.log1p(1 / 2), -np.log1p(3 / 2)], rtol=1e-6)
    np.testing.assert_allclose(found["raw"], [1.0, 3.0])


def test_decisions_with_few_labels_are_drawn_only_where_there_are_no_others() -> None:
    price = np.ones((6, 2))
    moving = replace(samples(price.tolist()), changed_at=np.array([0, 1], np.int32),
                     changed_entry=np.array([0, 3], np.int32), changed_to=np.array([1, 1], np.int16))  # fmt: skip
    assert ExampleSet([moving], 0.1, 1).moments == [(0, 0, 1), (0, 1, 2), (0, 2, 6)]
    assert ExampleSet([moving], 0.1, 3).moments == [(0, 2, 6)]
    assert len(ExampleSet([moving], 0.1, 9).moments) == 3
    example = ExampleSet([moving], 0.1, 3).at(0)
    assert example.decision[:, 0].tolist() == [1, 0, 0, 1, 0, 0] and example.row.tolist() == [2, 3, 4, 5]


# ---- the guide


def guide_of(problem: AssignProblem, f: np.ndarray, **changes: Any) -> LearnedMutations:
    """A guide by fixed predictions f [N, K] of a one-head task."""

    def predict(network: nn.Module, graph: Graph, decision: Decision) -> torch.Tensor:
        return torch.from_numpy(f[:, None, :].copy())

    return LearnedMutations(
        problem, slots_of(problem), nn.Identity(), predict, True, replace(GUIDE, **changes), NO_REFIT
    )


def test_picks_are_uniform_among_the_top_per_cent() -> None:
    problem, _ = toy_problem(10, {"inline": 2}, 10)
    f = np.stack([np.zeros(10), np.array([0.1, -9.0, 0.2, 8.0, 0, 0, 0, 0, 0, 0])], 1)
    guide = guide_of(problem, f)
    counts = np.bincount([guide.pick(problem.initial)[0] for _ in range(400)], minlength=10)
    assert set(np.flatnonzero(counts)) == {1, 3} and counts[1] == pytest.approx(200, abs=45)


def test_gains_look_at_the_sign_and_at_the_present_choice() -> None:
    problem, _ = toy_problem(6, {"device": 3}, 10)
    f = np.zeros((6, 3))
    f[0], f[1], f[2] = [0, 9, 9], [0, -1, -3], [0, -2, 5]
    decision = problem.initial.copy()
    decision[2] = 2
    guide = guide_of(problem, f, order="gain", top=1.0)
    assert guide.pick(decision) == (2, 1)  # from 5 to -2
    assert guide_of(problem, f, order="gain", top=1.0).pick(problem.initial) == (1, 2)


def test_fresh_picks_come_back_when_a_neighbour_has_changed() -> None:
    problem, _ = toy_problem(8, {"inline": 2}, 10)
    guide = guide_of(problem, np.stack([np.zeros(8), np.arange(8.0)], 1), fresh=True, top=1.0, refresh=1)
    picks = []
    for _ in range(3):
        picks.append(guide.pick(problem.initial)[0])
        guide.learn(problem.initial, picks[-1], 1, 1.0, False)
    assert picks == [7, 6, 5]
    ptr, reads = problem.graph.predecessors
    assert 7 not in reads[ptr[4] : ptr[5]]
    guide.learn(problem.initial, 5, 1, -1.0, True)
    near = {*reads[ptr[5] : ptr[6]].tolist()}
    ptr, read_by = problem.graph.successors
    near |= {*read_by[ptr[5] : ptr[6]].tolist()}
    assert guide.pick(problem.initial)[0] == max(near | {4} - {5})


def test_with_a_constant_model_the_search_is_the_unguided_one() -> None:
    graph = random_graph(9, 60)
    for hops, start, centre in ((0, "initial", "changed"), (1, "random", "free")):
        steps = Steps(start=start, hops=hops, change=0.5, centre=centre)  # type: ignore[arg-type]
        learner = laf(steps=steps).eval()
        nn.init.zeros_(learner.network.head[-1].weight)
        guided, _ = solve(learner, graph, FUSION, SIMULATOR, evals=150, seed=5)
        uniform, _ = solve(ProgressiveSearch(name="u", steps=steps), graph, FUSION, SIMULATOR, evals=150, seed=5)
        assert trace(guided) == trace(uniform) and np.array_equal(guided.best, uniform.best)


@pytest.mark.parametrize(("target", "order", "expected"), [("magnitude", "magnitude", {0, 1, 2, 3}),
                                                         ("signed", "gain", {2, 3})])  # fmt: skip
def test_refitting_learns_what_the_search_has_seen(target: Any, order: Any, expected: set[int]) -> None:
    """Of 40 ops only 0 to 3 change the cost, 0 and 1 for the worse; the model knows nothing at first."""
    graph, task = toy_graph(40), ToyTask({"inline": 2})
    change = np.zeros(40)
    change[:4] = 1.0, 1.0, -1.0, -1.0
    guidance = replace(GUIDE, top=100.0 * len(expected) / 40, order=order)
    learner = laf(task, ToyCost(graph, 2), guide=guidance, refit=Refit(every=40, steps=60, rate=1e-2),
                  model=Model(target=target)).eval()  # fmt: skip
    problem = AssignProblem(graph, task, learner.cost, evals=0)
    guide = LearnedMutations(
        problem, slots_of(problem), learner.network, lambda n, g, d: learner.predict(n, [g], [d]),
        target == "signed", guidance, learner.search.refit,
    )  # fmt: skip
    for slot in range(40):
        guide.learn(problem.initial, slot, 1, float(change[slot]), False)
    assert {guide.pick(problem.initial)[0] for _ in range(100)} == expected


def test_a_free_centre_changes_only_where_nothing_else_does() -> None:
    problem = AssignProblem(random_graph(9, 60), FUSION, SIMULATOR, evals=10, seed=3)
    slots = slots_of(problem)
    free = replace(STEPS, hops=2, change=0.2, centre="free")
    for steps, kept in ((free, True), (replace(free, centre="changed"), False), (replace(free, change=0.0), False)):
        made = [mutated(problem, slots, problem.initial, 5, None, steps) for _ in range(200)]
        op, head = slots.op[5], slots.head[5]
        assert all((candidate != problem.initial).any() for candidate in made)
        assert any(candidate[op, head] == problem.initial[op, head] for candidate in made) == kept


# ---- learning


@cache
def example_graph() -> Graph:
    return random_graph(12, 120)


@pytest.mark.parametrize("target", ["magnitude", "signed"])
def test_a_model_that_overfits_one_graph_ranks_its_ops(tmp_path: Path, target: Any) -> None:
    task, cost = fusion_on(Machine(name="rich", devices=(RICH,)))
    model = Model(target=target)
    graph, learner = example_graph(), laf(task, cost, folder=tmp_path, model=model, priority=0.5, least_labels=20)
    learner.prepare_training([graph])
    unskilled = float(np.mean(learner.validation_values(graph)))
    fit(learner, [graph], 400)
    assert float(np.mean(learner.validation_values(graph))) > 0.8 > 0.4 > abs(unskilled)


def test_a_model_that_tells_no_ops_apart_has_no_skill(tmp_path: Path) -> None:
    graph, learner = example_graph(), laf(folder=tmp_path)
    nn.init.zeros_(learner.network.head[-1].weight)
    assert learner.validation_values(graph) == []  # which validation counts as 0


def test_ops_that_are_held_out_teach_nothing(tmp_path: Path) -> None:
    graph = example_graph()
    op = slots_in(FUSION, graph).op
    held = replace(graph, held_out=np.isin(np.arange(graph.num_ops), op[::2]))
    learner = laf(folder=tmp_path)
    learner.prepare_training([held])
    for _ in range(20):
        _, example, share = learner._samples.draw(np.random.default_rng(0))
        assert (share[~held.train_mask[op[example.row]]] == 0).all() and share.sum() == pytest.approx(1.0)


def test_without_surveys_only_visits_teach_and_surveys_validate(tmp_path: Path) -> None:
    graph, learner = example_graph(), laf(folder=tmp_path)
    learner.collection = replace(learner.collection, surveys=False)
    learner.prepare_training([graph])
    slots = len(slots_in(FUSION, graph))
    assert learner._samples.each * 0.9 == pytest.approx(0.09 / (2 * 3 * slots))  # 2 chains of 3 sweeps
    assert learner.train_evals == 2 * (slots + 3 * slots)
    unseen = random_graph(13, 60)
    learner.validation_values(unseen)
    assert [last - first for _, first, last in learner._examples[unseen.hash].moments] == [
        len(slots_in(FUSION, unseen))
    ] * 2


def test_predictions_are_asked_for_when_the_decision_has_changed() -> None:
    problem, _ = toy_problem(8, {"inline": 2}, 10)
    asked = []

    def predict(network: nn.Module, graph: Graph, decision: Decision) -> torch.Tensor:
        asked.append(decision[:, 0].tolist())
        return torch.zeros(8, 1, 2)

    guide = LearnedMutations(
        problem, slots_of(problem), nn.Identity(), predict, True, replace(GUIDE, refresh=1), NO_REFIT
    )
    other = problem.initial.copy()
    other[3] = 1
    for decision in (problem.initial, problem.initial, other, other, other):
        guide.pick(decision)
    assert asked == [problem.initial[:, 0].tolist(), other[:, 0].tolist()]


def test_collecting_is_training_cost_and_is_counted_once(tmp_path: Path) -> None:
    graph, learner = example_graph(), laf(folder=tmp_path)
    learner.prepare_training([graph])
    slots = len(slots_in(FUSION, graph))
    assert learner.train_evals == 2 * (slots + 3 * 2 * slots)
    again = laf(folder=tmp_path)
    again.train_steps, again.train_evals = 4, learner.train_evals  # as a checkpoint restores them
    again.prepare_training([graph])
    assert again.train_evals == learner.train_evals
