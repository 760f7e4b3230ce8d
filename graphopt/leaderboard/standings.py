"""Points of entries: the best cost of an instance over an entry's own, 0 where it has none; and their mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.leaderboard.contests import Contest
from graphopt.leaderboard.judging import BoardEntry


@dataclass(frozen=True, slots=True)
class Standing:
    """points: [instance] of an entry, None where it has no price there; mean: over all instances."""

    entry: BoardEntry
    points: Mapping[str, float | None]
    mean: float
    rank: int


def standings(contest: Contest, entries: Sequence[BoardEntry]) -> list[Standing]:
    """The best first; entries of equal points share a rank."""
    best = {instance.name: _least(instance.name, entries) for instance in contest.instances}
    found = [(entry, _points(entry, best)) for entry in entries]
    means = {entry.name: sum(p or 0.0 for p in points.values()) / max(len(best), 1) for entry, points in found}
    ordered = sorted(found, key=lambda pair: (-means[pair[0].name], pair[0].name))
    ranks = {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}
    return [Standing(entry, points, means[entry.name], ranks[entry.name]) for entry, points in ordered]


def _least(instance: str, entries: Sequence[BoardEntry]) -> float:
    return min(
        (s.cost for e in entries for s in e.scores if s.instance == instance and s.cost is not None), default=0.0
    )


def _points(entry: BoardEntry, best: Mapping[str, float]) -> dict[str, float | None]:
    costs = {score.instance: score.cost for score in entry.scores}
    return {name: _ratio(least, costs.get(name)) for name, least in best.items()}


def _ratio(least: float, cost: float | None) -> float | None:
    if cost is None:
        return None
    return 1.0 if cost == least else least / cost
