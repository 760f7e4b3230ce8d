"""Rewriting as a decision process: states drawn from changes are the programs themselves, rewards sum up to prices."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graphopt.core.utils import registry
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.environment.episodes import STOP, Episode, EpisodeSettings, Game, step_together
from graphopt.rewrite.environment.meta_graph import DIMS, KINDS, SIZES, MetaGraph
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.terms import Program, renewed
from graphopt.rewrite.models import build_model
from graphopt.rewrite.program_cost import Flops
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriting
from graphopt.run.config.construct import construct

MACHINE = construct(registry.option("machine", "gpu2"), "machine")
FLOPS = Flops(name="flops", machine=MACHINE)
TASK: Rewriting = construct(registry.option("task", "rewrite"), "task", {"machine": MACHINE})
SMALL: dict[str, dict[str, Any]] = {
    "squeezenet": {"size": 32, "channels": 8, "classes": 10},
    "bert": {"blocks": 1, "seq": 8, "width": 16, "heads": 2},
    "nasrnn": {"steps": 1, "width": 8},
}


DEFAULTS = EpisodeSettings(cap=500, horizon=8, measure_every=3, reward="measured", between="proxy", bonus=0.1, waves=0)


def problem_of(model: str, evals: int = 10**6) -> RewriteProblem:
    return TASK.open(graph_of(build_model(model, SMALL[model]), name=model), FLOPS, evals=evals)


def game_of(model: str, evals: int = 10**6, hops: int | None = None, **changes: Any) -> Game:
    problem = problem_of(model, evals)
    return Game(problem, FLOPS.term_price(problem.terms), replace(DEFAULTS, **changes), hops)


def walk(episode: Episode, rng: np.random.Generator) -> float:
    """Random actions but STOP, to the end; the sum of rewards."""
    earned = 0.0
    while not episode.over:
        earned += episode.step(int(rng.integers(1, episode.place.actions))).reward
    return earned


# --- What is drawn is what the candidates are.


def told_apart(kind: Any, sizes: Any, edges: Any, dims: Any, rounds: int) -> list[int]:
    """Of every node: a number that depends on its features and, as many hops up, on what it reads
    (Weisfeiler-Lehman)."""
    state = [hash((int(k), tuple(np.round(s, 3)))) for k, s in zip(kind, sizes)]
    for _ in range(rounds):
        read: dict[int, list[Any]] = {}
        for (source, target), dim in zip(edges.T.tolist(), dims.tolist()):
            read.setdefault(target, []).append((state[source], tuple(dim)))
        state = [hash((own, tuple(sorted(read.get(node, ()))))) for node, own in enumerate(state)]
    return state


def programs_in(seen: MetaGraph, rounds: int) -> list[Counter[int]]:
    """Nodes of each graph, those that candidates share with the current program among them."""
    state = told_apart(seen.kind, seen.sizes, seen.edges, seen.dims, rounds)
    own = [Counter(state[node] for node in np.flatnonzero(seen.graph == graph)) for graph in range(len(seen))]
    hidden = [Counter(state[node] for node in seen.hidden[1][seen.hidden[0] == graph]) for graph in range(len(seen))]
    return [own[0], *(own[graph] + (own[0] - hidden[graph]) for graph in range(1, len(seen)))]


def plainly(program: Program, rounds: int) -> Counter[int]:
    """The nodes of a program, from its graph."""
    terms = program.terms
    nodes = [term for term in program.live() if terms.runs[term]]
    place = {term: i for i, term in enumerate(nodes)}
    from graphopt.rewrite.environment import meta_graph

    links, dims = [], []
    for term in nodes:
        for i in terms.inputs[term]:
            maker = terms.inputs[i][0] if terms.operation[i].name == "item" else i
            if maker in place:
                links.append((place[maker], place[term]))
                shape = terms.types[i][0].shape[-DIMS:]
                dims.append([0.0] * (DIMS - len(shape)) + [float(d) for d in shape])
    kind = [KINDS[terms.operation[term].name] for term in nodes]
    sizes = np.array([meta_graph.sizes(terms, term) for term in nodes], np.float32)
    return Counter(told_apart(kind, sizes, np.array(links).reshape(-1, 2).T, np.array(dims), rounds))


@pytest.mark.parametrize("hops", [None, 1, 3])
@pytest.mark.parametrize("model", SMALL)
def test_candidates_are_drawn_without_being_made(model: str, hops: int | None) -> None:
    """As many rounds of messages as there are hops tell the drawn nodes apart as they do those of the programs made."""
    game, rng = game_of(model, hops=hops), np.random.default_rng(0)
    rounds = 3 if hops is None else hops
    episode = Episode(game, rng)
    for _ in range(4):
        place = episode.place
        drawn = programs_in(place.graphs, rounds)
        made = [place.around.outputs, *(place.around.apply(step.match) for step in place.steps)]
        assert len(drawn) == len(made)
        for seen, outputs in zip(drawn, made):
            assert seen == plainly(game.problem.initial.with_outputs(outputs), rounds)
        episode.step(int(rng.integers(1, place.actions)))


def test_far_fewer_nodes_are_drawn_than_there_are() -> None:
    whole, near = (Episode(game_of("squeezenet", hops=hops), np.random.default_rng(0)).place for hops in (None, 2))
    assert len(near.graphs.kind) < len(whole.graphs.kind) / 5
    assert whole.graphs.sizes.shape[1] == len(SIZES)


def test_a_renewed_program_is_the_same() -> None:
    program = build_model("bert", SMALL["bert"])
    again = renewed(program)
    assert len(again.terms) <= len(program.terms)
    assert plainly(again, 4) == plainly(program, 4)


# --- The process.


def test_additive_rewards_are_blind_to_prices() -> None:
    """They sum up to what the additive model says of the whole walk."""
    game, rng = game_of("squeezenet", reward="additive"), np.random.default_rng(1)
    game.prices = lambda places: [0.5 * game.problem.initial_cost for _ in places]  # type: ignore[method-assign]
    episode = Episode(game, rng)
    earned = walk(episode, rng)
    assert earned == pytest.approx(100 * (game.first_proxy - episode.place.around.cost) / game.first_proxy)


@pytest.mark.parametrize("between", ["proxy", "constant"])
def test_rewards_sum_up_to_what_was_gained(between: str) -> None:
    game, rng = game_of("squeezenet", between=between), np.random.default_rng(1)
    for _ in range(3):
        episode = Episode(game, rng)
        earned = walk(episode, rng)
        gained = 100 * (1 - episode.place.point.cost / game.problem.initial_cost)
        unpriced = sum(step % 3 != 0 for step in range(1, 8)) if between == "constant" else 0
        assert earned == pytest.approx(gained + 0.1 * unpriced)


def test_prices_are_asked_for_every_few_steps_and_billed_once() -> None:
    game, rng = game_of("squeezenet"), np.random.default_rng(2)
    walk(Episode(game, rng), rng)
    assert game.problem.evals == 3  # steps 3, 6 and 8
    walk(Episode(game, np.random.default_rng(2)), np.random.default_rng(2))
    before = game.problem.evals
    walk(Episode(game, np.random.default_rng(2)), np.random.default_rng(2))
    assert game.problem.evals == before


def test_the_horizon_truncates_and_stopping_ends_and_costs_nothing() -> None:
    outcome = Episode(game_of("squeezenet", horizon=1), np.random.default_rng(0)).step(1)
    assert (outcome.terminated, outcome.truncated) == (False, True)
    game = game_of("bert")
    episode = Episode(game, np.random.default_rng(0))
    outcome = episode.step(STOP)
    assert (outcome.reward, outcome.terminated, outcome.truncated) == (0.0, True, False)
    assert game.problem.evals == 0
    with pytest.raises(ValueError, match="the episode is over"):
        episode.step(STOP)
    with pytest.raises(ValueError, match="action 499 is not possible"):
        Episode(game, np.random.default_rng(0)).step(499)


def test_more_candidates_than_slots_are_drawn_and_counted() -> None:
    everything = Episode(game_of("squeezenet"), np.random.default_rng(0)).place
    some = Episode(game_of("squeezenet", cap=11), np.random.default_rng(0)).place
    assert some.actions == 11 and some.left_out == everything.actions - 11
    digests = [step.digest for step in everything.steps]
    places = [digests.index(step.digest) for step in some.steps]
    assert places == sorted(places)


def test_candidates_are_different_programs_of_few_enough_ops() -> None:
    place = Episode(game_of("nasrnn"), np.random.default_rng(0)).place
    digests = [place.around.digest, *(step.digest for step in place.steps)]
    assert len(set(digests)) == len(digests)
    assert max(step.ops for step in place.steps) < place.game.problem.most_ops


def test_episodes_together_are_episodes_alone() -> None:
    game = game_of("squeezenet")
    alone = Episode(game, np.random.default_rng(0))
    together = [Episode(game, np.random.default_rng(0)) for _ in range(3)]
    for _ in range(8):
        one = alone.step(2)
        assert all(str(other) == str(one) for other in step_together(together, [2, 2, 2]))


def test_a_spent_budget_is_no_price() -> None:
    game, rng = game_of("squeezenet", evals=2, measure_every=1), np.random.default_rng(0)
    with pytest.raises(OutOfBudget):
        walk(Episode(game, rng), rng)
    assert game.problem.evals == 2
