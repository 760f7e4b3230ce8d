"""Placement on several machines: a policy against an expert, METIS, hill climbing, and learners inside a solve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import everywhere, gain, per_family, priced, share
from graphopt.reporting.figures.room import bounds, shares

POLICY, MODEL = "placement_policy", "run_model"
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
    "run_model": "run_model",
}
UNPRICED = (
    "expert",
    "heft",
    "heft_16",
    "go",
    "network_off",
    "untrained",
    "run_model",
)  # who answers without evaluations

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired by graph, machine and seed, families counted once: `placement_over/PEER` at the largest budget
    that both have, `placement_over/PEER/BUDGET` at each, `placement_over/PEER/MACHINE` at the largest on one machine;
    `slower_than_default` without evaluations (share of answers). `evaluations_hdp_over_go`: how many times as many
    evaluations HDP took to its final price as the policy to that price or a lower one, where HDP beat the default; an
    answer of the policy that never gets there counts its whole budget. `model_over/PEER[/BUDGET]`: the same of
    `run_model`. `possible_over/PEER`: more than this over a peer's last answers is proved to be impossible.
    `share_of_room/placement` (by `run_model` `share_of_room/model`), with `/MACHINE` of each."""
    placed = [{**row, "graph": f"{row['graph']} on {row['machine']}"} for row in rows]
    family = {row["graph"]: row["family"] for row in placed}
    found = [figure for name, algo in PEERS.items() for figure in _against(placed, family, name, algo, POLICY)]
    for name, algo in PEERS.items():
        found += [] if algo == MODEL else _against(placed, family, name, algo, MODEL)
    found += _rooms(placed)
    found += gain("placement_over/default/0", priced(placed, POLICY, 0), _default(placed), family)
    found += share("slower_than_default", priced(placed, POLICY, 0), _default(placed), family)
    return found + per_family("evaluations_hdp_over_go", _evaluations(placed), family)


def _rooms(rows: Sequence[Row]) -> Iterator[Figure]:
    for algo, name in ((POLICY, "placement"), (MODEL, "model")):
        last = max((row["evals_cap"] for row in rows if row["algo"] == algo), default=0)
        yield from shares(rows, algo, last, name)
        for machine in sorted({row["machine"] for row in rows}):
            yield from shares([row for row in rows if row["machine"] == machine], algo, last, f"{name}/{machine}")


def _against(rows: Sequence[Row], family: Mapping[str, str], name: str, algo: str, own: str) -> Iterator[Figure]:
    """Of `own` over `algo`."""
    figure = "placement_over" if own == POLICY else "model_over"
    budgets = sorted({row["evals_cap"] for row in rows if row["algo"] == own}
                     & {row["evals_cap"] for row in rows if row["algo"] == algo})  # fmt: skip
    budgets = [budget for budget in budgets if budget or algo in UNPRICED]
    if not budgets:
        return
    last = budgets[-1]
    ours = {budget: priced(rows, own, budget) for budget in budgets}
    theirs = {budget: everywhere(priced(rows, algo, budget), ours[budget]) for budget in budgets}
    yield from gain(f"{figure}/{name}", ours[last], theirs[last], family)
    if own == POLICY:
        yield from gain(f"possible_over/{name}", bounds(rows, theirs[last]), theirs[last], family)
    for budget in budgets:
        yield from gain(f"{figure}/{name}/{budget}", ours[budget], theirs[budget], family)
    for machine in sorted({row["machine"] for row in rows}):
        here = {key: price for key, price in ours[last].items() if key[0].endswith(f" on {machine}")}
        yield from gain(f"{figure}/{name}/{machine}", here, theirs[last], family)


def _default(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    return {(row["graph"], row["seed"]): float(row["initial"]) for row in rows if row["algo"] == POLICY}


def _evaluations(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """Logarithms."""
    caps = {name: max((row["evals_cap"] for row in rows if row["algo"] == name), default=0) for name in (POLICY, "hdp")}
    last = {
        name: {(row["graph"], row["seed"]): row for row in rows if row["algo"] == name and row["evals_cap"] == cap}
        for name, cap in caps.items()
    }
    found = {}
    for key in last["hdp"].keys() & last[POLICY].keys():
        theirs, ours = last["hdp"][key], last[POLICY][key]
        if theirs["searched"] < theirs["searched_initial"]:
            taken = max(1, theirs["trace"][-1][0])
            reached = [step[0] for step in ours["trace"] if step[2] <= theirs["searched"]]
            found[key] = math.log(taken / max(1, reached[0] if reached else ours["evals_cap"]))
    return found
