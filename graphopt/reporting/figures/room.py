"""How much of the room below the default was taken: of default - bound, a bound that `algo=lower_bound` proved."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, gain, percentage

BOUNDS = "lower_bound"
LEAST = 0.01  # of the default's price: graphs with less room do not count
MUCH = 1.33  # times as fast as the default

Row = Mapping[str, Any]


def shares(rows: Sequence[Row], algo: str, evals: int, name: str) -> Iterator[Figure]:
    """In percent, families counted once, over graphs of which the bound leaves at least a hundredth of the default's
    price: `share_of_room/NAME`, (default - found) / (default - bound); what it is of graphs with less says nothing.
    `room/NAME`: of all graphs, how far the bound is below the default; `with_room/NAME`: how many have as much.
    `over_default_with_much_room/NAME`: how much faster than the default, of graphs where the bound would be `MUCH` as
    fast or more; `with_much_room/NAME`: how many these are; `best_with_much_room/NAME`: of the same graphs, what the
    best of all rows has, whatever its method, seed and budget."""
    found = [row for row in rows if row["algo"] == algo and row["evals_cap"] == evals]
    bound = bounds(rows, {_key(row): 0.0 for row in found})
    found = [row for row in found if _key(row) in bound]
    if not found:
        return
    family = {row["graph"]: row["family"] for row in found}
    room = {_key(row): 1.0 - bound[_key(row)] / row["initial"] for row in found}
    taken = {_key(row): (1.0 - row["judged"] / row["initial"]) / room[_key(row)]
             for row in found if room[_key(row)] >= LEAST}  # fmt: skip
    yield from percentage(f"share_of_room/{name}", taken, family)
    yield from percentage(f"room/{name}", room, family)
    yield from percentage(f"with_room/{name}", {key: float(each >= LEAST) for key, each in room.items()}, family)
    much = {key: each >= 1.0 - 1.0 / MUCH for key, each in room.items()}
    ours = {_key(row): float(row["judged"]) for row in found if much[_key(row)]}
    default = {_key(row): float(row["initial"]) for row in found}
    yield from gain(f"over_default_with_much_room/{name}", ours, default, family)
    yield from percentage(f"with_much_room/{name}", {key: float(each) for key, each in much.items()}, family)
    best = _best(rows)
    yield from gain(f"best_with_much_room/{name}", {key: best[key[0], default[key]] for key in ours}, default, family)


def bounds(rows: Sequence[Row], ours: Mapping[Key, float]) -> dict[Key, float]:
    """The proved bounds of the graphs that ours are of."""
    bound = {row["graph"]: float(row["bound"]) for row in rows if row["algo"] == BOUNDS and row["bound"]}
    return {key: bound[key[0]] for key in ours if key[0] in bound}


def _best(rows: Sequence[Row]) -> dict[tuple[str, float], float]:
    """(graph, the default's price) -> the least price of any row."""
    found: dict[tuple[str, float], float] = {}
    for row in rows:
        place = row["graph"], float(row["initial"])
        found[place] = min(found.get(place, math.inf), float(row["judged"]))
    return found


def _key(row: Row) -> Key:
    return row["graph"], row["seed"]
