"""`xrlflow_one_policy`: one policy for many models, on sizes and models that it has not seen, against itself untaught,
taught by rewards alone, a random one, random rewrites, measured descents, and greedy searches by additive models, all
with equally many measured programs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, everywhere, gain, priced

Row = Mapping[str, Any]
Prices = Mapping[Key, float]
OURS, ALONE, BEST = "one_policy", "one_policy_alone", "per_model"
UNSEEN = ("vit", "dalle_mini")  # models of the experiment's test split that are none of its training split
PEERS = (ALONE, "one_policy_tuned", "untaught", "no_imitation", "random_policy", "rewrite_random", "rewrite_sweeps",
         "remeasured", "remeasured_tensat", "remeasured_greedy", "remeasured_sums")  # fmt: skip
OF_ALONE = ("untaught_alone", "random_policy", "rewrite_random", "rewrite_sweeps", "remeasured_greedy")


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, intervals over families and trainings: `over_original/ALGO`, how much faster answers are than the
    originals; `over/ALGO`, than that peer's; `over/ALGO/unseen`, on models that training has not seen;
    `alone/over/ALGO`: likewise of the policy without the additive searches that open a solve.
    `one_policy/share_of_gain`: of the logarithm of what a policy per model gains, which has four times the budget;
    the least and the most of a training. `slower`: how many of the policy's answers are slower than the original."""
    family = {row["graph"]: row["family"] for row in rows}
    evals = {row["algo"]: row["evals_cap"] for row in rows}
    original = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    found = {algo: priced(rows, algo, cap) for algo, cap in evals.items()}
    said = [one for algo in sorted(found) for one in gain(f"over_original/{algo}", found[algo], original, family)]
    if OURS not in found:
        return said
    ours, alone = found[OURS], found.get(ALONE, {})
    said += [one for algo in PEERS for one in _over(f"over/{algo}", ours, found.get(algo, {}), family)]
    said += [one for algo in OF_ALONE for one in _over(f"alone/over/{algo}", alone, found.get(algo, {}), family)]
    slower = float(sum(cost > original[key] * (1 + 1e-9) for key, cost in ours.items()))
    return [*said, Figure("slower", slower, slower, slower), *_share(ours, found.get(BEST, {}), original)]


def _over(name: str, ours: Prices, theirs: Prices, family: Mapping[str, str]) -> list[Figure]:
    """On all models, and on those that training has not seen."""
    new = {key: cost for key, cost in ours.items() if family[key[0]] in UNSEEN}
    theirs = everywhere(theirs, ours)
    return gain(name, ours, theirs, family) + gain(f"{name}/unseen", new, theirs, family)


def _share(ours: Prices, best: Prices, original: Prices) -> list[Figure]:
    shares = []
    for seed in sorted({seed for _, seed in ours}):
        both = [key for key in ours if key in best and key[1] == seed]
        gained = sum(math.log(original[key] / best[key]) for key in both)
        if gained > 0:
            shares.append(sum(math.log(original[key] / ours[key]) for key in both) / gained)
    mean = sum(shares) / max(1, len(shares))
    return [Figure("one_policy/share_of_gain", mean, min(shares), max(shares))] if shares else []
