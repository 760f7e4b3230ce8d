"""Sweeps: a rule at all its places, as actions, as openings and as a search of their own; what an additive model loses
by and measuring gains by, they find."""

import contextlib
from typing import Any

import numpy as np
import pytest
from test_environment import FLOPS, MACHINE, TASK

from graphopt.core.utils import registry
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.environment.episodes import EpisodeSettings, Game
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Outputs, Program, reachable, substitute
from graphopt.rewrite.models import build_model
from graphopt.rewrite.program_cost import Flops, ProgramCost
from graphopt.rewrite.rewrite_problem import RewriteProblem
from graphopt.rewrite.rules.matching import Matcher
from graphopt.rewrite.rules.steps import Survey, sweeps, wave
from graphopt.run.config.construct import construct

MODELS: dict[str, dict[str, Any]] = {
    "squeezenet": {"size": 32, "channels": 8, "classes": 10},
    "bert": {"blocks": 1, "seq": 4, "width": 8, "heads": 2},
    "nasrnn": {"steps": 1, "width": 8},
    "resnext50": {"size": 32, "channels": 8, "groups": 4},
}


class GroupsAreDear(ProgramCost):
    """What a program costs when groups are all that counts; an additive model by operations says the contrary."""

    name, objective = "groups_are_dear", "runtime"

    def price_program(self, program: Program) -> float:
        terms = program.terms
        convs = [term for term in program.live() if terms.operation[term].name == "conv"]
        shapes = [[terms.types[i][0].shape[1] for i in terms.inputs[term][:2]] for term in convs]
        return 1.0 + sum(channels / own for channels, own in shapes)


def problem_of(program: Program, cost: ProgramCost | Flops = FLOPS, evals: int = 10**6) -> RewriteProblem:
    return TASK.open(graph_of(program, name="p"), cost, evals=evals)


def grouped(layers: int = 3, groups: int = 4) -> Program:
    b = ProgramBuilder()
    x = b.input((1, 8, 6, 6))
    for _ in range(layers):
        x = b.unary("relu", b.conv(x, 8, 3, groups=groups))
    return b.build(x)


def groups_of(program: Program) -> list[int]:
    terms = program.terms
    convs = [term for term in program.live() if terms.operation[term].name == "conv"]
    return [8 // terms.types[terms.inputs[term][1]][0].shape[1] for term in convs]


LAYERS = 12  # so many that few measured programs do not reach one without groups by single rewrites


def settings(waves: int) -> EpisodeSettings:
    return EpisodeSettings(cap=500, horizon=4, measure_every=1, reward="measured", between="proxy", bonus=0.0,
                           waves=waves)  # fmt: skip


def swept(problem: RewriteProblem, rule: str, waves: int) -> list[Program]:
    points = problem.sweeps(problem.start(), waves)
    return [problem.initial.with_outputs(one.outputs) for one in points if one.rules == (rule,)]


def test_a_wave_takes_every_place_once() -> None:
    found = swept(problem_of(grouped()), "merge_two_groups", 4)
    assert [groups_of(program) for program in found] == [[2, 2, 2], [1, 1, 1]]


def one_after_another(matcher: Matcher, outputs: Outputs) -> tuple[Outputs, int]:
    """What a wave is, slowly: the program is made anew after every place."""
    live, places = reachable(matcher.terms, outputs), 0
    for match in sorted(matcher.matches(live), key=lambda match: match.roots, reverse=True):
        made = matcher.apply(match) if set(live).issuperset(match.roots) else None
        if made is not None:
            outputs = substitute(matcher.terms, outputs, live, dict(zip(match.roots, made)))
            live, places = reachable(matcher.terms, outputs), places + 1
    return outputs, places


@pytest.mark.parametrize("model", MODELS)
def test_a_wave_is_its_places_one_after_another(model: str) -> None:
    problem = problem_of(build_model(model, MODELS[model]))
    neighbours, some = problem.neighbours, 0
    for rule in dict.fromkeys(match.rule for match in neighbours.matches(problem.initial.live())):
        outputs, matcher = problem.initial.outputs, neighbours.alone(rule)
        for _ in range(3):
            found = wave(matcher, Survey(problem.terms, outputs))
            assert found == one_after_another(matcher, outputs)
            outputs, some = found[0], some + found[1]
    assert some


def test_places_that_would_become_each_other_become_one() -> None:
    """x + y and y + x, both there."""
    b = ProgramBuilder()
    x, y = (b.input((4, 4)) for _ in range(2))
    problem = problem_of(b.build(b.unary("relu", b.add(x, y)), b.unary("tanh", b.add(y, x))))
    (rule,) = {match.rule for match in problem.neighbours.matches(problem.initial.live())
               if match.rule.name == "add_commutes"}  # fmt: skip
    after, _ = wave(problem.neighbours.alone(rule), Survey(problem.terms, problem.initial.outputs))
    assert problem.initial.num_ops() == 4 and problem.initial.with_outputs(after).num_ops() == 3


@pytest.mark.parametrize("model", MODELS)
def test_sweeps_are_new_programs_of_few_enough_ops_told_apart_as_others_are(model: str) -> None:
    problem = problem_of(build_model(model, MODELS[model]))
    start = problem.start()
    around = problem.neighbours.around(start.outputs, problem.term_price)  # type: ignore[arg-type]
    matches = sweeps(problem.neighbours, start.outputs, 4, problem.most_ops)
    steps = list(around.steps(matches, alone=False))
    assert len({step.digest for step in steps} | {problem.digest(start)}) == len(steps) + 1
    for step in steps:
        outputs = around.apply(step.match)
        assert step.digest == problem.neighbours.digest(outputs) and step.ops < problem.most_ops
        made = problem.neighbours.around(outputs, problem.term_price)  # type: ignore[arg-type]
        assert (step.ops, step.cost) == (made.ops, pytest.approx(made.cost, rel=1e-12))


def test_a_rule_that_undoes_itself_ends() -> None:
    b = ProgramBuilder()
    x, y, z = (b.input((4, 4)) for _ in range(3))
    problem = problem_of(b.build(b.add(b.add(x, y), z)))
    (rule,) = {match.rule for match in problem.neighbours.matches(problem.initial.live())
               if match.rule.name == "add_commutes"}  # fmt: skip
    matcher = problem.neighbours.alone(rule)
    once, places = wave(matcher, Survey(problem.terms, problem.initial.outputs))
    twice, _ = wave(matcher, Survey(problem.terms, once))
    assert places == 2 and once != problem.initial.outputs and twice == problem.initial.outputs
    assert len(swept(problem, "add_commutes", 9)) == 1


def test_actions_end_with_sweeps() -> None:
    problem = problem_of(grouped())
    without, with_ = (
        Game(problem, FLOPS.term_price(problem.terms), settings(waves)).start(np.random.default_rng(0))
        for waves in (0, 2)
    )
    assert [one.digest for one in with_.steps[: len(without.steps)]] == [one.digest for one in without.steps]
    more = with_.steps[len(without.steps) :]
    assert [one.match.rule.name for one in more if "groups" in one.match.rule.name] == ["merge_two_groups"] * 2
    assert len(with_.graphs) == with_.actions


def solve(algo: str, cost: ProgramCost, evals: int, **changes: Any) -> RewriteProblem:
    node = registry.option("algo", algo)
    encoder = construct(registry.option("encoder", "graphsage") | {"width": 8}, "encoder", {"extra_width": 0})
    for part in node.keys() & changes.keys():
        node[part] = node[part] | changes[part]
    around = {"machine": MACHINE, "task": TASK, "cost": cost, "seed": 0}
    around |= {"encoder": encoder} if algo == "xrlflow" else {}
    problem = problem_of(grouped(LAYERS), cost, evals)
    with contextlib.suppress(OutOfBudget):
        construct(node, "algo", around).solve(problem)
    return problem


def test_steepest_descent_over_sweeps_merges_all_groups() -> None:
    problem = solve("rewrite_sweeps", GroupsAreDear(), 40)
    assert groups_of(problem.solution().decided.best) == [1] * LAYERS


@pytest.mark.parametrize("waves", [0, 4])
def test_an_opening_with_sweeps_finds_what_the_additive_model_rejects(waves: int) -> None:
    """The roofline says that merged groups are dearer."""
    small = {"episode": {"cap": 64, "waves": waves}, "network": {"width": 8, "layers": 1, "graph": 4},
             "search": {"opening": 1.0}}  # fmt: skip
    problem = solve("xrlflow", GroupsAreDear(), 12, **small)
    assert (groups_of(problem.solution().decided.best) == [1] * LAYERS) == (waves > 0)


@pytest.mark.parametrize("most", [0, 1, 5, 1000])
def test_a_descent_prices_no_more_than_it_may_and_ends_no_dearer(most: int) -> None:
    problem = problem_of(grouped(), GroupsAreDear())
    game, start = Game(problem, FLOPS.term_price(problem.terms), settings(4)), problem.start()
    end = game.descend(start, most)
    assert problem.evals <= most and end.cost <= start.cost
    assert end.cost == min([start.cost, *(point.cost for point in game.cheapest(10**6))])
    if most == 1000:
        assert groups_of(problem.initial.with_outputs(end.outputs)) == [1, 1, 1]
        assert game.descend(end, most).outputs == end.outputs


def test_an_opening_is_as_good_as_descending_by_sweeps_and_as_an_additive_search() -> None:
    small = {"network": {"width": 8, "layers": 1, "graph": 4}, "search": {"opening": 1.0}}
    descent, additive = (solve(algo, GroupsAreDear(), 40) for algo in ("rewrite_sweeps", "remeasured"))
    opened = solve("xrlflow", GroupsAreDear(), 48, **small)
    assert opened.evals <= 48 and opened.best_cost <= min(descent.best_cost, additive.best_cost)


def test_an_additive_search_stays_with_the_groups() -> None:
    problem = solve("remeasured", GroupsAreDear(), 12)
    assert 1 not in groups_of(problem.solution().decided.best)
