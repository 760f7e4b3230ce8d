"""Policies of fusion against the strongest search without learning, on families that training has not seen: `near`, by
clusters alone, and `far`, where nothing that a test asks about was taught."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, gain, least, priced, share

DATASETS = {"near": "models", "far": "models_far"}
POLICY, SEARCH = "motif_policy", "motif_scan"
RULES = ("default", "inline_all", "xla_priority")
OTHERS = {"network_on_over_off": "network_off", "go_over_lookup": "lookup_policy", "go_over_untrained": "untrained"}
BUDGETS = (0, 20, 200, 1000)


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """In percent, paired, families counted once: `go_over_motif_scan/{near,far}/BUDGET` (at 0 over the best rule of
    each graph), `go_over_default/.../0`, `slower_than_default/.../0` (share of answers), `network_on_over_off/...` (the
    same policy without message passing), `go_over_lookup/...` (a table in its place), `go_over_untrained/...`."""
    family = {row["graph"]: row["family"] for row in rows}
    return [
        figure for place, dataset in DATASETS.items() for budget in BUDGETS
        for figure in _at(rows, family, f"{place}/{budget}", dataset, budget)
    ]  # fmt: skip


def _at(rows: Sequence[Mapping[str, Any]], family: Mapping[str, str], where: str, dataset: str,
        budget: int) -> Iterator[Figure]:  # fmt: skip
    ours = priced(rows, POLICY, budget, dataset)
    yield from gain(f"go_over_motif_scan/{where}", ours, peer(rows, budget), family)
    for name, algo in OTHERS.items():
        yield from gain(f"{name}/{where}", ours, priced(rows, algo, budget, dataset), family)
    if budget == 0:
        default = priced(rows, "default", 0)
        yield from gain(f"go_over_default/{where}", ours, default, family)
        yield from share(f"slower_than_default/{where}", ours, default, family)


def peer(rows: Sequence[Mapping[str, Any]], budget: int) -> dict[Key, float]:
    """Motif scan; without evaluations the best rule of each graph. Data sets differ in training only."""
    if budget:
        return priced(rows, SEARCH, budget)
    return least(*(priced(rows, rule, 0) for rule in RULES))
