"""Settings of knobs in the order in which few serve many programs."""

from graphopt.ranking.asked import Asked
from graphopt.ranking.good_settings import good_settings
from graphopt.ranking.measured_plans import MeasuredGraph, MeasuredPlan

READS, OPS = {"reads_threshold": 1}, {"opcount_threshold": 1}


def made(name: str, ratios: list[tuple[dict[str, str], dict[str, int], float]]) -> MeasuredGraph:
    plans = [MeasuredPlan(Asked(*asked), f"{name}{i}", {}, ratio, 0.01, ratio) for i, (*asked, ratio) in
             enumerate([({}, {}, 1.0), *ratios])]  # fmt: skip
    return MeasuredGraph(name, "here", plans[0], tuple(plans[1:]))


def test_what_serves_most_comes_first_and_then_what_adds_to_it() -> None:
    graphs = [
        made("a", [({}, READS, 0.8), ({}, READS | OPS, 0.7), ({}, OPS, 1.2)]),
        made("b", [({}, READS, 1.1), ({}, READS | OPS, 0.9), ({}, OPS, 0.95)]),
        made("c", [({}, READS, 0.9), ({}, OPS, 0.88)]),
    ]
    assert good_settings(graphs) == [READS | OPS, OPS]


def test_requests_for_ops_and_what_helps_nowhere_are_left_out() -> None:
    assert good_settings([made("a", [({"op": "store"}, READS, 0.5), ({}, OPS, 1.01)])]) == []
    assert good_settings([]) == []
