"""A program out of an e-graph: greedy, exact, reductions."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from check_data import check_data
from random_egraphs import Enode, Priced, costs_of, egraph_of, least, random_egraph, side_by_side

from graphopt.core.errors import UserError
from graphopt.rewrite.extraction import elimination
from graphopt.rewrite.extraction.extracting import ExactExtraction, exact_dag, greedy_dag, greedy_tree

ROOT = Path(__file__).resolve().parents[2]
METHODS = (greedy_tree, greedy_dag, lambda egraph, cost: exact_dag(egraph, cost, 10.0).choice)


def egraph(*nodes: tuple[str, list[str], str, float]) -> Priced:
    """(operator, children, class, cost); the class of the first node is the root."""
    return egraph_of([Enode(*node) for node in nodes], [nodes[0][2]])


def loops(classes: int, shared: float) -> Priced:
    """Every class is the next one or a leaf of 3; all leaves need a class that costs `shared`. The last one loops."""
    around = [("f", [str((c + 1) % classes)], str(c), 0.0) for c in range(classes)]
    leaves = [("leaf", ["s"], str(c), 3.0) for c in range(classes)]
    return egraph(*around, *leaves, ("s", [], "s", shared))


def sums(leaves: int) -> Priced:
    """The sum of so many leaves in every order: a class for each set, a node for each way to split it in two."""
    sets = range(1, 2**leaves)
    parts = [(s, part) for s in sets for part in sets if part & s == part and part < s ^ part]
    nodes = [("+", [str(part), str(s ^ part)], str(s), 1.0) for s, part in parts]
    root = [("all", [str(2**leaves - 1)], "root", 0.0)]
    return egraph(*root, *nodes, *((f"leaf {n}", [], str(1 << n), 1.0) for n in range(leaves)))


def consistent(made: Priced, found: ExactExtraction) -> bool:
    """What an extraction says of itself is so, by the checker, which knows nothing of how it was found."""
    exact = costs_of(made, found.choice).dag == pytest.approx(found.cost, rel=1e-12)
    return exact and 0 <= found.bound <= found.cost and found.proven == (found.bound >= found.cost * (1 - 1e-6))


# Narrow parts need no integer program, unless there are no cells for tables.
@pytest.mark.parametrize("cells", [elimination.CELLS, 0])
def test_every_choice_tried(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "CELLS", cells)
    extractable = beaten = 0
    for seed in range(cells, cells + 250):
        tried = random_egraph(seed)
        best = least(tried)
        if best.dag == math.inf:
            for method in METHODS:
                with pytest.raises(UserError, match="no finite term"):
                    method(*tried)
            continue
        tree, dag = (costs_of(tried, method(*tried)) for method in METHODS[:2])
        exact = exact_dag(*tried, 10.0)
        assert consistent(tried, exact), seed
        assert tree.tree == pytest.approx(best.tree), seed
        assert exact.cost == pytest.approx(best.dag) and exact.proven, seed
        assert dag.dag >= best.dag - 1e-9
        extractable += 1
        beaten += dag.dag > best.dag + 1e-9
    assert extractable > 150 and beaten > 15  # the greedy method is not as good


@pytest.mark.parametrize("cells", [elimination.CELLS, 0])
def test_costs_add_up_side_by_side(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred e-graphs in one, of parts that are and are not cheap to solve."""
    monkeypatch.setattr(elimination, "CELLS", cells)
    some = [made for made in map(random_egraph, range(140)) if least(made).dag < math.inf][:100]
    together = side_by_side(some)
    found = exact_dag(*together, 30.0)
    assert found.proven and found.cost == pytest.approx(sum(least(made).dag for made in some))
    assert costs_of(together, greedy_tree(*together)).tree == pytest.approx(sum(least(made).tree for made in some))


@pytest.mark.parametrize("classes", [2, 7, 300])
def test_free_loops_are_no_programs(classes: int) -> None:
    """Going round costs nothing, so that only acyclicity makes a leaf be paid."""
    made = loops(classes, 1.0)
    for method in METHODS:
        choice = method(*made)
        assert costs_of(made, choice).dag == 4.0 and len(choice) == 2


def test_tree_costs_beyond_all_numbers() -> None:
    """Each class of a long chain is its child twice: the tree has 2^1500 leaves, the DAG 1501 classes."""
    chain = egraph(*(("+", [str(n + 1)] * 2, str(n), 1.0) for n in range(1500)), ("x", [], "1500", 1.0))
    for method in METHODS:
        assert costs_of(chain, method(*chain)) == (math.inf, 1501.0)


def test_multiples_of_costs_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver's tolerances are absolute; costs may be nanoseconds."""
    monkeypatch.setattr(elimination, "CELLS", 0)
    for seed in range(60):
        one = random_egraph(seed)
        if (best := least(one).dag) < math.inf:
            for unit in (1e-12, 1e9):
                found = exact_dag(one.egraph, [cost * unit for cost in one.cost], 10.0)
                assert found.cost == pytest.approx(best * unit, rel=1e-6, abs=0)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.2])
def test_out_of_time_it_is_as_good_as_greedy(seconds: float) -> None:
    """What the limit leaves undone, the bound does not claim: the least cost is known to be 19."""
    hard = side_by_side([sums(8), loops(400, 1.0)])
    found = exact_dag(*hard, seconds)
    assert consistent(hard, found)
    assert found.bound <= 19.0 <= found.cost <= costs_of(hard, greedy_dag(*hard)).dag


def published(path: Path) -> Priced:
    """A file of egraph-serialize's JSON. Children are names of nodes, which stand for their classes."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    nodes = data["nodes"]
    made = [
        Enode(one["op"], [nodes[child]["eclass"] for child in one["children"]], one["eclass"], one["cost"])
        for one in nodes.values()
    ]
    return egraph_of(made, data["root_eclasses"])


def test_published_egraphs() -> None:
    """extraction-gym's: the least tree cost, the best known DAG cost, and a proof where one is known."""
    folder = check_data("extraction")
    known = json.loads((folder / "known.json").read_text())
    assert len(known) == 30
    for name, figures in known.items():
        made = published(folder / f"{name.replace('/', '__')}.gz")
        assert (made.egraph.classes, len(made.cost)) == (figures["classes"], figures["nodes"])
        exact = exact_dag(*made, 30.0)
        assert consistent(made, exact), name
        assert costs_of(made, greedy_tree(*made)).tree == figures["tree_opt"], name
        assert figures["lower_bound"] <= exact.cost <= figures["best_dag"], name
        assert exact.proven >= figures["proven"] and exact.bound <= figures["best_dag"], name
        assert figures["lower_bound"] <= costs_of(made, greedy_dag(*made)).dag <= figures["greedy_dag"], name


BOTH = {
    "ortools": "from ortools.sat.python import cp_model; m = cp_model.CpModel(); v = m.new_int_var(3, 9, 'v'); "
    "m.minimize(v); s = cp_model.CpSolver(); s.solve(m); print(s.value(v))",
    "extraction": "import test_extraction as t; f = t.exact_dag(*t.sums(5), 10.0); print(f.cost, f.proven)",
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
