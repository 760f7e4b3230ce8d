"""E-graphs: classes of equal terms, saturation, exploration."""

import gzip
import json
import math
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_egraphs import random_egraph
from random_programs import leaf, op

from graphopt.rewrite.egraphs import egraph as egraph_module
from graphopt.rewrite.egraphs.cycles import FILTERS
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.egraph import Egraph, EgraphError, Enode, egraph_of, read_egraph, write_egraph
from graphopt.rewrite.egraphs.exploring import ExplorationLimits, Explored, Explorer
from graphopt.rewrite.egraphs.finding import LoopFinder
from graphopt.rewrite.egraphs.saturation import Prover, SaturationLimits
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.models import build_model
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import RuleSet

# --- The e-graph: its arrays, reading and writing, and what it says of files that are none.

PLUS = {"op": "+", "children": ["a1", "a2"], "eclass": "p", "cost": 2.5}
NODES: dict[str, Any] = {"p1": PLUS, "a1": {"op": "x", "eclass": "a"}, "a2": {"op": "y", "eclass": "a", "cost": 0}}


def written(folder: Path, data: Any) -> Path:
    path = folder / "egraph.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def changed(**fields: Any) -> dict[str, Any]:
    """The file of which `p1` is another."""
    return {"nodes": NODES | {"p1": PLUS | fields}, "root_eclasses": ["p"]}


def without(key: str) -> dict[str, Any]:
    return {"nodes": NODES | {"p1": {k: v for k, v in PLUS.items() if k != key}}, "root_eclasses": ["p"]}


def test_a_file_is_read(tmp_path: Path) -> None:
    """Children are nodes that stand for their classes; cost and children have defaults in the format."""
    made = read_egraph(written(tmp_path, {"nodes": NODES, "root_eclasses": ["p", "p"], "class_data": {}}))
    assert (made.node_names, made.ops, made.class_names) == (("p1", "a1", "a2"), ("+", "x", "y"), ("p", "a"))
    assert made.children_of(0).tolist() == [1, 1] and made.children_of(1).tolist() == []
    assert made.cost.tolist() == [2.5, 1.0, 0.0] and made.roots.tolist() == [0]
    assert made.nodes_of(1).tolist() == [1, 2] and made.class_of.tolist() == [0, 1, 1]


def same(one: Egraph, other: Egraph) -> bool:
    names = ("node_names", "ops", "class_names")
    arrays = ("cost", "class_of", "child_ptr", "child", "class_ptr", "class_node", "roots")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


@pytest.mark.parametrize("name", ["egraph.json", "egraph.json.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    """Also costs that are infinite, for which JSON has no number."""
    some = [random_egraph(seed) for seed in range(40)]
    assert any(math.inf in egraph.cost for egraph in some)
    for egraph in some:
        write_egraph(egraph, tmp_path / name)
        assert same(read_egraph(tmp_path / name), egraph)
    if name.endswith(".gz"):
        assert b"Infinity" not in gzip.decompress((tmp_path / name).read_bytes())


def test_subsumed_nodes_are_never_chosen(tmp_path: Path) -> None:
    assert read_egraph(written(tmp_path, changed(subsumed=True))).cost[0] == math.inf


def test_arrays_cannot_be_changed() -> None:
    made = random_egraph(0)
    with pytest.raises(ValueError, match="read-only"):
        made.cost[0] = 1.0


def test_names_of_classes_need_not_be_consecutive() -> None:
    made = egraph_of([Enode("f", [40], 7, 1.0), Enode("x", [], 40, 2.0)], [7])
    assert made.class_names == ("7", "40") and made.children_of(0).tolist() == [1]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("{", "no JSON"),
        ("[]", "no 'nodes'"),
        ({"root_eclasses": []}, "no 'nodes'"),
        ({"nodes": {}}, "no 'root_eclasses'"),
        ({"nodes": [], "root_eclasses": []}, "'nodes' of the file is a list"),
        ({"nodes": NODES, "root_eclasses": []}, "no root"),
        ({"nodes": NODES, "root_eclasses": ["q"]}, "class 'q', which has no node"),
        (without("op"), "node 'p1' has no 'op'"),
        (without("eclass"), "node 'p1' has no 'eclass'"),
        (changed(children=["a1", "b"]), "node 'p1' has the child 'b', which is no node"),
        (changed(children="a1"), "'children' of node 'p1' is a str"),
        (changed(children=[["a1"]]), "which is no node"),
        (changed(cost=-1), "node 'p1' costs -1"),
        (changed(cost="2"), "node 'p1' costs '2'"),
        (changed(cost=None), "node 'p1' costs None"),
        (changed(cost=math.nan), "node 'p1' costs nan"),
        ({"nodes": {"p1": 3}, "root_eclasses": ["p"]}, "node 'p1' has no 'op'"),
        ('{"nodes": {"n": {}, "n": {}}, "root_eclasses": []}', "the key 'n' is there twice"),
    ],
)
def test_malformed_files(tmp_path: Path, data: Any, what: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(EgraphError) as caught:
        read_egraph(path)
    assert what in str(caught.value) and str(caught.value).startswith(str(path)) and caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EgraphError, match="there is no file"):
        read_egraph(tmp_path / "missing.json")
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(b"{}" * 100)[:-10])
    with pytest.raises(EgraphError, match="cut"):
        read_egraph(cut)
    cut.write_bytes(b"{}")
    with pytest.raises(EgraphError, match="is damaged"):
        read_egraph(cut)


@pytest.mark.parametrize(
    ("node", "roots", "what"),
    [
        (Enode("f", [2], 0, 1.0), [0], "node '0' of the e-graph refer to class 2"),
        (Enode("f", [], 0, 1.0), [1], "the roots of the e-graph refer to class 1"),
        (Enode("f", [], 0, -0.5), [0], "costs -0.5"),
        (Enode("f", [], 0, math.nan), [0], "costs nan"),
        (Enode("f", [], 0, 1.0), [], "no root"),
    ],
)
def test_makers_are_told_what_is_wrong(node: Enode, roots: list[int], what: str) -> None:
    with pytest.raises(EgraphError, match=what):
        egraph_of([node], roots)


def test_files_that_unpack_to_too_much_or_nest_too_deep_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egraph_module, "MOST_BYTES", 10**6)
    packed = tmp_path / "bomb.json.gz"
    packed.write_bytes(gzip.compress(b" " * 10**7))
    assert packed.stat().st_size < 20_000
    deep, endless = tmp_path / "deep.json", tmp_path / "long.json"
    deep.write_text("[" * 100_000 + "]" * 100_000)
    endless.write_text(
        '{"nodes": {"a": {"op": "x", "eclass": "0", "cost": 1' + "0" * 400 + '}}, "root_eclasses": ["0"]}'
    )
    for file, what in ((packed, "more than"), (deep, "nested"), (endless, "10\\^308")):
        with pytest.raises(EgraphError, match=what) as caught:
            read_egraph(file)
        assert file.name in str(caught.value)


def test_many_keys_of_which_two_are_equal_are_found_at_once() -> None:
    """Not by comparing all with all, which would take hours."""
    pairs = [(str(key), None) for key in range(200_000)]
    with pytest.raises(EgraphError, match="'7' is there twice"):
        egraph_module._without_twins([*pairs, ("7", None)])


# --- Proofs by equality saturation with a known answer, and limits.

SUMS = parse_rules("""
    commute: (add ?x ?y) => (add ?y ?x)
    associate: (add (add ?x ?y) ?z) => (add ?x (add ?y ?z))
""")


def proof(rules: str, terms: Terms, left: int, right: int, limits: SaturationLimits) -> int | None:
    return Prover(parse_rules(rules)).steps(terms, [(left, right)], limits)


@pytest.mark.parametrize("order", permutations(range(4)))
def test_sums_of_four_are_equal_in_any_order(order: tuple[int, ...]) -> None:
    terms = Terms()
    parts = [leaf(terms, name, 2) for name in "abcd"]
    left = op(terms, "add", of=(op(terms, "add", of=parts[:2]), op(terms, "add", of=parts[2:])))
    a, b, c, d = (parts[i] for i in order)
    right = op(terms, "add", of=(a, op(terms, "add", of=(b, op(terms, "add", of=(c, d))))))
    rounds = Prover(SUMS).steps(terms, [(left, right)], SaturationLimits(6, 2000))
    assert rounds is not None and rounds <= 5


def test_what_does_not_follow_is_not_proved() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    left, right = op(terms, "add", of=(x, y)), op(terms, "add", of=(x, x))
    rules = "\n".join(map(str, SUMS))
    assert proof(rules, terms, left, right, SaturationLimits()) is None


def test_computed_parameters_of_sources_are_conditions() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2, 3), leaf(terms, "y", 2, 1)
    both = op(terms, "concat", 1, of=(x, y))
    rule = "first: (item 0 (split $a {sizes($a, ?x, ?y)} (concat $a ?x ?y))) => ?x"
    for sizes, rounds in (((3, 1), 1), ((1, 3), None)):
        part = op(terms, "item", 0, of=(op(terms, "split", 1, sizes, of=(both,)),))
        assert proof(rule, terms, part, x, SaturationLimits()) == rounds


def test_a_pair_is_proved_only_where_its_parts_are() -> None:
    """Two pairs at once; of different types, which no rule makes equal, whatever it says."""
    terms = Terms()
    x, y, z = leaf(terms, "x", 2), leaf(terms, "y", 2), leaf(terms, "z", 1, 2)
    sums = [op(terms, "add", of=of) for of in ((x, y), (y, x), (x, z), (z, x))]
    prover = Prover(SUMS)
    assert prover.steps(terms, list(zip(sums[::2], sums[1::2])), SaturationLimits()) == 1
    assert prover.steps(terms, [(sums[0], sums[1]), (sums[0], sums[2])], SaturationLimits()) is None
    wrong = Prover(parse_rules("wrong: (add ?x ?y) => ?x"))
    assert wrong.steps(terms, [(sums[0], x)], SaturationLimits()) == 1
    assert wrong.steps(terms, [(sums[2], x)], SaturationLimits()) is None


def test_what_depends_on_weights_alone_is_proved_too() -> None:
    terms = Terms()
    v, w = (leaf(terms, name, 2, kind="weight") for name in "vw")
    assert (
        Prover(SUMS).steps(terms, [(op(terms, "add", of=(v, w)), op(terms, "add", of=(w, v)))], SaturationLimits()) == 1
    )


def test_growth_ends_at_the_limits() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    grow = Prover(parse_rules("grow: (relu ?x) => (relu (relu (add ?x ?x)))"))
    assert grow.steps(terms, [(op(terms, "relu", of=(x,)), y)], SaturationLimits(100, 50)) is None
    assert 50 <= len(terms) < 60


# --- Exploration of classes of equal terms: congruence, both engines alike, cycles cut, limits kept.

SUM_LAWS = parse_rules("commute: (add ?x ?y) => (add ?y ?x)\nassociate: (add (add ?x ?y) ?z) <=> (add ?x (add ?y ?z))")
MODELS = {
    "squeezenet": {"size": 64, "channels": 8, "classes": 10},
    "bert": {"blocks": 1, "seq": 8, "width": 16, "heads": 2},
    "resnext50": {"size": 32, "channels": 8, "groups": 4},
}


def limits(nodes: int = 10**6, iterations: int = 30, k_multi: int = 1, matches: float = 1e9) -> ExplorationLimits:
    return ExplorationLimits(nodes, iterations, 1e9, k_multi, matches, 5)


def explored(program: Program, rules: RuleSet, by: str = "own", cycles: str = "allowed",
             within: ExplorationLimits | None = None) -> tuple[TermClasses, Explored]:  # fmt: skip
    classes = TermClasses(program.terms)
    classes.add_program(program.outputs)
    if by == "own":
        finder = LoopFinder(rules, classes, static=False)
    else:
        pytest.importorskip("egglog")
        from graphopt.rewrite.egraphs.egglog_finding import EgglogFinder

        finder = EgglogFinder(rules, classes)
    return classes, Explorer(rules, classes, finder, FILTERS[cycles]()).run(within or limits())


def sum_of(count: int) -> Program:
    b = ProgramBuilder()
    total, *others = [b.input((2, 2)) for _ in range(count)]
    for other in others:
        total = b.add(total, other)
    return b.build(total)


def acyclic(classes: TermClasses) -> bool:
    below = {
        at: {child for node in members for child in classes.children[node]} for at, members in classes.members.items()
    }
    try:
        list(TopologicalSorter(below).static_order())
    except CycleError:
        return False
    return True


@pytest.mark.parametrize("by", ["own", "egglog"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_sums_in_every_order(by: str, count: int) -> None:
    """A class per subset of two or more summands, a node per way to split it in two: 2^n - 2 for n summands."""
    classes, end = explored(sum_of(count), SUM_LAWS, by)
    inputs = count
    assert len(classes.members) - inputs == 2**count - 1 - count
    assert len(classes) - inputs == 3**count - 2 ** (count + 1) + 1
    assert end.why == "saturated"


def test_equal_inputs_make_equal_terms() -> None:
    b = ProgramBuilder()
    x, y = b.input((2, 2)), b.input((2, 2))
    left, right = (b.unary("tanh", b.unary("relu", s)) for s in (b.add(x, y), b.add(y, x)))
    classes, _ = explored(b.build(left, right), SUM_LAWS)
    assert classes.find(left) == classes.find(right)
    assert len(classes.members[classes.find(left)]) == 1


def test_users_of_what_is_merged_while_users_are_rebuilt_stay() -> None:
    """x = relu x, then x = y: relu y becomes x as well, and what reads it must read x."""
    terms = Terms()
    x, y = leaf(terms, "x", 2, 2), leaf(terms, "y", 2, 2)
    first, second = op(terms, "relu", of=[x]), op(terms, "relu", of=[y])
    reader = op(terms, "tanh", of=[second])
    classes = TermClasses(terms)
    classes.add_program([first, reader])
    for a, b in ((x, first), (x, y)):
        classes.merge(a, b)
        classes.rebuild()
    assert classes.find(second) == classes.find(x) and classes.children[reader] == (classes.find(x),)


@pytest.mark.parametrize("model", MODELS)
def test_engines_find_the_same(model: str) -> None:
    """The same classes of the same sizes, and terms of the program are told apart alike."""
    found = []
    for by in ("own", "egglog"):
        program = build_model(model, MODELS[model])
        classes, end = explored(program, load_rules("handwritten"), by)
        sizes = sorted((str(classes.types[at]), len(members)) for at, members in classes.members.items())
        found.append((sizes, [classes.find(t) == t for t in program.outputs], end.why))
    assert found[0] == found[1]


@pytest.mark.parametrize("cycles", ["efficient", "vanilla"])
@pytest.mark.parametrize("model", MODELS)
def test_filters_leave_no_cycle_and_every_class_a_node(cycles: str, model: str) -> None:
    program = build_model(model, MODELS[model])
    classes, _ = explored(program, load_rules("handwritten"), cycles=cycles)
    assert acyclic(classes)
    assert all(classes.members.values())


def test_a_cycle_that_is_not_cut_stays() -> None:
    b = ProgramBuilder()
    program = b.build(b.unary("relu", b.input((2, 2))))
    rules = parse_rules("idle: (relu ?x) => (relu (relu ?x))")
    assert not acyclic(explored(program, rules)[0])
    assert acyclic(explored(program, rules, cycles="efficient")[0])


def test_a_merge_that_would_need_its_own_result_is_not_made() -> None:
    """x W and (x W) W: the second reads the first, so one product cannot make both."""
    b = ProgramBuilder()
    x, w, v = b.input((4, 4)), b.weight(4, 4), b.weight(4, 4)
    first = b.matmul(x, w)
    rules = parse_rules(
        "both: (matmul none ?x ?a), (matmul none ?y ?b) => (matmul none ?x (mul ?a ?b)), (matmul none ?y (mul ?a ?b))"
    )
    for cycles in FILTERS:
        assert len(explored(b.build(b.matmul(first, v)), rules, cycles=cycles)[0]) == 5
        assert len(explored(b.build(first, b.matmul(x, v)), rules, cycles=cycles)[0]) > 5


def test_limits_hold() -> None:
    program, rules = sum_of(8), load_rules("handwritten")
    classes, end = explored(program, rules, within=limits(nodes=100))
    assert end.why == "nodes" and len(classes) <= 100 + 3  # the last target may bring several
    assert explored(program, rules, within=limits(iterations=2))[1] == Explored("iterations", 2)
    assert explored(program, rules, within=limits(matches=1.0))[1].why == "resting"
    b = ProgramBuilder()
    x = b.input((4, 4))
    two = b.build(b.linear(x, 4), b.linear(x, 4))
    assert len(explored(two, rules, within=limits(k_multi=0))[0]) == 5 < len(explored(two, rules)[0])
