"""The search of neighbourhoods: what it finds is a program, never dearer than before, and the cheapest where all is
free."""

import math
import random
import time
from collections.abc import Sequence

import numpy as np
import pytest
from random_egraphs import least, random_egraph, side_by_side

from graphopt.rewrite.egraphs.egraph import I32, Egraph, Enode, egraph_of
from graphopt.rewrite.extraction import elimination, exact_extraction, large_neighbourhoods
from graphopt.rewrite.extraction.exact_extraction import _cheapest, _smaller
from graphopt.rewrite.extraction.extracting import NOT_NEEDED, costs_of, exact_dag, greedy_dag
from graphopt.rewrite.extraction.greedy_extraction import Alternatives, alternatives, cheapest_terms
from graphopt.rewrite.extraction.large_neighbourhoods import LargeNeighbourhoods, price
from graphopt.rewrite.extraction.neighbourhoods import needed, neighbourhood

LONG = 1e9  # seconds


def drawn(count: int) -> list[Egraph]:
    """Random e-graphs that have a program."""
    return [made for made in map(random_egraph, range(2 * count)) if least(made).dag < math.inf][:count]


def as_array(egraph: Egraph, choice: dict[int, int]) -> I32:
    """A choice as `costs_of` checks it, of needed classes alone."""
    result = np.full(egraph.classes, NOT_NEEDED, np.int32)
    for eclass in needed(alternatives(egraph), choice):
        result[eclass] = choice[eclass]
    return result


def solved(open_to: Alternatives, cost: Sequence[float]) -> dict[int, int]:
    return _cheapest(open_to, cost, LONG, math.inf, large=False).choice


def test_what_is_put_together_is_a_program_and_never_dearer() -> None:
    """Whatever is free. Kept classes above free ones may not be used below them: cycles would be found here."""
    draw, changed = random.Random(0), 0
    for made in drawn(50):
        open_to, cost = alternatives(made), made.cost.tolist()
        choice, _ = cheapest_terms(open_to, cost)
        for _ in range(6):
            taken = {c for c in range(made.classes) if draw.random() < 0.5}
            found = neighbourhood(open_to, choice, taken)
            if found is None:
                assert not taken & needed(open_to, choice)
                continue
            new = found.taken_over(choice, solved(found.open_to, [cost[node] for node in found.nodes]))
            assert new is not None
            before, after = (costs_of(made, as_array(made, c)).dag for c in (choice, new))
            assert after <= before + 1e-9 and after == pytest.approx(price(open_to, new, cost))
            changed += after < before - 1e-9
            choice = new
        assert costs_of(made, as_array(made, choice)).dag >= least(made).dag - 1e-9
    assert changed > 3


def test_where_all_is_free_the_cheapest_is_found() -> None:
    for made in drawn(50):
        open_to, cost = alternatives(made), made.cost.tolist()
        choice, _ = cheapest_terms(open_to, cost)
        found = neighbourhood(open_to, choice, set(range(made.classes)))
        assert found is not None
        new = found.taken_over(choice, solved(found.open_to, [cost[node] for node in found.nodes]))
        assert new is not None and price(open_to, new, cost) == pytest.approx(least(made).dag)


def test_only_programs_below_a_cost_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is true of these: at most the least cost where that is below, else at least the given one."""
    monkeypatch.setattr(elimination, "CELLS", 0)
    monkeypatch.setattr(exact_extraction, "SMALL", 0)
    for made in drawn(25):
        open_to, cost, best = alternatives(made), made.cost.tolist(), least(made).dag
        for most in (best * 0.9, best, best * 1.1, best + 1):
            choice, bound = _smaller(open_to, cost, LONG, most)
            if best < most * (1 - 1e-6):
                assert price(open_to, choice, cost) == pytest.approx(best) and bound == pytest.approx(best)
            else:
                assert bound >= most * (1 - 1e-6)


def merging(blocks: int) -> Egraph:
    """Blocks in a row: three products of what the block before made, or one wide product and three parts of it. To make
    one part costs as much as three products, so that nothing short of all three at once is cheaper."""
    nodes = [Enode("x", [], "x0", 0.0)]
    for n in range(blocks):
        nodes += [Enode("w", [], f"w{n}{side}", 0.0) for side in "qkv"]
        nodes += [Enode("concat", [f"w{n}{side}" for side in "qkv"], f"w{n}", 0.1)]
        nodes += [Enode("matmul", [f"x{n}", f"w{n}{side}"], f"{side}{n}", 10.0) for side in "qkv"]
        nodes += [Enode("split", [f"wide{n}"], f"{side}{n}", 0.2) for side in "qkv"]
        nodes += [Enode("matmul", [f"x{n}", f"w{n}"], f"wide{n}", 25.0)]
        nodes += [Enode("attend", [f"{side}{n}" for side in "qkv"], f"x{n + 1}", 1.0)]
    return egraph_of(nodes, [f"x{blocks}"])


def test_merges_of_three_are_found_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """No class of a block gains alone: greedily no block merges, neighbourhoods of a block merge all."""
    monkeypatch.setattr(elimination, "CELLS", 0)
    monkeypatch.setattr(large_neighbourhoods, "SIZES", (8, 16))
    blocks, each = 4, 25.0 + 0.1 + 0.6 + 1.0
    made = merging(blocks)
    open_to, cost = alternatives(made), made.cost.tolist()
    choice = {c: n for c, n in enumerate(greedy_dag(made).choice.tolist()) if n != NOT_NEEDED}
    search = LargeNeighbourhoods(open_to, cost, cheapest_terms(open_to, cost)[0] | choice, _smaller)
    assert search.best == pytest.approx(31.0 * blocks)
    search.run(time.monotonic() + LONG, 0.0)
    assert search.best == pytest.approx(each * blocks)  # ended by itself: nothing is open around any start
    assert costs_of(made, as_array(made, search.choice)).dag == pytest.approx(search.best)


def test_enough_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_neighbourhoods, "SIZES", (8, 16))
    open_to, cost = alternatives(made := merging(6)), merging(6).cost.tolist()
    search = LargeNeighbourhoods(open_to, cost, cheapest_terms(open_to, cost)[0], _smaller)
    start = search.best
    search.run(time.monotonic() + LONG, start)
    assert search.best == start
    search.run(time.monotonic() + LONG, start - 1.0)
    assert least_of(made) - 1e-9 <= search.best <= start - 1.0
    search.run(time.monotonic() - 1.0, 0.0)


def least_of(made: Egraph) -> float:
    return exact_dag(made, 60.0).dag_cost


def test_large_parts_are_searched_and_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: neighbourhoods, the linear program, integers; the sum of what the parts cost is known."""
    monkeypatch.setattr(elimination, "CELLS", 0)
    monkeypatch.setattr(exact_extraction, "SMALL", 5)
    monkeypatch.setattr(exact_extraction, "MANY", 5)
    monkeypatch.setattr(exact_extraction, "SIZES", (4,))
    monkeypatch.setattr(large_neighbourhoods, "SIZES", (4, 8))
    some = drawn(12)
    found = exact_dag(side_by_side(some), 60.0)
    assert found.proven and found.dag_cost == pytest.approx(sum(least(made).dag for made in some))
