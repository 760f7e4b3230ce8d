"""REGAL's synthetic set: random graphs in real units, of which a filter keeps those that leave room for improvement.

Source: the paper's appendix A.1.4 for the graphs (`graphopt.graphs.synthetic`), the README of the published set for the
filter `regal`; the filter `gap` is ours. Prices that searches of growing length reached on random draws are data of the
package (`headroom_prices/OBJECTIVE.json`), so that a data set is the same everywhere and costs no search.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import Graphs, Ops, Positive, Seed, UserPath
from graphopt.core.utils.terminal import short
from graphopt.graphs.dataset import Dataset, Split, check_draws
from graphopt.graphs.synthetic import FAMILIES, SPLITS, split_size, synthetic_graph, topology_digest

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
    """The settings that fix a draw, but for its number."""

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
                                 "name another dataset.room.file, or set dataset.room.filter=none")  # fmt: skip


def load_headroom(path: Path) -> HeadroomPrices:
    """Reads a file of prices. Raises GraphError when there is none or it is damaged."""
    try:
        stored = json.loads(path.read_text())
        reached = {key: [Reached(*map(_price, row)) for row in rows] for key, rows in stored["reached"].items()}
        return HeadroomPrices(path, dict(stored["recipe"]), reached)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise GraphError(f"{path} is no file of room prices ({error})") from None


def _price(stored: Any) -> float:
    """null: no plan fits. Raises ValueError where it is no price."""
    if stored is None:
        return math.inf
    if not isinstance(stored, int | float) or not 0 <= stored < math.inf:
        raise ValueError(f"{short(stored)} is no price")
    return float(stored)


# --- The data set.


Item = TypeVar("Item")
log = logging.getLogger(__name__)
KNOWN = (*FAMILIES, "layered")


@dataclass(frozen=True, kw_only=True)
class HeadroomFilter:
    """Which draws are kept: those that `filter` passes under `objective`.

    `regal`: 10,000 evaluations of BRKGA are feasible and 1,000 are not, or they are 20 % better. `gap`: long runs are
    5 % better than 5,000 evaluations. `none`: all. file: where the prices stand; null: those of the package.
    """

    filter: Filter
    objective: Literal["runtime", "peak_memory"]
    file: UserPath

    @property
    def path(self) -> Path:
        return SHIPPED / f"{self.objective}.json" if self.file is None else Path(self.file).expanduser()


class Regal(Dataset):
    """Random graphs in equal shares of families; where a family has too few that leave room, the others fill its share.

    sizes: mean numbers of ops. train, val, test: graphs of each size. Sizes of single graphs are drawn and belong to
    splits as in `Synthetic`. A unit of tensor size is `bytes_per_unit`, one of cost `flops_per_unit`; `layered` graphs
    have real sizes already. `graph_seed` fixes all draws.
    """

    def __init__(
        self, *, name: str, families: list[str], sizes: list[Ops], train: list[Graphs], val: list[Graphs],
        test: list[Graphs], graph_seed: Seed, bytes_per_unit: Positive, flops_per_unit: Positive, room: HeadroomFilter,
    ) -> None:  # fmt: skip
        self.name, self.families, self.sizes, self.room = name, list(families), list(sizes), room
        self.seed, self._bytes, self._flops = graph_seed, bytes_per_unit, flops_per_unit
        self.counts: dict[Split, list[int]] = {"train": list(train), "val": list(val), "test": list(test)}
        self._graphs: dict[Split, list[Graph]] = {}
        unknown = sorted(set(self.families) - set(KNOWN))
        if unknown or not self.families:
            raise GraphError(f"no synthetic family {', '.join(unknown) or '[]'}; there are {', '.join(KNOWN)}")
        for split, counts in self.counts.items():
            if len(counts) != len(self.sizes):
                raise GraphError(f"dataset.{split}={counts} must hold a number for each of dataset.sizes={self.sizes}")
        check_draws(graph_seed, (*train, *val, *test), self.sizes)

    @property
    def made_with(self) -> dict[str, float]:
        """Settings that change every draw."""
        return {"graph_seed": self.seed, "bytes_per_unit": self._bytes, "flops_per_unit": self._flops}

    def files(self) -> list[Path]:
        return [] if self.room.file is None else [self.room.path]

    def graphs(self, split: Split) -> list[Graph]:
        """Those of all sizes in turn."""
        if split not in self._graphs:
            room = load_headroom(self.room.path)
            room.check(self.made_with if self.room.filter != "none" else {})
            seen: set[str] = set()
            by_size = [self._of_size(split, *pair, room, seen) for pair in zip(self.sizes, self.counts[split])]
            self._graphs[split] = _in_turn(by_size)
        return self._graphs[split]

    def extent(self) -> int | None:
        most = sum(ops * count for counts in self.counts.values() for ops, count in zip(self.sizes, counts))
        return most if self.room.file is None else None

    def draw(self, family: str, ops: int, split: Split, number: int) -> Graph:
        """A draw, not filtered."""
        rng = np.random.default_rng([self.seed, SPLITS.index(split), KNOWN.index(family), ops, number])
        graph = synthetic_graph(family, split_size(ops, split, rng), ops, rng, f"{family}_{ops}_{split}_{number}")
        return graph if family == "layered" else in_units(graph, self._bytes, self._flops)

    def _of_size(self, split: Split, ops: int, count: int, room: HeadroomPrices, seen: set[str]) -> list[Graph]:
        graphs: list[Graph] = []
        per_family = [[(f, n) for n in self._kept(f, ops, split, count, room)] for f in self.families if count]
        for family, number in _in_turn(per_family):
            graph = self.draw(family, ops, split, number)
            digest = topology_digest(graph)
            if len(graphs) < count and digest not in seen:
                seen.add(digest)
                graphs.append(graph)
        if len(graphs) < count:
            log.warning("dataset %s has %d of %d %s graphs of %d ops: no more leave room",
                        self.name, len(graphs), count, split, ops)  # fmt: skip
        return graphs

    def _kept(self, family: str, ops: int, split: Split, count: int, room: HeadroomPrices) -> list[int]:
        """Numbers of the draws that pass the filter, in order."""
        wanted = self.room.filter
        if wanted == "none":
            return list(range(count + 10))  # some may repeat a topology
        reached = room.of(Draws(self.room.objective, family, ops, split))
        if not reached:
            raise GraphError(f"nobody has searched {family} graphs of {ops} ops for room in {self.room.objective} "
                             f"({split}): set dataset.room.filter=none")  # fmt: skip
        return [number for number, found in enumerate(reached) if found.passes(wanted)]


def in_units(graph: Graph, bytes_per_unit: float, flops_per_unit: float) -> Graph:
    """The graph with sizes (of byte vectors) and costs multiplied."""
    num_bytes = np.rint(graph.tensor_bytes * bytes_per_unit).astype(np.int64)
    return dataclasses.replace(
        graph, tensor_bytes=num_bytes, shape=num_bytes.copy(), flops=graph.flops * flops_per_unit
    )


def _in_turn(lists: list[list[Item]]) -> list[Item]:
    """First ones, then second ones, ..."""
    return [item for item in chain.from_iterable(zip_longest(*lists)) if item is not None]
