"""Answers that rewrite: judged on weights and inputs drawn anew, by what they are made of, and by their steps."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.core.errors import UserError
from graphopt.core.utils import registry
from graphopt.problems.optimizer import solve
from graphopt.problems.problem import Equality
from graphopt.rewrite.equivalence import disagreement
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.execution import Executor
from graphopt.rewrite.ir.program_builder import ProgramBuilder, with_random_weights
from graphopt.rewrite.ir.program_files import Stored, to_json
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.ir.vocabulary import Operation
from graphopt.rewrite.rewrite_problem import Rewritten
from graphopt.run.config.build import machine_task_costs
from graphopt.run.config.construct import construct
from graphopt.run.records.answer_file import complete

CONFIG = {"machine": registry.option("machine", "gpu2"), "task": registry.option("task", "rewrite"),
          "cost": registry.option("cost", "flops"), "judge": registry.option("cost", "flops")}  # fmt: skip
_, TASK, COST, _ = machine_task_costs(CONFIG)
EQUALITY = Equality()


def network() -> Program:
    """Two products of one input, a bias, a scale and a relu: what rules can merge, and forgers can fold."""
    b = ProgramBuilder()
    x = b.input((4, 8))
    left, right = b.linear(x, 6), b.linear(x, 6)
    scaled = b.mul(b.add(left, right), b.weight(6, role="scale"))
    return b.build(b.unary("relu", b.add(scaled, b.weight(6))), b.linear(b.unary("tanh", left), 3))


def stored(program: Program) -> Program:
    """As a file has it: without the values of weights."""
    return replace(program, weights={})


def answer(original: Program, best: Program, **header: Any) -> Rewritten:
    """What is read of the file of these programs."""
    trace = np.zeros((1, 3))
    made = Rewritten({"rules": [], **header}, trace, original, best, can_run=False)
    texts = {"original": json.dumps(to_json(original)), "best": json.dumps(to_json(best))}  # a forger's may hold NaN
    arrays = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()} | {"trace": trace}
    return Rewritten.read(json.loads(json.dumps(made.header)), arrays)


def judged(best: Program, original: Program | None = None, **header: Any) -> str:
    """Why it is no answer."""
    start = stored(original or network())
    first = answer(start, start)
    try:
        return answer(start, stored(best), **header).departs(first, TASK, EQUALITY)
    except UserError as error:
        return str(error)


def test_the_program_itself_is_an_answer() -> None:
    assert judged(network()) == ""


# ---- forgeries; each has the network's terms at hand


def constant_of_the_output(program: Program) -> Program:
    """What seed 0 gives, plus nothing times the input: the forgery that once came first."""
    known = with_random_weights(program, 0)
    values = Executor(known, double=True)([np.random.default_rng(0).standard_normal((4, 8))])
    terms, outputs = program.terms, []
    nothing = terms.add(Operation("matmul", ("none",)), (
        terms.add(Operation("fill", (0.0, (4, 4)))), program.inputs[0]))  # fmt: skip
    for value in values:
        rows = [terms.add(Operation("concat", (1,)), tuple(
            terms.add(Operation("fill", (float(one), (1, 1)))) for one in row)) for row in value]  # fmt: skip
        table = terms.add(Operation("concat", (0,)), tuple(rows))
        zero = terms.add(Operation("matmul", ("none",)), (
            nothing, terms.add(Operation("fill", (0.0, (8, value.shape[1]))))))  # fmt: skip
        outputs.append(terms.add(Operation("add"), (table, zero)))
    return program.with_outputs(tuple(outputs))


def without_the_input(program: Program) -> Program:
    """The network of zeros: all of it depends on weights alone, and costs nothing."""
    terms = program.terms
    return substituted(program, {program.inputs[0]: terms.add(Operation("fill", (0.0, (4, 8))))})


def substituted(program: Program, image: dict[int, int]) -> Program:
    terms = program.terms
    for term in program.live():
        if term not in image and not image.keys().isdisjoint(terms.inputs[term]):
            image[term] = terms.add(terms.operation[term], [image.get(i, i) for i in terms.inputs[term]])
    return program.with_outputs(tuple(image.get(o, o) for o in program.outputs))


def input_as_a_weight(program: Program) -> Program:
    """What is read under the input's name, and known beforehand."""
    name = program.terms.operation[program.inputs[0]].params[0]
    return substituted(program, {program.inputs[0]: program.terms.add(Operation("weight", (name, (4, 8), "float32")))})


def folded_weights(program: Program) -> Program:
    """One product by a new weight, which is the sum of two: nobody can see that it is."""
    terms = program.terms
    new = terms.add(Operation("weight", ("folded", (8, 6), "float32")))
    product = terms.add(Operation("matmul", ("none",)), (program.inputs[0], new))
    summed = next(t for t in program.live() if terms.operation[t].name == "add")
    return substituted(program, {summed: product})


def another_shape(program: Program) -> Program:
    """A weight of the original's name and another shape."""
    terms = program.terms
    weight = next(t for t in program.live() if terms.operation[t].name == "weight")
    name, shape, dtype = terms.operation[weight].params
    wide = terms.add(Operation("weight", (name, shape[::-1], dtype)))
    return substituted(program, {weight: terms.add(Operation("transpose", ((1, 0),)), (wide,))})


def known_weight(program: Program) -> Program:
    """A weight replaced by its value of seed 0."""
    terms, known = program.terms, with_random_weights(program, 0)
    weight = next(t for t in program.live() if terms.operation[t].name == "weight" and len(terms.shape(t)) == 1)
    value = known.weights[terms.operation[weight].params[0]]
    parts = tuple(terms.add(Operation("fill", (float(one), (1,)))) for one in value)
    return substituted(program, {weight: terms.add(Operation("concat", (0,)), parts)})


def drift(program: Program) -> Program:
    """Each output a little larger, by less than once was allowed."""
    terms = program.terms
    factor = terms.add(Operation("fill", (1.0 + 5e-6, (1,))))
    return program.with_outputs(tuple(terms.add(Operation("mul"), (o, factor)) for o in program.outputs))


def no_relu(program: Program) -> Program:
    terms = program.terms
    relu = next(t for t in program.live() if terms.operation[t].name == "relu")
    return substituted(program, {relu: terms.inputs[relu][0]})


def no_number(program: Program) -> Program:
    """Not a number is unequal to all, and unordered."""
    terms = program.terms
    nan = terms.add(Operation("fill", (float("nan"), (1,))))
    return program.with_outputs(tuple(terms.add(Operation("add"), (o, nan)) for o in program.outputs))


def swapped_outputs(program: Program) -> Program:
    return replace(program, outputs=program.outputs[::-1])


def more_inputs(program: Program) -> Program:
    terms = program.terms
    other = terms.add(Operation("input", ("other", (4, 8), "float32")))
    return replace(substituted(program, {program.inputs[0]: other}), inputs=(other,))


def far_larger(program: Program) -> Program:
    """Weights alone cost nothing, and so would any amount of work with them."""
    terms = program.terms
    huge = terms.add(Operation("fill", (0.0, (6, 4096, 4096))))
    zero = terms.add(Operation("split", (0, (1, 5))), (huge,))
    first = terms.add(Operation("item", (0,)), (zero,))
    one = terms.add(Operation("pad", ((0, 0, 0), (0, 0, 0))), (first,))
    some = terms.add(Operation("reshape", ((4096 * 4096 // 16, 16),)), (one,))
    low = terms.add(Operation("matmul", ("none",)), (terms.add(Operation("fill", (0.0, (4, 4096 * 4096 // 16)))), some))
    more = terms.add(Operation("matmul", ("none",)), (low, terms.add(Operation("fill", (0.0, (16, 6))))))
    return program.with_outputs((terms.add(Operation("add"), (program.outputs[0], more)), program.outputs[1]))


def many_ops(program: Program) -> Program:
    terms, out = program.terms, list(program.outputs)
    for _ in range(40):
        out[0] = terms.add(Operation("add"), (out[0], out[0]))
    return program.with_outputs(tuple(out))


FORGED: dict[Callable[[Program], Program], str] = {
    constant_of_the_output: "differs from the original's", without_the_input: "differs from the original's",
    input_as_a_weight: "it has the weight 'input0'", folded_weights: "it has the weight 'folded'",
    another_shape: "it has the weight", known_weight: "differs from the original's",
    drift: "more than 1e-09", no_relu: "differs from the original's", no_number: "differs from the original's",
    swapped_outputs: "its outputs differ", more_inputs: "it has the input 'other'",
    far_larger: "times as many numbers", many_ops: "more than 2 times the original's",
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_a_forged_program_is_refused(forge: Callable[[Program], Program]) -> None:
    start = network()
    assert FORGED[forge] in judged(forge(start), start)


def test_outputs_that_nothing_changes_show_nothing() -> None:
    b = ProgramBuilder()
    x = b.input((4, 8))
    tiny = b.mul(b.linear(x, 8), b.op("fill", 1e-9, (8,)))
    program = b.build(b.add(tiny, b.op("fill", 1.0, (8,))))
    assert "hardly depends on random inputs" in disagreement(program, program, EQUALITY)


def test_draws_are_new_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.rewrite import equivalence

    seen: list[tuple[Program, list[Any]]] = []
    compared = equivalence.compared

    def noted(first: Program, second: Program, given: list[Any], tolerance: float) -> float:
        seen.append((first, given))
        return compared(first, second, given, tolerance)

    monkeypatch.setattr(equivalence, "compared", noted)
    for _ in range(2):
        program = network()
        assert disagreement(program, program, EQUALITY) == ""
    assert len(seen) == 2 * EQUALITY.draws
    assert len({float(given[0].sum()) for _, given in seen}) == len(seen)
    assert len({float(program.weights["weight0"].sum()) for program, _ in seen}) == len(seen)


# ---- steps


def solved(algo: str, evals: int = 400) -> Rewritten:
    program = network()
    graph = graph_of(program, name="network", family="network")
    problem, _ = solve(construct(registry.option("algo", algo), "algo"), graph, TASK, COST, evals=evals)
    row = {"graph": "network", "algo": algo, "initial": problem.initial_cost, "judged": problem.best_cost}
    made = complete(problem, problem.best_cost, row, CONFIG | {"seed": 0})
    assert isinstance(made, Rewritten) and problem.best_cost < problem.initial_cost
    return Rewritten.read(json.loads(json.dumps(made.header)), made.arrays() | {"trace": made.trace})


@pytest.mark.parametrize("algo", ["rewrite_greedy", "taso"])
def test_searches_bring_the_steps_that_led_there(algo: str) -> None:
    found = solved(algo)
    assert [rule for rule, _ in found.header["steps"]] == list(found.rules) != []
    assert found.departs(found_original(found), TASK, EQUALITY) == ""


def found_original(found: Rewritten) -> Rewritten:
    return replace(found, best=found.original)


def test_what_e_graphs_find_needs_no_steps() -> None:
    found = solved("tensat")
    assert "steps" not in found.header and found.departs(found_original(found), TASK, EQUALITY) == ""


BROKEN: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "cut short": (lambda steps: steps[:-1], "its steps lead to another program"),
    "none": (lambda steps: [], "its steps lead to another program"),
    "another rule": (lambda steps: [["nobodys", steps[0][1]]], "which the task does not have"),
    "another place": (lambda steps: [[steps[0][0], [0]]], "changes nothing there"),
    "beyond": (lambda steps: [[steps[0][0], [10**6]]], "is no rule with the places"),
    "no places": (lambda steps: [[steps[0][0], "all"]], "is no rule with the places"),
    "truth values": (lambda steps: [[steps[0][0], [True]]], "is no rule with the places"),
    "no list": (lambda steps: {"a": 1}, "no list of at most"),
    "endless": (lambda steps: steps * 10_001, "no list of at most"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_steps_that_lead_elsewhere_are_refused(what: str) -> None:
    found = solved("rewrite_greedy")
    change, why = BROKEN[what]
    wrong = replace(found, header={**found.header, "steps": change(found.header["steps"])})
    assert why in wrong.departs(found_original(found), TASK, EQUALITY)


def test_what_an_opaque_operation_costs_is_the_original_s_word() -> None:
    b = ProgramBuilder()
    x = b.linear(b.input((4, 8)), 3)
    own = b.build(b.op("item", 0, inputs=[b.op("opaque", "key", (((4, 3), "float32"),), inputs=[x])]))
    program = replace(own, weights={}, opaque={"key": Stored("Dear", "elementwise", 1e9)})
    made = answer(program, program)
    arrays = {**made.arrays(), "trace": made.trace}

    def read_with(opaque: dict[str, Any]) -> Rewritten:
        best = json.loads(arrays["best"].tobytes()) | {"opaque": opaque}
        return Rewritten.read(made.header, {**arrays, "best": np.frombuffer(json.dumps(best).encode(), np.uint8)})

    assert read_with({"key": ["Cheap", "elementwise", 0.0]}).best.opaque == program.opaque
    with pytest.raises(UserError, match="operations that the original lacks"):
        read_with({"other": ["Cheap", "elementwise", 0.0]})


def test_the_page_says_how_programs_are_judged(tmp_path: Path) -> None:
    from graphopt.report.leaderboard.board import page
    from graphopt.report.leaderboard.contests import Contest

    contest = Contest("r", tmp_path, "R", "a", "s", ("rewrite_models",), Equality(7, 1e-8), (), {})
    assert "7 draws of weights and inputs" in (text := page([(contest, [])], "")) and "1e-08" in text
    assert "dataset=rewrite_models" in text
