"""A program out of an e-graph: greedy, exact, reductions; `graphopt rules extract`."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from check_data import check_data
from random_egraphs import least, random_egraph, side_by_side

from graphopt.rewrite import extract
from graphopt.rewrite.egraphs.egraph import Egraph, EgraphError, Enode, egraph_of, read_egraph, write_egraph
from graphopt.rewrite.extraction import elimination, exact_extraction
from graphopt.rewrite.extraction.extracting import (
    NOT_NEEDED,
    Extraction,
    costs_of,
    exact_dag,
    greedy_dag,
    greedy_tree,
)

# --- Extraction against every choice tried, against published e-graphs with known costs, and out of time.

METHODS = (greedy_tree, greedy_dag, lambda egraph: exact_dag(egraph, 10.0))
ROOT = Path(__file__).resolve().parents[2]


def egraph(*nodes: tuple[str, list[str], str, float]) -> Egraph:
    """(operator, children, class, cost); the class of the first node is the root."""
    return egraph_of([Enode(*node) for node in nodes], [nodes[0][2]])


def loops(classes: int, shared: float) -> Egraph:
    """Every class is the next one or a leaf of 3; all leaves need a class that costs `shared`. The last one loops."""
    around = [("f", [str((c + 1) % classes)], str(c), 0.0) for c in range(classes)]
    leaves = [("leaf", ["s"], str(c), 3.0) for c in range(classes)]
    return egraph(*around, *leaves, ("s", [], "s", shared))


def consistent(egraph: Egraph, found: Extraction) -> bool:
    """What an extraction says of itself is so."""
    costs = costs_of(egraph, found.choice)
    cost = costs.tree if found.minimises == "tree" else costs.dag
    kept = (found.tree_cost, found.dag_cost) == (costs.tree, costs.dag) and 0 <= found.bound <= cost
    return kept and found.proven == (found.bound >= cost * (1 - 1e-6))


# Narrow parts need no integer program, unless there are no cells for tables; small parts go to it at once, all
# together, unless `small` is 0.
@pytest.mark.parametrize(("cells", "small"), [(elimination.CELLS, 0), (0, 0), (0, exact_extraction.SMALL)])
def test_every_choice_tried(cells: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "CELLS", cells)
    monkeypatch.setattr(exact_extraction, "SMALL", small)
    extractable = beaten = 0
    for seed in range(1000 * small + cells, 1000 * small + cells + 250):
        tried = random_egraph(seed)
        best = least(tried)
        if best.dag == math.inf:
            for method in METHODS:
                with pytest.raises(EgraphError, match="no finite term"):
                    method(tried)
            continue
        tree, dag, exact = (method(tried) for method in METHODS)
        assert all(consistent(tried, found) for found in (tree, dag, exact)), seed
        assert tree.tree_cost == pytest.approx(best.tree) and tree.proven, seed
        assert exact.dag_cost == pytest.approx(best.dag) and exact.proven, seed
        assert dag.dag_cost >= best.dag - 1e-9
        extractable += 1
        beaten += dag.dag_cost > best.dag + 1e-9
    assert extractable > 150 and beaten > 15  # the greedy method is not as good


def test_costs_add_up_side_by_side() -> None:
    """A hundred e-graphs in one, of parts that are and are not cheap to solve."""
    some = [made for made in map(random_egraph, range(140)) if least(made).dag < math.inf][:100]
    together = side_by_side(some)
    found = exact_dag(together, 30.0)
    assert found.proven and found.dag_cost == pytest.approx(sum(least(made).dag for made in some))
    assert greedy_tree(together).tree_cost == pytest.approx(sum(least(made).tree for made in some))


@pytest.mark.parametrize("classes", [2, 7, 300])
def test_free_loops_are_no_programs(classes: int) -> None:
    """Going round costs nothing, so that only acyclicity makes a leaf be paid."""
    for method in METHODS:
        found = method(loops(classes, 1.0))
        assert found.dag_cost == 4.0 and np.count_nonzero(found.choice != NOT_NEEDED) == 2


def sums(leaves: int) -> Egraph:
    """The sum of so many leaves in every order: a class for each set, a node for each way to split it in two."""
    sets = range(1, 2**leaves)
    parts = [(s, part) for s in sets for part in sets if part & s == part and part < s ^ part]
    nodes = [("+", [str(part), str(s ^ part)], str(s), 1.0) for s, part in parts]
    root = [("all", [str(2**leaves - 1)], "root", 0.0)]
    return egraph(*root, *nodes, *((f"leaf {n}", [], str(1 << n), 1.0) for n in range(leaves)))


@pytest.mark.parametrize("leaves", [3, 5, 7])
def test_a_sum_needs_one_addition_less_than_leaves(leaves: int) -> None:
    """Proved by counting uses: every class but the root must be used."""
    found = exact_dag(sums(leaves), 20.0)
    assert found.dag_cost == 2 * leaves - 1 and found.proven


def test_shared_splits_are_worth_it_for_the_dag_alone() -> None:
    """Two products of one input, or one wider product and two splits of it."""
    both = egraph(
        ("pair", ["l", "r"], "root", 0.0),
        *((("matmul", ["x", f"{side}w"], side, 10.0)) for side in "lr"),
        *((("split", ["wide"], side, 0.5)) for side in "lr"),
        ("matmul", ["x", "both"], "wide", 12.0),
        ("concat", ["lw", "rw"], "both", 0.0),
        *((name, [], name, 0.0) for name in ("x", "lw", "rw")),
    )
    tree, dag, exact = (method(both) for method in METHODS)
    assert (tree.tree_cost, tree.dag_cost) == (20.0, 20.0)
    assert dag.dag_cost == 20.0
    assert (exact.tree_cost, exact.dag_cost, exact.proven) == (25.0, 13.0, True)


def test_set_covering() -> None:
    """Nodes u of a root need one of the sets that contain them; the greedy method takes more sets than needed."""
    contains = {"a": "123", "b": "456", "c": "14", "d": "25", "e": "36"}
    nodes = [("u", [s], n, 0.0) for s, numbers in contains.items() for n in numbers]
    cover = egraph(("all", list("123456"), "root", 0.0), *nodes, *((s, [], s, 1.0) for s in contains))
    assert exact_dag(cover, 10.0).dag_cost == 2.0


def test_tree_costs_beyond_all_numbers() -> None:
    """Each class of a long chain is its child twice: the tree has 2^1500 leaves, the DAG 1501 classes."""
    chain = egraph(*(("+", [str(n + 1)] * 2, str(n), 1.0) for n in range(1500)), ("x", [], "1500", 1.0))
    for method in METHODS:
        found = method(chain)
        assert found.tree_cost == math.inf and found.dag_cost == 1501.0


def test_multiples_of_costs_make_no_difference() -> None:
    """The solver's tolerances are absolute; costs may be nanoseconds."""
    for seed in range(60):
        one = random_egraph(seed)
        if (best := least(one).dag) < math.inf:
            for unit in (1e-12, 1e9):
                nodes = [
                    Enode("f", one.children_of(n).tolist(), int(one.class_of[n]), float(one.cost[n]) * unit)
                    for n in range(one.nodes)
                ]
                scaled = egraph_of(nodes, one.roots.tolist())
                assert exact_dag(scaled, 10.0).dag_cost == pytest.approx(best * unit, rel=1e-6, abs=0)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.2])
def test_out_of_time_it_is_as_good_as_greedy(seconds: float) -> None:
    """What the limit leaves undone, the bound does not claim: the least cost is known to be 19."""
    hard = side_by_side([sums(8), loops(400, 1.0)])
    found = exact_dag(hard, seconds)
    assert consistent(hard, found) and found.bound <= 19.0 <= found.dag_cost <= greedy_dag(hard).dag_cost


def test_the_checker_refuses() -> None:
    """No node, a node of another class, a cycle: whatever found them."""
    made = loops(3, 1.0)
    good = greedy_tree(made).choice
    assert costs_of(made, good).dag == 4.0
    for wrong, what in ((NOT_NEEDED, "no node of it"), (int(made.nodes_of(1)[0]), "no node of it")):
        choice = good.copy()
        choice[0] = wrong
        with pytest.raises(EgraphError, match=what):
            costs_of(made, choice)
    with pytest.raises(EgraphError, match="cycle"):
        costs_of(made, np.array([0, 1, 2, made.nodes_of(3)[0]], np.int32))


@pytest.mark.parametrize("method", METHODS)
def test_a_root_without_a_finite_term(method: object) -> None:
    """A cycle without an end, or only nodes that may not be chosen."""
    for made in (egraph(("f", ["b"], "a", 1.0), ("g", ["a"], "b", 1.0)), egraph(("f", [], "a", math.inf))):
        with pytest.raises(EgraphError, match="root class 'a' has no finite term"):
            method(made)  # type: ignore[operator]


def test_published_egraphs() -> None:
    """extraction-gym's: the least tree cost, the best known DAG cost, and a proof where one is known."""
    folder = check_data("extraction")
    known = json.loads((folder / "known.json").read_text())
    assert len(known) == 30
    for name, figures in known.items():
        made = read_egraph(folder / f"{name.replace('/', '__')}.gz")
        assert (made.classes, made.nodes) == (figures["classes"], figures["nodes"])
        tree, dag, exact = greedy_tree(made), greedy_dag(made), exact_dag(made, 30.0)
        assert all(consistent(made, found) for found in (tree, dag, exact)), name
        assert tree.tree_cost == figures["tree_opt"], name
        assert figures["lower_bound"] <= exact.dag_cost <= figures["best_dag"], name
        assert exact.proven >= figures["proven"] and exact.bound <= figures["best_dag"], name
        assert figures["lower_bound"] <= dag.dag_cost <= figures["greedy_dag"], name


BOTH = {
    "ortools": "from ortools.sat.python import cp_model; m = cp_model.CpModel(); v = m.new_int_var(3, 9, 'v'); "
    "m.minimize(v); s = cp_model.CpSolver(); s.solve(m); print(s.value(v))",
    "extraction": "import test_extraction as t; f = t.exact_dag(t.sums(5), 10.0); print(f.dag_cost, f.proven)",
}


@pytest.mark.parametrize("order", [("ortools", "extraction"), ("extraction", "ortools")])
def test_solvers_share_a_process(order: tuple[str, str]) -> None:
    """OR-Tools brings a HiGHS of its own; each must work after the other."""
    pytest.importorskip("ortools")
    paths = f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]"
    code = "\n".join([paths, *(BOTH[name] for name in (*order, order[0]))])
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    said = {"ortools": "3", "extraction": "9.0 True"}
    assert answer.stdout.splitlines() == [said[name] for name in (*order, order[0])]


# --- The command that extracts: what it prints, in which words, and what it refuses.

ENDLESS = egraph_of([Enode("f", ["a"], "a", 1.0)], ["a"])
SHARED = egraph_of(
    [Enode("pair", ["l", "r"], "root", 0.0)]
    + [Enode("alone", [], side, 10.0) for side in "lr"]
    + [Enode("split", ["wide"], side, 1.0) for side in "lr"]
    + [Enode("wide", [], "wide", 12.0)],
    ["root"],
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shared.json.gz"
    write_egraph(SHARED, path)
    return path


def test_a_table_says_what_was_minimised(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert extract.main([str(file), str(file), "--method", "all"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("shared.json.gz")]
    expected = [
        ["greedy-tree", "tree", "4", "6", "20", "20", "20", "yes"],
        ["greedy-dag", "DAG", "4", "6", "20", "20", "0", "no"],
        ["exact", "DAG", "4", "6", "26", "14", "14", "yes"],
    ]
    assert [row[1:-1] for row in rows] == expected * 2 and least(SHARED) == (20.0, 14.0)
    assert "greedy-tree minimises the tree cost" in out and "exact minimises the DAG cost" in out


def test_lines_of_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert extract.main([str(file), "--json", "--seconds", "5"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line.pop("seconds") < 5
    assert line == {"file": str(file), "classes": 4, "nodes": 6, "method": "exact", "minimises": "DAG",
                    "tree_cost": 26.0, "dag_cost": 14.0, "bound": 14.0, "proven": True}  # fmt: skip


def test_costs_that_no_number_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [Enode("+", [n + 1, n + 1], n, 1.0) for n in range(1100)]
    write_egraph(egraph_of([*nodes, Enode("x", [], 1100, 1.0)], [0]), tmp_path / "deep.json")
    assert extract.main([str(tmp_path / "deep.json"), "--json"]) == 0
    line = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert line["tree_cost"] is None and line["dag_cost"] == 1101.0


@pytest.mark.parametrize(("text", "what"), [("{}", "no 'nodes'"), ("", "no JSON")])
def test_bad_files_are_named_before_anything_is_done(
    file: Path, text: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = file.with_name("bad.json")
    bad.write_text(text)
    with pytest.raises(SystemExit) as ended:
        extract.main([str(file), str(bad), "--json"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == "" and said.err.startswith(str(bad)) and what in said.err


def test_egraphs_without_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_egraph(ENDLESS, tmp_path / "endless.json")
    assert read_egraph(tmp_path / "endless.json").nodes == 1
    with pytest.raises(SystemExit) as ended:
        extract.main([str(tmp_path / "endless.json")])
    assert ended.value.code == 2 and "endless.json: root class 'a' has no finite term" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--method", "best"], ["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "x"]])
def test_words_without_meaning(file: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        extract.main([str(file), *words])
    assert ended.value.code == 2 and words[1] in capsys.readouterr().err
