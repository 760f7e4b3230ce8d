"""Placement on several machines: a policy against an expert, METIS, hill climbing, and learners inside a solve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, per_family, priced, share

POLICY = "placement_policy"
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
}
UNPRICED = ("expert", "heft", "heft_16", "go", "network_off", "untrained")  # who answers without evaluations

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired by graph, machine and seed, families counted once: `placement_over/PEER` at the largest budget
    that both have, `placement_over/PEER/BUDGET` at each, `placement_over/PEER/MACHINE` at the largest on one machine;
    `slower_than_default` without evaluations (share of answers). `evaluations_hdp_over_go`: how many times as many
    evaluations HDP took to its final price as the policy to that price or a lower one, where HDP beat the default; an
    answer of the policy that never gets there counts its whole budget."""
    placed = [{**row, "graph": f"{row['graph']} on {row['machine']}"} for row in rows]
    family = {row["graph"]: row["family"] for row in placed}
    found = [figure for name, algo in PEERS.items() for figure in _against(placed, family, name, algo)]
    found += gain("placement_over/default/0", priced(placed, POLICY, 0), _default(placed), family)
    found += share("slower_than_default", priced(placed, POLICY, 0), _default(placed), family)
    return found + per_family("evaluations_hdp_over_go", _evaluations(placed), family)


def _against(rows: Sequence[Row], family: Mapping[str, str], name: str, algo: str) -> Iterator[Figure]:
    budgets = sorted({row["evals_cap"] for row in rows if row["algo"] == POLICY}
                     & {row["evals_cap"] for row in rows if row["algo"] == algo})  # fmt: skip
    budgets = [budget for budget in budgets if budget or algo in UNPRICED]
    if not budgets:
        return
    machines = sorted({row["machine"] for row in rows})
    last = budgets[-1]
    yield from gain(f"placement_over/{name}", priced(rows, POLICY, last), priced(rows, algo, last), family)
    for budget in budgets:
        ours, theirs = priced(rows, POLICY, budget), priced(rows, algo, budget)
        yield from gain(f"placement_over/{name}/{budget}", ours, theirs, family)
    for machine in machines:
        here = [row for row in rows if row["machine"] == machine]
        yield from gain(
            f"placement_over/{name}/{machine}", priced(here, POLICY, last), priced(here, algo, last), family
        )


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
