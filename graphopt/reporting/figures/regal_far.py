"""REGAL on families that training lacks, by objective, against searches that learn nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, everywhere, gain, least, priced

# algorithm -> name in figures
LEARNED = {"regal": "regal", "shipped": "shipped", "run_model": "model", "perturb_policy": "perturb"}
BY_PRICES = ("hot_local", "regal_local_heuristic", "local_then_brkga", "windowed", "brkga_seeded", "brkga_informed",
             "brkga")  # fmt: skip
# These learn nothing either, but search in a model of runs first: run_model untrained, perturb_policy by its rule.
BY_MODEL = ("roofline_search", "hot_modelled")
OTHERS = (*BY_MODEL, "network_off", "untrained")  # REGAL without its network, untrained

Row = Mapping[str, Any]
Prices = Mapping[Key, float]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired by graph and seed, families counted once; a peer that was run with one seed stands against
    every training. SPLIT is near (`dataset=models`) or far (`models_far`). Of each OBJECTIVE and BUDGET:

    - `regal_over_best_unlearned/SPLIT/OBJECTIVE/BUDGET` over that search by prices alone which has the least mean there
      (without BUDGET: at the largest); `.../per_graph` over the best of them on each graph;
    - `regal_over/PEER/SPLIT/OBJECTIVE/BUDGET` of each peer, the searches in a model of runs among them;
    - `regal_network_on_over_off/...`, `regal_trained_over_untrained/...`; `regal_over_default/...`;
    - the same of `shipped`, REGAL with the package's weights; of `run_model`, as `model_over_best_unlearned/...`,
      which untrained is `roofline_search`; of `perturb_policy`, as `perturb_over_best_unlearned/...`, which without its
      network is `hot_modelled`.
    """
    found: list[Figure] = []
    for dataset, split in (("models", "near"), ("models_far", "far")):
        for objective in ("peak_memory", "runtime"):
            here = [row for row in rows if row["dataset"] == dataset and row["objective"] == objective]
            for own, name in LEARNED.items():
                found += _of(own, name, here, f"{split}/{objective}")
    return found


def _of(own: str, name: str, rows: Sequence[Row], where: str) -> Iterator[Figure]:
    family = {row["graph"]: row["family"] for row in rows}
    budgets = sorted({row["evals_cap"] for row in rows if row["algo"] == own})
    for budget in budgets:
        ours = priced(rows, own, budget)
        theirs = {peer: everywhere(priced(rows, peer, budget), ours) for peer in (*BY_PRICES, *OTHERS)}
        at = f"{where}/{budget}"
        several = [theirs[peer] for peer in BY_PRICES if theirs[peer]]
        yield from _over_best(f"{name}_over_best_unlearned/{at}", ours, several, family)
        if several:
            yield from gain(f"{name}_over_best_unlearned/{at}/per_graph", ours, least(*several), family)
        if budget == budgets[-1]:
            yield from _over_best(f"{name}_over_best_unlearned/{where}", ours, several, family)
        for peer in (*BY_PRICES, *BY_MODEL):
            yield from gain(f"{name}_over/{peer}/{at}", ours, theirs[peer], family)
        if own == "regal":
            yield from gain(f"regal_network_on_over_off/{at}", ours, theirs["network_off"], family)
            yield from gain(f"regal_trained_over_untrained/{at}", ours, theirs["untrained"], family)
        default = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows if row["evals_cap"] == budget}
        yield from gain(f"{name}_over_default/{at}", ours, default, family)


def _over_best(name: str, ours: Prices, several: Sequence[Prices], family: Mapping[str, str]) -> Iterator[Figure]:
    """Over the one of several searches that is the best in the mean."""
    if several:
        best = min(several, key=lambda prices: gain("", ours, prices, family)[0].value)
        yield from gain(name, ours, best, family)
