"""Room for improvement: what searches of growing length reached on random draws, and which draws a filter keeps.

The prices are data of the package (`headroom_prices/OBJECTIVE.json`), made by `graphopt models filter`, which
searches. Here they are only read, so that a data set is the same everywhere and costs no search.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphopt.core.graph import GraphError
from graphopt.datasets.dataset import Split
from graphopt.utils.printable import short
from graphopt.utils.whole import whole_file

Filter = Literal["none", "regal", "gap"]
SHIPPED = Path(__file__).parent / "headroom_prices"
REGAL_SHARE = 0.8  # high budget at least 20 % better than low (regal/README.md of the synthetic data set)
GAP_SHARE = 0.95  # long runs at least 5 % better than the usual budget


@dataclass(frozen=True, slots=True)
class Reached:
    """Costs that BRKGA reached on one draw; inf where no plan fitted into memory."""

    low: float  # after 1,000 evaluations
    high: float  # after 10,000
    usual: float  # after 5,000, mean over runs of other seeds
    best: float  # of the long runs

    def passes(self, wanted: Filter) -> bool:
        """`regal`: only the high budget is feasible, or it is 20 % better. `gap`: 5 % are left after 5,000."""
        if wanted == "regal":
            return math.isfinite(self.high) and self.high <= REGAL_SHARE * self.low
        return wanted == "none" or (math.isfinite(self.best) and self.best <= GAP_SHARE * self.usual)


@dataclass(frozen=True)
class Draws:
    """What fixes a draw, but for its number."""

    objective: str
    family: str
    ops: int
    split: Split

    def __str__(self) -> str:
        return f"{self.objective}/{self.family}/{self.ops}/{self.split}"


@dataclass
class HeadroomPrices:
    """A file of prices: `recipe` says how they were made, `reached` holds those of draw 0, 1, ... of each kind."""

    path: Path
    recipe: dict[str, Any]
    reached: dict[str, list[Reached]]

    def of(self, draws: Draws) -> list[Reached]:
        """Those of a kind of draw; empty when none were made."""
        return self.reached.get(str(draws), [])

    def check(self, made_with: Mapping[str, Any]) -> None:
        """Raises GraphError when the prices are those of other graphs."""
        for key, value in made_with.items():
            if self.recipe.get(key, value) != value:
                raise GraphError(f"{self.path} holds prices of graphs with {key}={self.recipe[key]}, not {value}; "
                                 "make others with `graphopt models filter --file FILE` and name FILE as "
                                 "dataset.room.file, or set dataset.room.filter=none")  # fmt: skip


def load_headroom(path: Path) -> HeadroomPrices:
    """Reads a file of prices; one that does not exist yet is empty. Raises GraphError when it is damaged."""
    if not path.is_file():
        return HeadroomPrices(path, {}, {})
    try:
        stored = json.loads(path.read_text())
        reached = {key: [Reached(*map(_price, row)) for row in rows] for key, rows in stored["reached"].items()}
        return HeadroomPrices(path, dict(stored["recipe"]), reached)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise GraphError(
            f"{path} is no file of room prices ({error}); make it again with `graphopt models filter`"
        ) from None


def _price(stored: Any) -> float:
    """As `_plain` wrote it. Raises ValueError unless it is one."""
    if stored is None:
        return math.inf
    if not isinstance(stored, int | float) or not 0 <= stored < math.inf:
        raise ValueError(f"{short(stored)} is no price")
    return float(_plain(float(stored)) or 0.0)


def save_headroom(room: HeadroomPrices) -> None:
    """Writes the file, a line per kind of draw; a reader never sees half of it."""
    rows = {
        key: json.dumps([[_plain(p) for p in (r.low, r.high, r.usual, r.best)] for r in reached], separators=(",", ":"))
        for key, reached in sorted(room.reached.items())
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {row}" for key, row in rows.items())
    with whole_file(room.path) as file:
        file.write(f'{{"recipe": {json.dumps(room.recipe)},\n "reached": {{\n{lines}\n}}}}\n'.encode())


def _plain(price: float) -> float | int | None:
    """JSON has no infinity; whole numbers of bytes need no decimals."""
    if not math.isfinite(price):
        return None
    return int(price) if price.is_integer() else float(f"{price:.9g}")
