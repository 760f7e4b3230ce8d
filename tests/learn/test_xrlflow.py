"""X-RLflow: the policy does not depend on the order of candidates, what it says of a program drawn in part is what it
says of the whole, and it learns where an additive model misleads."""

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from graphopt.core.errors import ConfigError
from graphopt.core.utils import registry
from graphopt.learn.rewriters.xrlflow import (
    NetworkSizes,
    Transition,
    XRLflow,
    XRLflowPolicy,
    _divergence,
    advantages,
    play,
)
from graphopt.problems.problem import OutOfBudget, Solution
from graphopt.rewrite.environment.episodes import Episode, EpisodeSettings, Game, Place
from graphopt.rewrite.environment.meta_graph import MetaGraph
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.models import build_model
from graphopt.rewrite.program_cost import Flops, ProgramCost
from graphopt.rewrite.rewrite_problem import Rewriting
from graphopt.run.config.construct import construct

MACHINE = construct(registry.option("machine", "gpu2"), "machine")
FLOPS = Flops(name="flops", machine=MACHINE)
TASK: Rewriting = construct(registry.option("task", "rewrite"), "task", {"machine": MACHINE})
SETTINGS = EpisodeSettings(cap=64, horizon=6, measure_every=2, reward="measured", between="proxy", bonus=0.1, waves=0)
SQUEEZENET = {"size": 32, "channels": 8, "classes": 10}


class Contrary(ProgramCost):
    """What the roofline saves, this makes dearer; only without a transpose is a program cheap. No sum over ops is
    known."""

    name, objective = "contrary", "runtime"

    def price_program(self, program: Program) -> float:
        operators = [program.terms.operation[term].name for term in program.live()]
        return 2.0 - 1e3 * FLOPS.price_program(program) + 0.5 * operators.count("transpose")


class Measured(Contrary):
    """The same, with finalists."""

    deterministic = False


def encoder_of(name: str, layers: int = 3) -> Any:
    torch.manual_seed(1)
    return construct(registry.option("encoder", name) | {"width": 8, "layers": layers}, "encoder", {"extra_width": 0})


def policy_of(head: str = "each", cap: int = 64, encoder: Any = None, **changes: Any) -> XRLflowPolicy:
    torch.manual_seed(1)
    sizes = {"width": 8, "layers": 3, "graph": 4, "head": head, "sizes": True, "prior": 0.0, **changes}
    made = XRLflowPolicy(NetworkSizes(**sizes), cap, encoder=encoder)
    for weight in made.parameters():  # the last layers begin near zero
        torch.nn.init.normal_(weight, std=0.5) if weight.ndim else None
    return made


def place_of(hops: int | None, seed: int = 0) -> Place:
    problem = TASK.open(graph_of(build_model("squeezenet", SQUEEZENET), name="s"), FLOPS, evals=10**6)
    episode = Episode(Game(problem, FLOPS.term_price(problem.terms), SETTINGS, hops), np.random.default_rng(seed))
    for action in (3, 1, 2):
        episode.step(action)
    return episode.place


def reordered(seen: MetaGraph, order: list[int]) -> MetaGraph:
    """Candidates in another order. order: old place of each graph."""
    nodes = np.concatenate([np.flatnonzero(seen.graph == graph) for graph in order])
    new_node, new_graph = np.argsort(nodes), np.argsort(order)
    hidden = np.stack([new_graph[seen.hidden[0]], new_node[seen.hidden[1]]])
    return MetaGraph(seen.kind[nodes], seen.sizes[nodes], new_node[seen.edges], seen.dims, new_graph[seen.graph[nodes]],
                     hidden, seen.totals[order])  # fmt: skip


def test_scores_go_with_candidates() -> None:
    seen, policy = place_of(3).graphs, policy_of()
    order = [0, *(1 + np.random.default_rng(0).permutation(len(seen) - 1)).tolist()]
    log, value = policy([seen])
    mixed, same = policy([reordered(seen, order)])
    torch.testing.assert_close(mixed[0], log[0][order], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(same, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("head", "encoder"), [("each", ""), ("flat", ""), ("each", "gat"), ("flat", "graphsage"), ("flat", "gin")]
)
def test_a_part_says_what_the_whole_says(head: str, encoder: str) -> None:
    """Candidates drawn as far as the layers reach, and whole."""
    policy = policy_of(head, encoder=encoder_of(encoder) if encoder else None).double()
    near, whole = (policy([_double(place_of(hops).graphs)]) for hops in (3, None))
    for one, other in zip(near, whole):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def _double(seen: MetaGraph) -> MetaGraph:
    return replace(seen, sizes=seen.sizes.astype(float), dims=seen.dims.astype(float), totals=seen.totals.astype(float))


def test_several_states_are_each_as_alone() -> None:
    policy, several = policy_of(), [place_of(3, seed).graphs for seed in range(2)] + [place_of(None).graphs]
    log, value = policy(several)
    for i, one in enumerate(several):
        alone, own = policy([one])
        torch.testing.assert_close(log[i, : len(one)], alone[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(value[i : i + 1], own, rtol=1e-4, atol=1e-4)


def test_advantages_by_hand() -> None:
    steps = [Transition(None, 0, 0.0, value, reward) for value, reward in ((1.0, 2.0), (3.0, 4.0))]  # type: ignore[arg-type]
    steps[0].follows, steps[1].over = 3.0, True
    last = 4.0 - 3.0
    first = 2.0 + 0.5 * 3.0 - 1.0 + 0.5 * 0.8 * last
    assert advantages(steps, 0.5, 0.8) == pytest.approx([first, last])
    steps[1].over, steps[1].follows = False, 10.0  # cut off by the horizon
    assert advantages(steps, 0.5, 0.8)[1] == pytest.approx(4.0 + 0.5 * 10.0 - 3.0)


def learner(cost: ProgramCost, **changes: dict[str, Any]) -> XRLflow:
    torch.manual_seed(0)
    node = registry.option("algo", "xrlflow")
    small: dict[str, dict[str, Any]] = {
        "episode": {"cap": 64, "horizon": 3, "measure_every": 1}, "network": {"width": 16, "layers": 2, "graph": 8},
        "learning": {"episodes": 8, "rate": 3e-3}, "search": {"adapt": True, "measure_every": 1},
    }  # fmt: skip
    for part in node.keys() & (small.keys() | changes.keys()):
        node[part] = node[part] | small.get(part, {}) | changes.get(part, {})
    around = {"machine": MACHINE, "task": TASK, "cost": cost, "seed": 0, "encoder": encoder_of("graphsage")}
    made = construct(node, "algo", around)
    assert isinstance(made, XRLflow)
    return made


def published(cost: ProgramCost, **changes: Any) -> XRLflow:
    node = registry.option("algo", "xrlflow_paper")
    node["episode"] |= {"cap": 64}
    around = {"machine": MACHINE, "task": TASK, "cost": cost, "seed": 0, "encoder": encoder_of("graphsage")} | changes
    made = construct(node | {key: around.pop(key) for key in node.keys() & changes.keys()}, "algo", around)
    assert isinstance(made, XRLflow)
    return made


def two_products() -> Program:
    b = ProgramBuilder()
    x = b.input((64, 64))
    return b.build(b.linear(x, 32), b.linear(x, 96))


def solved(algo: XRLflow, cost: ProgramCost, evals: int, seed: int = 0) -> Any:
    problem = TASK.open(graph_of(two_products(), name="two"), cost, evals=evals, seed=seed)
    with suppress(OutOfBudget):
        algo.solve(problem)
    return problem


def test_the_likeliest_steps_without_a_budget_are_the_additive_models() -> None:
    """Two products of one input are put together."""
    problem = solved(learner(FLOPS, network={"prior": 5.0}), FLOPS, 0)
    solution = problem.solution()
    assert isinstance(solution, Solution) and problem.evals == 0
    assert solution.price(FLOPS).cost < problem.initial_cost


def test_it_learns_to_leave_alone_what_the_additive_model_praises() -> None:
    """Every gain of the roofline is a loss; the rewards of learned episodes are above those of the first ones."""
    cost, algo = Contrary(), learner(Contrary(), network={"prior": 0.0}, learning={"entropy": 0.001})
    game = algo._training_game(graph_of(two_products(), name="two"))
    rng, optimizer = np.random.default_rng(0), torch.optim.Adam(algo.policy.parameters(), lr=5e-3)
    earned = []
    for update in range(14):
        with torch.no_grad():
            played = play(algo.policy, [Episode(game, rng) for _ in range(12)], rng)
        earned.append(float(np.mean([sum(step.reward for step in steps) for steps in played])))
        algo.improve(algo.policy, optimizer, played, update, rng)
    assert cost.price_program(two_products()) < 2.0
    assert np.mean(earned[-3:]) > np.mean(earned[:2]) and np.mean(earned[-3:]) > -0.5


class Squared(Flops):
    """Two small ops cost less than a large one: what the roofline saves by joining them is lost."""

    def op_seconds(self, operation: Any, inputs: Any, results: Any) -> float:
        return float(sum(math.prod(one.shape) for one in results)) ** 2


def test_what_actions_save_is_what_their_programs_cost_less() -> None:
    problem = TASK.open(graph_of(build_model("squeezenet", SQUEEZENET), name="s"), FLOPS, evals=1000)
    place = learner(FLOPS).game(problem, replace(SETTINGS, waves=2)).start(np.random.default_rng(0))
    saved = place.saved()
    assert saved is not None and len(saved) == place.actions and saved[0] == 0.0 and saved.max() > 1.0
    for action in (1, len(saved) // 2, len(saved) - 1):
        point = problem.take(place.point, place.steps[action - 1])
        cost = FLOPS.price_program(problem.initial.with_outputs(point.outputs))
        assert saved[action] == pytest.approx(100 * (1 - cost / problem.initial_cost), abs=1e-3)


def test_where_nothing_adds_up_what_was_priced_is_known() -> None:
    game = learner(Contrary()).game(TASK.open(graph_of(two_products(), name="two"), Contrary(), evals=9), SETTINGS)
    place = game.start(np.random.default_rng(0))
    assert place.saved() is None
    point = game.problem.take(place.point, place.steps[0])
    price = game.prices([point])[0]
    saved = place.saved()
    assert saved is not None and np.isnan(saved).sum() == len(saved) - 2 and saved[0] == 0.0
    assert saved[1] == pytest.approx(100 * (1 - price / game.problem.initial_cost), rel=1e-4)


def test_an_action_is_worth_what_walks_have_come_to_from_it() -> None:
    """Not what the next program costs, which here is dearer than the last one."""
    graph = graph_of(build_model("squeezenet", SQUEEZENET), name="s")
    settings = replace(SETTINGS, horizon=3, measure_every=1)
    game = learner(Contrary()).game(TASK.open(graph, Contrary(), evals=99), settings)
    for seed in range(20):
        episode = Episode(game, np.random.default_rng(seed))
        before, action, prices = episode.place, seed % 5 + 1, list[float]()
        while not episode.over:
            prices.append(episode.step(min(action if not prices else 1, episode.place.actions - 1)).price)
        saved = before.saved()
        assert saved is not None and saved[0] == 0.0
        best = 100 * (1 - min(prices) / game.problem.initial_cost)
        assert saved[action] >= best - 1e-3 and game.known(before.steps[action - 1].digest) == prices[0]
        if prices[0] > min(prices):
            return
    pytest.fail("no walk has come to something cheaper than its first step")


def test_what_is_not_known_teaches_as_one_action() -> None:
    log_A = torch.log_softmax(torch.tensor([0.0, 1.0, 2.0, 3.0, -1e9]), 0)  # the last one has no slot
    told = np.array([0.0, 1.0, -1.0, 2.0], dtype=np.float32)
    wanted = torch.log_softmax(torch.from_numpy(told) / 0.5, 0)
    assert _divergence(told, log_A, 0.5) == pytest.approx(float((wanted.exp() * (wanted - log_A[:4])).sum()), rel=1e-5)
    told[2:] = np.nan
    wanted = torch.log_softmax(torch.tensor([0.0, 1.0, 0.0]), 0)
    own = torch.stack([log_A[0], log_A[1], log_A[2:].logsumexp(0)])
    assert _divergence(told, log_A, 1.0) == pytest.approx(float((wanted.exp() * (wanted - own)).sum()), rel=1e-5)
    told[0] = np.nan  # then nothing is compared with the one action that is known
    assert _divergence(told, log_A, 1.0) == 0.0


def test_imitation_teaches_what_ops_cost_where_the_roofline_misleads() -> None:
    """The policy sees the roofline's gains, all of them losses; it is taught by the costs themselves."""
    cost = Squared(name="squared", machine=MACHINE)
    algo = learner(cost, learning={"imitation": 1.0, "imitation_temperature": 1.0}, network={"prior": 0.1})
    algo.additive = "roofline"
    game = algo._training_game(graph_of(two_products(), name="two"))
    place = game.start(np.random.default_rng(0))
    saved = place.saved()
    assert saved is not None and saved.max() == 0.0 > saved.min() and place.totals[:, 0].max() > 0.0
    optimizer = torch.optim.Adam(algo.policy.parameters(), lr=5e-3)

    def lost() -> float:
        return float(-(algo.policy([place.graphs])[0][0].exp().detach().numpy() * saved).sum())

    before = lost()
    for update in range(6):
        with torch.no_grad():
            played = play(algo.policy, [Episode(game, algo._random) for _ in range(6)], algo._random, savings=True)
        said = algo.improve(algo.policy, optimizer, played, update, algo._random)
    assert lost() < before / 3 and said["losses/imitation"] < 1.0


def test_a_solve_begins_with_what_the_additive_search_leaves() -> None:
    """And goes on from the cheapest of that; all of it billed."""
    algo = learner(Measured(), search={"opening": 0.5, "starts": 2, "adapt": False})
    problem = solved(algo, Measured(), 8)
    assert problem.evals <= 8 and problem.finalists is not None
    first = problem.finalists.states[0]
    problem.take_best(first)
    assert problem.solution().price(FLOPS).cost < FLOPS.price_program(two_products())


def test_what_is_pinned_stays_among_the_finalists() -> None:
    """Contrary calls the additive model's best program dear; it is raced all the same."""
    algo = learner(Measured(), search={"opening": 0.5})
    game = algo.game(TASK.open(graph_of(two_products(), name="two"), Measured(), evals=50), SETTINGS)
    algo._open(game, 3)
    finalists = game.problem.finalists
    assert finalists is not None
    pinned = finalists.states[:2]  # TASO's and Tensat's
    for cost in range(10):
        finalists.offer(np.array([1e-3 * cost]), [cost], lambda i: ((), ()))
    assert finalists.states[:2] == pinned and len(finalists.states) == 8


def test_episodes_begin_from_the_cheapest_programs() -> None:
    algo = learner(FLOPS)
    game = algo.game(TASK.open(graph_of(two_products(), name="two"), FLOPS, evals=50), SETTINGS)
    algo._open(game, 3)
    best, *_ = game.cheapest(2)
    assert best.cost == game.problem.best_cost < game.problem.initial_cost
    assert Episode(game, np.random.default_rng(0), best).place.point == best
    assert [point.cost for point in game.cheapest(9)] == sorted({point.cost for point in game._priced})


def test_the_published_policy_knows_nothing_but_nodes() -> None:
    """What was priced, or what an additive model says, changes nothing, nor do candidates beyond their nodes."""
    seen, policy = place_of(5).graphs, published(Measured()).policy
    for weight in policy.parameters():
        torch.nn.init.normal_(weight, std=0.1) if weight.ndim else None
    log, value = policy([seen])
    other = replace(seen, totals=seen.totals + 1)
    torch.testing.assert_close(policy([other])[0], log)
    torch.testing.assert_close(policy([other])[1], value)
    policy.totals = True
    assert not torch.allclose(policy([other])[0], log)


def test_the_published_search_prices_ends_of_sampled_episodes() -> None:
    """Without a budget it samples one episode; the untrained policy is next to uniform."""
    algo = published(FLOPS)
    problem = solved(algo, FLOPS, 8)
    assert algo.sampled and 1 < problem.evals <= 8 and problem.best_cost <= problem.initial_cost
    answers = {algo_answer.best for algo_answer in (solved(algo, FLOPS, 0, seed) for seed in range(8))}
    assert len(answers) > 1


@pytest.mark.parametrize("encoder", ["gat", "graphsage", "gin"])
def test_the_published_learner_learns_one_program_with_any_encoder(encoder: str) -> None:
    """Two products of one input are put together, by nearly all episodes after twelve updates."""
    algo = published(FLOPS, encoder=encoder_of(encoder, 2), encoded=True)
    game = algo._training_game(graph_of(two_products(), name="two"))
    rng, optimizer = np.random.default_rng(0), torch.optim.Adam(algo.policy.parameters(), lr=3e-3)
    earned, first = [], [one.clone() for one in algo.policy.programs.attention.parameters()]
    for update in range(12):
        with torch.no_grad():
            played = play(algo.policy, [Episode(game, rng) for _ in range(12)], rng)
        earned.append(float(np.mean([sum(step.reward for step in steps) for steps in played])))
        algo.improve(algo.policy, optimizer, played, update, rng)
    assert np.mean(earned[-3:]) > np.mean(earned[:2]) + 10
    moved = (not torch.equal(one, other) for one, other in zip(algo.policy.programs.attention.parameters(), first))
    assert sum(moved) >= len(first) / 3  # what reads backwards has nothing to read


def test_only_encoders_of_convolutions_stand_in() -> None:
    node = registry.option("encoder", "message_passing")
    with pytest.raises(ConfigError, match="gat, graphsage, gin or pyg"):
        published(FLOPS, encoder=construct(node, "encoder", {"extra_width": 0}), encoded=True)
