"""The families of compilers.txt: all are true, and each with a wrong precondition is refused with a counterexample."""

import re
from importlib.resources import files

import numpy as np
import pytest
from random_programs import leaf, op

from graphopt.rewrite.generation.instances import instances
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.rule import Rule
from graphopt.rewrite.verify import Rejected, verify

TEXT = (files("graphopt.rewrite") / "rule_files" / "compilers.txt").read_text()
FAMILIES = {block.split("\n", 1)[0]: parse_rules(block.split("\n", 1)[1]) for block in TEXT.split("\n## ")[1:]}

TRANSPOSED = "(transpose $p ?x)"
NORMED = "(layer_norm $e ?x ?s ?b)"
# Of each family a rule whose precondition is dropped, or that another operator, axis or order makes wrong.
WRONG = {
    "transpose of two alike": "(transpose $p (add ?x ?y)) => (add (transpose $p ?x) (transpose $p ?y))",
    "transpose of batches through matmul": "(matmul $f (transpose $p ?x) (transpose $p ?y)) => (transpose $p (matmul $f"
    " ?x ?y)) where rank(?x) = rank(?y)",
    "transpose through concat": "(concat $a (transpose $p ?x) (transpose $p ?y)) => (transpose $p (concat $a ?x ?y))",
    "transpose through slices": f"(item $i (split $a $n {TRANSPOSED})) => (transpose $p (item $i (split $a $n ?x)))",
    "transpose through softmax": f"(softmax $a {TRANSPOSED}) => (transpose $p (softmax $a ?x))",
    "transpose through layer norm": f"(layer_norm $e {TRANSPOSED} ?s ?b) => (transpose $p {NORMED})",
    "transpose through gather": f"(gather $a {TRANSPOSED} ?i) => (transpose $p (gather {{place($p, $a)}} ?x ?i))",
    "transpose through pad": f"(pad $b $e {TRANSPOSED}) => (transpose $p (pad $b $e ?x))",
    "transpose of channels through pooling": "(pool_max $k $s $q (transpose [0,1,3,2] ?x)) => (transpose [0,1,3,2]"
    " (pool_max $k $s $q ?x))",
    "transpose that is a reshape": f"{TRANSPOSED} => (reshape {{compose(shape(?x), $p)}} ?x)",
    "scalar through transpose": f"(mul {TRANSPOSED} ?c) => (transpose $p (mul ?x ?c))",
    "scalar through reshape": "(mul (reshape $r ?x) ?c) => (reshape $r (mul ?x ?c))",
    "scalar through matmul": "(matmul none (mul ?x ?c) ?y) => (mul (matmul none ?x ?y) ?c)",
    "scalar through conv": "(conv $s $p none (mul ?x ?c) ?w) => (mul (conv $s $p none ?x ?w) ?c)",
    "scalar through pooling": "(pool_avg $k $s $p (mul ?x ?c)) => (mul (pool_avg $k $s $p ?x) ?c)",
    "scalar through concat": "(concat $a (mul ?x ?c) (mul ?y ?c)) => (mul (concat $a ?x ?y) ?c)",
    "reshape through matmul": "(matmul $f (reshape $r ?x) ?w) => (reshape {with_at($r, -1, dim(?w, 1))} (matmul $f ?x"
    " ?w)) where rank(?w) = 2, rank(?x) >= 2",
    "reshape through slices of rows": "(item $i (split 0 $n (reshape $r ?x))) => (reshape {with_at($r, 0, at($n, $i))}"
    " (item $i (split 0 $n ?x)))",
    "reshape through concat of rows": "(concat 0 (reshape $r ?x) (reshape $q ?y)) => (reshape {with_at($r, 0,"
    " plus(dim(?x, 0), dim(?y, 0)))} (concat 0 ?x ?y)) where without(0, ?x) = without(0, ?y)",
    "reshape through softmax": "(softmax $a (reshape $r ?x)) => (reshape $r (softmax {axis_of(?x, -1)} ?x)) where"
    " $a = plus(length($r), -1), rank(?x) > 0",
    "reshape through layer norm": f"(reshape $r {NORMED}) => (layer_norm $e (reshape $r ?x) ?s ?b)",
    "slice of a slice": "(item $j (split $a $m (item $i (split $a $n ?x)))) => (item $j (split $a {refined($n, $i, $m)}"
    " ?x))",
    "slice of a concat": "(item 0 (split $a $n (concat $a ?x ?y))) => (item 0 (split $a {[at($n, 0), less(dim(?x, $a),"
    " at($n, 0))]} ?x))",
    "slice through a scalar": "(item $i (split $a $n (mul ?x ?c))) => (mul (item $i (split $a $n ?x)) ?c)",
    "slice through a row": "(item $i (split $a $n (add ?x ?b))) => (add (item $i (split $a $n ?x)) ?b) where"
    " rank(?b) = 1, dim(?b, 0) = dim(?x, -1)",
    "slice of channels": "(item $i (split 1 $n (conv $s $p $f ?x ?w))) => (conv $s $p $f ?x (item $i (split 0 $n ?w)))",
    "slice through softmax": "(item $i (split $a $n (softmax $b ?x))) => (softmax $b (item $i (split $a $n ?x)))",
    "slice through layer norm": f"(item $i (split $a $n {NORMED})) => (layer_norm $e (item $i (split $a $n ?x)) ?s ?b)",
    "slice through gather": "(item $i (split $b $n (gather $a ?x ?j))) => (gather $a ?x (item $i (split 0 $n ?j)))",
    "concat of three": "(concat $a (item 0 (split $a $n ?x)) (item 1 (split $a $n ?x))) => ?x",
    "concat of neighbours": "(concat $a (item $i (split $a $n ?x)) (item $j (split $a $n ?x))) => (item $i (split $a"
    " {joined($n, $i)} ?x))",
    "concat through softmax": "(concat $a (softmax $b ?x) (softmax $b ?y)) => (softmax $b (concat $a ?x ?y))",
    "concat through layer norm": f"(concat $a {NORMED} (layer_norm $e ?y ?s ?b)) => (layer_norm $e (concat $a ?x ?y) ?s"
    " ?b)",
    "gather of a gather": "(gather $a (gather $b ?x ?i) ?j) => (gather $a ?x (gather 0 ?i ?j))",
    "gather through matmul": "(matmul $f (gather 0 ?w ?i) ?v) => (gather 0 (matmul $f ?w ?v) ?i) where rank(?w) = 2",
    "gather through elementwise": "(add (gather $a ?x ?i) (gather $a ?y ?i)) => (gather $a (add ?x ?y) ?i)",
    "gather through layer norm": f"(gather $a {NORMED} ?i) => (layer_norm $e (gather $a ?x ?i) ?s ?b)",
    "concat of gathers": "(concat $b (gather $a ?x ?i) (gather $a ?y ?i)) => (gather $a (concat $b ?x ?y) ?i) where"
    " rank(?i) = 1, dim(?x, $a) = dim(?y, $a)",
    "pad before conv": "(conv $s $p $f (pad $b $e ?x) ?w) => (conv $s {[plus(at($p, 0), at($b, 2)), plus(at($p, 1),"
    " at($b, 3)), plus(at($p, 2), at($e, 2)), plus(at($p, 3), at($e, 3))]} $f ?x ?w)",
    "pads in a row": "(pad $b $e ?x) => ?x where largest($b) = 0",
    "pad through elementwise": "(sigmoid (pad $b $e ?x)) => (pad $b $e (sigmoid ?x))",
    "pad through concat": "(concat $a (pad $b $e ?x) (pad $b $e ?y)) => (pad $b $e (concat $a ?x ?y)) where"
    " without($a, ?x) = without($a, ?y)",
    "heads of a product": "(transpose [1,0,2] (reshape $r (matmul none ?x ?w))) => (matmul none ?x (reshape [at($r, 1),"
    " dim(?w, 0), at($r, 2)] ?w)) where rank(?x) = 2, rank(?w) = 2, length($r) = 3, at($r, 0) = dim(?x, 0)",
    "layer norm takes factors": f"(mul {NORMED} ?c) => (layer_norm $e ?x (mul ?s ?c) (mul ?b ?c)) where rank(?c) = 1",
    "layer norm gives factors to matmul": f"(matmul none {NORMED} ?w) => (add (matmul none (layer_norm $e ?x (fill 1"
    " {shape(?s)}) (fill 0 {shape(?b)})) (mul (reshape [dim(?s, 0), 1] ?s) ?w)) (reshape [dim(?w, 1)] (matmul none"
    " (reshape [1, dim(?b, 0)] ?b) ?w))) where static(?s), static(?b), static(?w)",
    "nothing is added": "(add ?x ?c) => ?x where filled(?c, 0)",
}
DIFFERS = r"output \d differs in \d+ of \d+ elements|the targets do not fit, .*"


def test_every_family_has_a_wrong_rule() -> None:
    assert set(WRONG) == set(FAMILIES) and len(FAMILIES) >= 20
    rules = [rule.name for family in FAMILIES.values() for rule in family]
    assert len(set(rules)) == len(rules) == len(parse_rules(TEXT))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_true_at_several_ranks(family: str) -> None:
    for rule in FAMILIES[family]:
        assert verify(rule, cases=8) == 8
    cases = [case for rule in FAMILIES[family] for case in instances(rule, np.random.default_rng(1), 500)]
    ranks = {len(shape) for case in cases for shape in list(case.shapes.values())[:1]}
    assert len(ranks) > 1 or re.search("conv|pool|matmul", TEXT.split(f"## {family}\n")[1].split("\n\n")[0])


@pytest.mark.parametrize("family", WRONG)
def test_a_wrong_precondition_is_refused_with_a_counterexample(family: str) -> None:
    (wrong,) = parse_rules(f"wrong: {WRONG[family]}")
    with pytest.raises(Rejected, match=f"wrong: ({DIFFERS}), for ") as refused:
        verify(wrong)
    assert refused.value.instance is not None and refused.value.instance.shapes


def test_what_is_known_to_be_zero() -> None:
    """Only a constant of that value counts, and only where it does not spread the other."""
    zero, one = FAMILIES["nothing is added"]
    terms = Terms()
    x, y = leaf(terms, "x", 2, 3), leaf(terms, "y", 2, 3)
    fills = {(v, s): op(terms, "fill", v, s, of=()) for v in (0.0, 1.0) for s in ((), (3,), (4, 2, 3))}
    assert not _matched(zero, terms, op(terms, "add", of=(x, y)))
    found = {at for at, c in fills.items() if _matched(zero, terms, op(terms, "add", of=(x, c)))}
    assert found == {(0.0, ()), (0.0, (3,))}
    found = {at for at, c in fills.items() if _matched(one, terms, op(terms, "mul", of=(x, c)))}
    assert found == {(1.0, ()), (1.0, (3,))}


def test_no_function_without_a_meaning_keeps_zero() -> None:
    """Else what moves it past padding would pass."""
    for name in ("tanh", "sigmoid"):
        assert reference.activated(name, np.zeros(1, np.int64)) != 0
    assert reference.rsqrt(np.zeros(1, np.int64), 1e-5) != 0 and reference.rsqrt(np.zeros(1, np.int64), 1e-3) != 0


def _matched(rule: Rule, terms: Terms, term: int) -> bool:
    from graphopt.rewrite.rules.matching import Matcher

    return any(match.roots == (term,) for match in Matcher((rule,), terms).matches((term,)))
