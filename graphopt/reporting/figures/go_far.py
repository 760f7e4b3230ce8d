"""Policies of fusion against the strongest search without learning, on families that training has not seen: `near`, by
clusters alone, and `far`, where nothing that a test asks about was taught."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, gain, least, priced, share

DATASETS = {"near": "models", "far": "models_far"}
SEARCH = "motif_scan"
RULES = ("default", "inline_all", "xla_priority")
LEARNED = {"go": "kernel_model", "motif_policy": "motif_policy"}  # beginning of a figure's name: algorithm
OTHERS = {
    "network_on_over_off": ("kernel_model", "roofline_scan"), "go_over_xla_model": ("kernel_model", "modelled_scan"),
    "go_over_motif_policy": ("kernel_model", "motif_policy"),
    "motif_policy_network_on_over_off": ("motif_policy", "network_off"),
    "motif_policy_over_lookup": ("motif_policy", "lookup_policy"),
    "motif_policy_over_untrained": ("motif_policy", "untrained"),
}  # fmt: skip
UNLEARNED = ("roofline_scan", "modelled_scan")
BUDGETS = (0, 20, 200, 1000)


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """In percent, paired, families counted once. `go` is the method that validation chose, `kernel_model`:
    `go_over_motif_scan/{near,far}/BUDGET` (at 0 over the best rule of each graph), `go_over_default/.../0`,
    `slower_than_default/.../0` (share of answers), `network_on_over_off/...` (the same search by a plain roofline),
    `go_over_xla_model/...` (by XLA's model), `go_over_motif_policy/...`; then the same of `motif_policy`, whose network
    is off without message passing, and which also stands against a table in its place and itself untrained."""
    family = {row["graph"]: row["family"] for row in rows}
    return [
        figure for place, dataset in DATASETS.items() for budget in BUDGETS
        for figure in _at(rows, family, f"{place}/{budget}", dataset, budget)
    ]  # fmt: skip


def _at(rows: Sequence[Mapping[str, Any]], family: Mapping[str, str], where: str, dataset: str,
        budget: int) -> Iterator[Figure]:  # fmt: skip
    for name, algo in LEARNED.items():
        ours = priced(rows, algo, budget, dataset)
        yield from gain(f"{name}_over_motif_scan/{where}", ours, peer(rows, budget), family)
        if budget == 0:
            default = priced(rows, "default", 0)
            yield from gain(f"{name}_over_default/{where}", ours, default, family)
            yield from share(f"{'' if name == 'go' else name + '_'}slower_than_default/{where}", ours, default, family)
    for name, (one, other) in OTHERS.items():
        theirs = priced(rows, other, budget, dataset if other not in UNLEARNED else None)
        yield from gain(f"{name}/{where}", priced(rows, one, budget, dataset), theirs, family)


def peer(rows: Sequence[Mapping[str, Any]], budget: int) -> dict[Key, float]:
    """Motif scan; without evaluations the best rule of each graph. Data sets differ in training only."""
    if budget:
        return priced(rows, SEARCH, budget)
    return least(*(priced(rows, rule, 0) for rule in RULES))
