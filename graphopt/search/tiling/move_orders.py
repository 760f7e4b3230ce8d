"""Orders of moves: by chance, or drawn from a table of all that can be, by scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from graphopt.search.tiling import tile_changes as changes
from graphopt.search.tiling.groupings import Grouping, Wiring
from graphopt.search.tiling.move_columns import ABSORB, FUSE, MERGE, SHIFT, SPLIT, STORE
from graphopt.search.tiling.move_table import EVEN, POTENTIAL, SAVED, Move, MoveTable
from graphopt.search.tiling.tile_moves import Draw, propose
from graphopt.sharding.region_choice import ShareNetwork
from graphopt.utils.ranges import NotNegative, Share

SCORES = {"even": EVEN, "saved": SAVED, "potential": POTENTIAL}


@dataclass(frozen=True, kw_only=True)
class MoveOrder:
    """by: `chance`: moves are drawn around random ops, most of which cannot be; else moves that can be are drawn: all
    alike (`even`), by the time for moving tensors that they save (`saved`), or by what they gain at most, links aside
    (`potential`). power: of that, or of what a network expects, in weights. fade: what a failure leaves of a move's
    weight. spread: share of moves drawn evenly all the same."""

    by: Literal["chance", "even", "saved", "potential"]
    power: NotNegative
    fade: Share
    spread: Share


class Mover(Protocol):
    """Makes moves from a grouping."""

    def enter(self, now: Grouping) -> None:
        """From now on it is there."""

    def propose(self, now: Grouping) -> Grouping | None:
        """A move; None where it cannot be made."""

    def refuse(self) -> None:
        """The last move was not taken."""


class ByChance:
    """Around random ops."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def enter(self, now: Grouping) -> None:
        return

    def propose(self, now: Grouping) -> Grouping | None:
        return propose(now, self._draw)

    def refuse(self) -> None:
        return


class ByScore:
    """From a table."""

    def __init__(self, table: MoveTable, draw: Draw, spread: float) -> None:
        self.table, self._draw, self._spread = table, draw, spread
        self.last: Move | None = None

    def enter(self, now: Grouping) -> None:
        self.table.enter(now)

    def propose(self, now: Grouping) -> Grouping | None:
        table, draw = self.table, self._draw
        self.last = None
        if not table.count:
            return None
        even = draw.unit() < self._spread
        self.last = table.move(draw.below(table.count)) if even else table.drawn(draw.unit())
        return made(now, self.last)

    def refuse(self) -> None:
        if self.last is not None:
            self.table.failed(self.last)


def mover_of(wiring: Wiring, draw: Draw, order: MoveOrder, network: ShareNetwork | None = None) -> Mover:
    """What makes moves in this order."""
    if order.by == "chance":
        return ByChance(draw)
    return ByScore(MoveTable(wiring, SCORES[order.by], order.power, order.fade, network), draw, order.spread)


def made(now: Grouping, move: Move) -> Grouping | None:
    """What a move of a table leads to."""
    return _MADE[move.kind](now, move.op, move.other)


_MADE: Mapping[int, Callable[[Grouping, int, int], Grouping | None]] = {
    FUSE: lambda now, op, _: changes.fuse(now, op), STORE: lambda now, op, _: changes.store(now, op),
    SPLIT: lambda now, op, _: changes.split(now, op, 1 << op), SHIFT: changes.shift, ABSORB: changes.absorb,
    MERGE: changes.merge,
}  # fmt: skip
