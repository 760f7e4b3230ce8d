"""`Tiled`: what tasks decide that tile, a schedule of subgraphs.

Its file holds the arrays `schedule` and `default`, int32 [L] each, as `graphopt.tiling.schedule.encode` writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.errors import Unreadable
from graphopt.problems import answer_format
from graphopt.problems.answer_format import Arrays
from graphopt.problems.solution import Decided
from graphopt.tiling.schedule import TileSchedule, decode, encode
from graphopt.tiling.workload_files import FILE_BYTES, schedule_of_json
from graphopt.utils.limits import parse_json

if TYPE_CHECKING:
    from graphopt.tiling.tiling_task import TilingTask


@dataclass(frozen=True, eq=False)
class Tiled(Decided):
    """The best schedule and the default's."""

    schedule: TileSchedule
    default: TileSchedule

    format = "graphopt tiling 1"

    @classmethod
    def read(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        schedule, default = (decode(_numbers(arrays, name)) for name in ("schedule", "default"))
        return cls(header, answer_format.trace(arrays), schedule, default)

    @classmethod
    def from_text(cls, content: bytes, source: str) -> tuple[Self, Sequence[float]]:
        """Of the contest's JSON; it claims the sum of its latencies."""
        schedule, claims = schedule_of_json(parse_json(content, source, FILE_BYTES), source)
        return cls({}, np.zeros((0, 3)), schedule, schedule), (sum(claims),)

    def arrays(self) -> Arrays:
        return {"schedule": encode(self.schedule), "default": encode(self.default)}

    def plans(self, graph: Graph, task: "TilingTask") -> Plans:
        return task.realise(graph, self.schedule)

    def default_plans(self, graph: Graph, task: "TilingTask") -> Plans:
        return task.realise(graph, self.default)

    def facts(self) -> list[tuple[str, str]]:
        steps = self.schedule.steps
        runs, kept = sum(len(step.ops) for step in steps), sum(len(step.retain) for step in steps)
        twice = runs - len({op for step in steps for op in step.ops})
        text = f"{len(self.default.steps):,} -> {len(steps):,}; {twice:,} ops computed again, {kept:,} tensors retained"
        return [("subgraphs", text)]


def _numbers(arrays: Arrays, name: str) -> NDArray[Any]:
    found = answer_format.part(arrays, name)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not np.can_cast(found.dtype, np.int64):
        raise Unreadable(f"its {name} is no list of whole numbers: write it again")
    return found
