"""`xrlflow_latency`: whole rewritten programs, measured, over the original and over searches by an additive model. A
case is a model of a size on a back end, solved from a seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.problems.cost_model import Price, better
from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.statistics import bootstrap

Row = Mapping[str, Any]
Case = tuple[str, str, int]  # graph, back end, seed
Cases = Mapping[Case, Row]
OURS, TASO, POLICY = "per_model", "taso", "one_policy"


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Counts of cases: `slower`, where X-RLflow's answer is shown to be slower than the original, and `slower/ALGO`;
    `behind/ALGO` and `ahead/ALGO`: shown to be slower, or faster, than that peer's answer;
    `gains_where_additive_loses`: faster where TASO's answer, by an additive model, is slower. Geometric means of
    speed-ups, intervals over models: `over_original`, `over_original/BUDGET`, `over_original/ALGO`,
    `over_taso`, `over_ALGO`.
    `one_policy/share_of_gain`: of the logarithm of what a policy per model gains. What a peer has of seed 0 alone
    stands for every seed."""
    of: dict[str, dict[Case, Row]] = {}
    for row in rows:
        of.setdefault(str(row["algo"]), {})[str(row["graph"]), str(row["judge"]), int(row["seed"])] = row
    ours = of.get(OURS, {})
    if not ours:
        return []
    taso, policy = (_everywhere(of.get(algo, {}), ours) for algo in (TASO, POLICY))
    found = [_count("slower", map(_slower, ours.values())), _mean("over_original", ours)]
    for budget in sorted({int(row["evals_cap"]) for row in ours.values()}):
        alike = {case: row for case, row in ours.items() if row["evals_cap"] == budget}
        found.append(_mean(f"over_original/{budget}", alike))
    for algo, theirs in sorted(of.items()):
        if algo != OURS:
            found += [_count(f"slower/{algo}", map(_slower, theirs.values())), _mean(f"over_original/{algo}", theirs)]
            shared = _everywhere(theirs, ours)
            if shared:
                found.append(_mean(f"over_{algo}", ours, shared))
                found.append(_count(f"behind/{algo}", (_shown(shared[case], ours[case]) for case in shared)))
                found.append(_count(f"ahead/{algo}", (_shown(ours[case], shared[case]) for case in shared)))
    gains = [_faster(ours[case]) and _slower(taso[case]) for case in ours.keys() & taso.keys()]
    return [*found, _count("gains_where_additive_loses", gains), *_share(policy, ours)]


def _everywhere(theirs: Cases, ours: Cases) -> dict[Case, Row]:
    """A peer's rows in the cases of ours."""
    found = {case: theirs.get(case, theirs.get((*case[:2], 0))) for case in ours}
    return {case: row for case, row in found.items() if row is not None}


def _shown(one: Row, other: Row) -> bool:
    """Whether one answer is shown to be faster than another."""
    return better(*(Price(row["judged"], row.get("noise", 0.0)) for row in (one, other)))


def _share(policy: Cases, ours: Cases) -> list[Figure]:
    shared = ours.keys() & policy.keys()
    gained = sum(_log_gain(ours[case]) for case in shared)
    if gained <= 0:
        return []
    share = sum(_log_gain(policy[case]) for case in shared) / gained
    return [Figure("one_policy/share_of_gain", share, share, share)]


def _log_gain(row: Row) -> float:
    return math.log(row["initial"] / row["judged"])


def _slower(row: Row) -> bool:
    return better(Price(row["initial"]), Price(row["judged"], row.get("noise", 0.0)))


def _faster(row: Row) -> bool:
    return better(Price(row["judged"], row.get("noise", 0.0)), Price(row["initial"]))


def _count(name: str, said: Iterable[bool]) -> Figure:
    value = float(sum(said))
    return Figure(name, value, value, value)


def _mean(name: str, ours: Cases, theirs: Cases | None = None) -> Figure:
    """Of speed-ups over the originals, or over the speed-ups of others in the same cases."""
    families: dict[str, list[float]] = {}
    for case, row in ours.items():
        if theirs is None or case in theirs:
            log = _log_gain(row) - (0.0 if theirs is None else _log_gain(theirs[case]))
            families.setdefault(str(row["family"]), []).append(log)
    means = np.array([sum(logs) / len(logs) for logs in families.values()])
    return figure(name, bootstrap(means[:, None], range(len(means))).exp())
