"""`xrlflow_blind`: the policies of `xrlflow_one_policy` on networks by which nothing was chosen, and policies that were
taught on half of these networks."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, everywhere, gain, priced
from graphopt.reporting.figures.rewriting import xrlflow_one_policy

Row = Mapping[str, Any]
FIRST = ("shufflenet", "densenet", "mlp_mixer", "lstm")  # what `families_first` was taught on, in other sizes
HALVES = {"families_first": FIRST, "families_second": ("mobilenet_v2", "regnet_x", "t5", "mixture")}


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Those of `xrlflow_one_policy`; and, in percent, `families/over_original` and `families/over/ALGO`: each policy
    that was taught on half of the networks, on the other half; `families/seen/over/ALGO`: on its own half, in sizes
    that it has not seen. Intervals over networks and trainings."""
    family = {row["graph"]: row["family"] for row in rows}
    original = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    evals = {row["algo"]: row["evals_cap"] for row in rows}
    unseen, seen = (_answers(rows, evals, family, taught=taught) for taught in (False, True))
    found = gain("families/over_original", unseen, original, family)
    for algo in sorted(evals.keys() - HALVES.keys()):
        theirs = priced(rows, algo, evals[algo])
        found += gain(f"families/over/{algo}", unseen, everywhere(theirs, unseen), family)
        found += gain(f"families/seen/over/{algo}", seen, everywhere(theirs, seen), family)
    return [*xrlflow_one_policy.figures(rows), *found]


def _answers(rows: Sequence[Row], evals: Mapping[str, int], family: Mapping[str, str], *,
             taught: bool) -> dict[Key, float]:  # fmt: skip
    """What both policies found, each on the networks that it was taught on or on the others."""
    return {
        key: cost
        for algo, own in HALVES.items()
        for key, cost in priced(rows, algo, evals.get(algo, 0)).items()
        if (family[key[0]] in own) == taught
    }
