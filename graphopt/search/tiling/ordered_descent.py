"""A descent by moves that are drawn from a table of all that can be, by scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from graphopt.search.tiling import tile_changes as changes
from graphopt.search.tiling.groupings import LEAST_GAIN, Grouping
from graphopt.search.tiling.move_columns import ABSORB, FUSE, MERGE, SHIFT, SPLIT, STORE
from graphopt.search.tiling.move_table import EVEN, POTENTIAL, SAVED, ListedMove, MoveTable
from graphopt.search.tiling.tile_moves import Draw
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.utils.ranges import NotNegative, Positive
from graphopt.utils.share_network import ShareNetwork

SCORES = {"even": EVEN, "saved": SAVED, "potential": POTENTIAL}
NOTHING_LEFT = 1e-9  # of the weight of all moves


@dataclass(frozen=True, kw_only=True)
class MoveOrder:
    """by: `passes`: over all ops, at each the merge that gains most (`greedy_merges`); else moves that gain are taken
    as they are drawn: all alike (`even`), by the time for moving tensors that they save (`saved`), or by what they gain
    at most, links aside (`potential`). power: of that, or of what a network expects, in weights. patience: refused
    moves in a row, for every op, that end it."""

    by: Literal["passes", "even", "saved", "potential"]
    power: NotNegative
    patience: Positive


def descended(problem: TilingProblem, now: Grouping, order: MoveOrder, draw: Draw, seconds: float,
              network: ShareNetwork | None = None) -> Grouping:  # fmt: skip
    """Moves that gain, until few are left or `seconds` of the problem's clock are over. What was refused is not drawn
    again before something around it has changed."""
    table, refused = MoveTable(now.wiring, SCORES[order.by], order.power, 0.0, network), 0
    table.enter(now)
    whole, most = table.total, order.patience * now.wiring.workload.num_ops
    while refused < most and table.total > NOTHING_LEFT * whole and problem.seconds < seconds:
        move = table.drawn(draw.unit())
        found = made(now, move)
        if found is not None:
            problem.propose(found.cost, found.schedule)
        if found is None or found.cost > now.cost - LEAST_GAIN:
            table.refuse(move)
            refused += 1
            continue
        now, refused = found, 0
        table.enter(now)
        whole = max(whole, table.total)
    return now


def made(now: Grouping, move: ListedMove) -> Grouping | None:
    """What a move of a table leads to."""
    return _MADE[move.kind](now, move.op, move.other)


_MADE: Mapping[int, Callable[[Grouping, int, int], Grouping | None]] = {
    FUSE: lambda now, op, _: changes.fuse(now, op), STORE: lambda now, op, _: changes.store(now, op),
    SPLIT: lambda now, op, _: changes.split(now, op, 1 << op), SHIFT: changes.shift, ABSORB: changes.absorb,
    MERGE: changes.merge,
}  # fmt: skip
