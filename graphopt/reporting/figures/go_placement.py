"""Placement on several machines: a learned model of runs, and a policy over what heuristics propose, against an expert,
METIS, hill climbing, and learners inside a solve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import everywhere, gain, per_family, priced, share
from graphopt.reporting.figures.room import bounds, shares

MODEL, POLICY, UNTRAINED = "run_model", "placement_policy", "roofline_search"
OWN = {"placement_over": MODEL, "policy_over": POLICY, "untrained_over": UNTRAINED}  # figure -> whose
PEERS = {  # name in figures -> algorithm
    "expert": "expert",
    "metis": "gp_dfs",
    "heft": "heft",
    "heft_16": "heft_16",
    "hill_climbing": "hill_climbing",
    "annealing": "annealing",
    "local_search": "regal_local_heuristic",
    "go": "go",
    "hdp": "hdp",
    "spotlight": "spotlight",
    "placeto": "placeto",
    "neurewriter": "neurewriter",
    "network_off": "network_off",
    "untrained": "untrained",
    "placement_policy": POLICY,
    "roofline_search": UNTRAINED,
}
UNPRICED = (
    "expert",
    "heft",
    "heft_16",
    "go",
    "network_off",
    "untrained",
    POLICY,
    UNTRAINED,
)  # who answers without evaluations

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired by graph, machine and seed, families counted once; a peer that was run with one seed stands
    against every training. Of `run_model`: `placement_over/PEER` at the largest budget that both have,
    `placement_over/PEER/BUDGET` at each, `placement_over/PEER/MACHINE` at the largest on one machine;
    `slower_than_default` without evaluations (share of answers). `evaluations_hdp_over_go`: how many times as many
    evaluations HDP took to its final price as `run_model` to that price or a lower one, where HDP beat the default; who
    never gets there counts its whole budget. `policy_over/PEER...`: the same of `placement_policy`;
    `untrained_over/PEER...`: of `run_model` without its network (`roofline_search`).
    `possible_over/PEER`: more than this over a peer's last answers is proved to be impossible.
    `share_of_room/placement` (by `placement_policy` `share_of_room/policy`), with `/MACHINE` of each."""
    placed = [{**row, "graph": f"{row['graph']} on {row['machine']}"} for row in rows]
    family = {row["graph"]: row["family"] for row in placed}
    found = [
        figure
        for name, own in OWN.items()
        for peer, algo in PEERS.items()
        if algo != own
        for figure in _against(placed, family, peer, algo, name)
    ]
    found += _rooms(placed)
    found += gain("placement_over/default/0", priced(placed, MODEL, 0), _default(placed), family)
    found += share("slower_than_default", priced(placed, MODEL, 0), _default(placed), family)
    return found + per_family("evaluations_hdp_over_go", _evaluations(placed), family)


def _rooms(rows: Sequence[Row]) -> Iterator[Figure]:
    for algo, name in ((MODEL, "placement"), (POLICY, "policy")):
        last = max((row["evals_cap"] for row in rows if row["algo"] == algo), default=0)
        yield from shares(rows, algo, last, name)
        for machine in sorted({row["machine"] for row in rows}):
            yield from shares([row for row in rows if row["machine"] == machine], algo, last, f"{name}/{machine}")


def _against(rows: Sequence[Row], family: Mapping[str, str], name: str, algo: str, figure: str) -> Iterator[Figure]:
    """Of the algorithm that `figure` is about over `algo`, which is called `name`."""
    own = OWN[figure]
    budgets = sorted({row["evals_cap"] for row in rows if row["algo"] == own}
                     & {row["evals_cap"] for row in rows if row["algo"] == algo})  # fmt: skip
    budgets = [budget for budget in budgets if budget or algo in UNPRICED]
    if not budgets:
        return
    last = budgets[-1]
    ours = {budget: priced(rows, own, budget) for budget in budgets}
    theirs = {budget: everywhere(priced(rows, algo, budget), ours[budget]) for budget in budgets}
    yield from gain(f"{figure}/{name}", ours[last], theirs[last], family)
    if own == MODEL:
        yield from gain(f"possible_over/{name}", bounds(rows, theirs[last]), theirs[last], family)
    for budget in budgets:
        yield from gain(f"{figure}/{name}/{budget}", ours[budget], theirs[budget], family)
    for machine in sorted({row["machine"] for row in rows}):
        here = {key: price for key, price in ours[last].items() if key[0].endswith(f" on {machine}")}
        yield from gain(f"{figure}/{name}/{machine}", here, theirs[last], family)


def _default(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    return {(row["graph"], row["seed"]): float(row["initial"]) for row in rows if row["algo"] == MODEL}


def _evaluations(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """Logarithms."""
    ours, theirs = _last(rows, MODEL), _last(rows, "hdp")
    found = {}
    for (graph, seed), own in ours.items():
        other = theirs.get((graph, seed), theirs.get((graph, 0)))
        if other is not None and other["searched"] < other["searched_initial"]:
            taken = max(1, other["trace"][-1][0])
            reached = [step[0] for step in own["trace"] if step[2] <= other["searched"]]
            found[graph, seed] = math.log(taken / max(1, reached[0] if reached else own["evals_cap"]))
    return found


def _last(rows: Sequence[Row], algo: str) -> dict[tuple[str, int], Row]:
    """Rows of the largest budget."""
    cap = max((row["evals_cap"] for row in rows if row["algo"] == algo), default=0)
    return {(row["graph"], row["seed"]): row for row in rows if row["algo"] == algo and row["evals_cap"] == cap}
