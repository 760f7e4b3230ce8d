"""REGAL on families that training lacks, by objective, against searches that learn nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import everywhere, gain, least, priced, share

LEARNED = ("regal", "run_model")
BY_PRICES = ("regal_local_heuristic", "local_then_brkga", "windowed", "brkga_seeded", "brkga_informed", "brkga")
BY_MODEL = "roofline_search"  # learns nothing either, but searches in a model of runs first
OWN = {"regal": ("network_off", "untrained"), "run_model": (BY_MODEL,)}  # the same without network, without training

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired by graph and seed, families counted once; a peer that was run with one seed stands against
    every training. SPLIT is near (`dataset=models`) or far (`models_far`). Of each OBJECTIVE and BUDGET:

    - `regal_over_best_unlearned/SPLIT/OBJECTIVE/BUDGET` over whichever of the searches by prices alone has the least mean
      there, and without BUDGET at the largest; `.../per_graph` over the best of them on each graph;
    - `regal_over/PEER/SPLIT/OBJECTIVE/BUDGET` of each peer, the search in a model of runs among them;
    - `network_on_over_off/...`, `trained_over_untrained/...` of REGAL;
    - the same of `run_model`, as `model_over_best_unlearned/...`, `model_over/PEER/...`, `model_on_over_off/...`.
    """
    found = []
    for dataset, split in (("models", "near"), ("models_far", "far")):
        for objective in ("peak_memory", "runtime"):
            here = [row for row in rows if row["dataset"] == dataset and row["objective"] == objective]
            found += [figure for own in LEARNED for figure in _of(own, here, f"{split}/{objective}")]
    return found


def _of(own: str, rows: Sequence[Row], where: str) -> Iterator[Figure]:
    family = {row["graph"]: row["family"] for row in rows}
    name = "model" if own == "run_model" else own
    budgets = sorted({row["evals_cap"] for row in rows if row["algo"] == own})
    for budget in budgets:
        ours = priced(rows, own, budget)
        peers = {peer: everywhere(priced(rows, peer, budget), ours) for peer in (*BY_PRICES, BY_MODEL, *OWN[own])}
        by_prices = [peers[peer] for peer in BY_PRICES if peers[peer]]
        if by_prices:
            best = min(by_prices, key=lambda prices: _behind(prices, ours))
            ends = ("", f"/{budget}") if budget == budgets[-1] else (f"/{budget}",)
            for end in ends:
                yield from gain(f"{name}_over_best_unlearned/{where}{end}", ours, best, family)
            yield from gain(f"{name}_over_best_unlearned/{where}/{budget}/per_graph", ours, least(*by_prices), family)
        for peer in (*BY_PRICES, BY_MODEL):
            if peer not in OWN[own]:
                yield from gain(f"{name}_over/{peer}/{where}/{budget}", ours, peers[peer], family)
        for peer, said in zip(OWN[own], ("on_over_off", "trained_over_untrained"), strict=False):
            first = "network" if own == "regal" and said == "on_over_off" else name
            yield from gain(f"{first}_{said}/{where}/{budget}", ours, peers[peer], family)
        default = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows
                   if row["algo"] == own and row["evals_cap"] == budget}  # fmt: skip
        yield from gain(f"{name}_over_default/{where}/{budget}", ours, default, family)
        yield from share(f"{name}_slower_than_default/{where}/{budget}", ours, default, family)


def _behind(theirs: Mapping[tuple[str, int], float], ours: Mapping[tuple[str, int], float]) -> float:
    """How far a peer is behind, in the geometric mean: the least of the best peer."""
    (figure,) = gain("", ours, theirs, {graph: graph for graph, _ in ours})
    return figure.value
