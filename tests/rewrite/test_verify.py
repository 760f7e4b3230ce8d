"""Verification: what is wrong is rejected, what is packaged is right."""

import numpy as np
import pytest

from graphopt.rewrite.generation.instances import instances
from graphopt.rewrite.rules.loading import load_rules
from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.rule import Rule
from graphopt.rewrite.verify import Rejected, main, verify

SPLIT = "{axis_of(?x, -1)} {sizes(-1, ?a, ?b)}"
RIGHT = {
    "distributes": "(mul ?x (add ?y ?z)) => (add (mul ?x ?y) (mul ?x ?z))",
    "concat_relu": "(relu (concat $a ?x ?y)) => (concat $a (relu ?x) (relu ?y))",
    "strided": "(conv [2,2] $p none (add ?x ?y) ?w) => (add (conv [2,2] $p none ?x ?w) (conv [2,2] $p none ?y ?w))"
    " where same_shape(?x, ?y)",
    "merged": f"(matmul none ?x ?a), (matmul none ?x ?b) => (item 0 (split {SPLIT} (matmul none ?x (concat 1 ?a ?b)))),"
    f" (item 1 (split {SPLIT} (matmul none ?x (concat 1 ?a ?b)))) where rank(?a) = 2, rank(?b) = 2",
    "enlarged": "(conv $s [0,0,0,0] $f ?x ?w) => (conv $s [1,1,1,1] $f ?x (enlarge [3,3] ?w)) where kernel(?w) = [1,1]",
}
WRONG = {
    "dropped_multiplier": "(mul ?x (add ?y ?z)) => (add (mul ?x ?y) ?z)",
    "wrong_concat_axis": "(matmul none ?x (concat 1 ?a ?b)) => (concat 0 (matmul none ?x ?a) (matmul none ?x ?b))",
    "wrong_axis_of_equal_shapes": "(concat 0 (concat 1 ?x ?y) (concat 1 ?y ?x)) => (concat 1 (concat 0 ?x ?y)"
    " (concat 0 ?x ?y))",
    "wrong_stride": "(relu (conv [1,1] [0,0,0,0] none ?x ?w)) => (conv [2,2] [0,0,0,0] relu ?x ?w)",
    "swapped_matmul": "(matmul none ?x ?y) => (matmul none ?y ?x)",
    "enlarge_without_padding": "(conv $s $p none ?x ?w) => (conv $s $p none ?x (enlarge [3,3] ?w))"
    " where kernel(?w) = [1,1]",
    "strides_of_one_dimension": "(conv [1,1] $p none ?x ?w) => (conv [1,2] $p none ?x ?w)",
    "activation_forgotten": "(conv $s $p $f (add ?x ?y) ?w) => (add (conv $s $p $f ?x ?w) (conv $s $p $f ?y ?w))"
    " where same_shape(?x, ?y)",
    "parts_in_wrong_order": RIGHT["merged"].replace("(item 0", "(item 2").replace("(item 1", "(item 0")
    .replace("(item 2", "(item 1"),
    "groups_mixed": "(conv $s $p $f ?x (concat 0 ?v ?w)) => (concat 1 (conv $s $p $f ?x ?v) (conv $s $p $f ?x ?w))",
    "maximum_of_sum": "(pool_max $k $s $p (add ?x ?y)) => (add (pool_max $k $s $p ?x) (pool_max $k $s $p ?y))",
    "relu_of_negative": "(relu (mul ?x ?y)) => (mul (relu ?x) (relu ?y))",
    "pads_are_no_maximum": "(pool_max $k $s $p (relu ?x)) => (relu (pool_avg $k $s $p ?x))",
    "permutation_not_inverted": "(transpose $p (transpose $q ?x)) => ?x where $p = $q",
}  # fmt: skip


DIFFERS = r"output \d differs in \d+ of \d+ elements"
NO_FIT = r"the targets do not fit, .*"


def rule_of(name: str, text: str) -> Rule:
    (rule,) = parse_rules(f"{name}: {text}")
    return rule


@pytest.mark.parametrize("name", RIGHT)
def test_true_rules_pass_in_many_cases(name: str) -> None:
    assert verify(rule_of(name, RIGHT[name])) >= 20


def test_targets_that_cannot_be_computed_are_rejected() -> None:
    """The activation of a conv is a word, of which `larger` makes no maximum."""
    with pytest.raises(Rejected, match="targets cannot be computed"):
        verify(rule_of("a", "(conv $s $p $f ?x ?w) => (conv $s {larger($f, [1,1,1,1])} $f ?x ?w)"))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_rejected_with_shapes(name: str) -> None:
    with pytest.raises(Rejected, match=rf"{name}: ({DIFFERS}|{NO_FIT}), for .*\?x = \("):
        verify(rule_of(name, WRONG[name]))


def test_what_fits_no_shape_is_rejected() -> None:
    never = "(add ?x ?y) => (add ?y ?x) where rank(?x) = 2, rank(?y) = 1, same_shape(?x, ?y)"
    with pytest.raises(Rejected, match="0 shapes found that fit it"):
        verify(rule_of("never", never))


@pytest.mark.parametrize("rule", load_rules("handwritten", "exchanges"), ids=lambda rule: rule.name)
def test_packaged_rules_are_true(rule: Rule) -> None:
    assert verify(rule) >= 4


def test_cases_cover_ranks_broadcasting_strides_and_groups() -> None:
    rng = np.random.default_rng(0)
    cases = list(instances(rule_of("a", "(add ?x ?y) => (add ?y ?x)"), rng, 300))
    assert {len(case.shapes["?x"]) for case in cases} == {1, 2, 3, 4}
    assert any(len(case.shapes["?x"]) != len(case.shapes["?y"]) for case in cases)
    assert any(1 in case.shapes["?x"] and case.shapes["?x"] != case.shapes["?y"] for case in cases)
    cases = list(instances(rule_of("b", "(relu (conv $s $p none ?x ?w)) => (conv $s $p relu ?x ?w)"), rng, 300))
    assert {case.params["$s"] for case in cases} == {(1, 1), (2, 2), (1, 2)}
    assert {case.shapes["?x"][1] // case.shapes["?w"][1] for case in cases} == {1, 2, 3, 4}


def test_command_names_what_it_rejects(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "rules.txt"
    file.write_text("good: (add ?x ?y) => (add ?y ?x)\nbad: (relu ?x) => (tanh ?x)\n")
    assert main([str(file)]) == 1
    printed = capsys.readouterr().out
    assert "bad: output 0 differs" in printed and "1 of 2 rules verified" in printed
