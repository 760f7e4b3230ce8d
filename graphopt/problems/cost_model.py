"""The cost model's contract: a batch of plans in, a batch of prices out. And why a plan does not fit its machine."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unmeasured
from graphopt.core.graph import F64, Graph
from graphopt.core.kernels import KernelLimits
from graphopt.core.live_storage import LiveStorage
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans, Role

Objective = Literal["runtime", "peak_memory", "max_load"]

PARTS: frozenset[Role | str] = frozenset({Role.DEVICE, Role.PRIORITY, Role.FUSION})  # of every plan


SURE = 2.0  # standard errors of a difference from which it counts: 95 % where errors are normal


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of one plan. noise: the relative standard error of the cost; measurements: the number of timings; both 0
    where the cost is computed."""

    cost: float
    noise: float = 0.0
    measurements: int = 0


def better(a: Price, b: Price) -> bool:
    """Whether a is shown to be lower than b: at all where both are computed, else by `SURE` standard errors of their
    difference, their errors being taken as independent."""
    if not (math.isfinite(a.cost) and math.isfinite(b.cost)):
        return a.cost < b.cost
    return b.cost - a.cost > SURE * math.hypot(a.cost * a.noise, b.cost * b.noise)


@dataclass(frozen=True)
class Prices:
    """The costs of a batch of B plans: seconds for `runtime` and `max_load`, bytes for `peak_memory`.

    An infeasible plan costs inf; `excess` says by how much (bytes over capacity / capacity, summed over devices), so
    that a learner can be punished in proportion. Measured prices have `noise` and `measurements`, as `Price` has them.
    """

    cost: NDArray[np.float64]  # [B]
    excess: NDArray[np.float64]  # [B], 0 where feasible
    noise: NDArray[np.float64] | float = 0.0  # [B], or of all
    measurements: NDArray[np.int64] | int = 0  # [B], or of all

    def __post_init__(self) -> None:
        if np.isnan(self.cost).any() or np.isnan(self.excess).any():
            raise Unmeasured("a plan's price came out as no number (NaN); correct the cost model or the graph's sizes")

    def of(self, plan: int) -> Price:
        """The price of one plan of the batch."""
        noise, timings = (np.broadcast_to(part, len(self.cost))[plan] for part in (self.noise, self.measurements))
        return Price(float(self.cost[plan]), float(noise), int(timings))


class FlipState(NamedTuple):
    """inline: [N] legal flags. seconds: [N] of the kernel that each stored op ends, 0 of others. cost: their price."""

    inline: NDArray[np.bool_]
    seconds: F64
    cost: float


class Flips(Protocol):
    """Exact delta pricing around one decision of a binary fusion task: equal to full pricing to the last digit."""

    inline: NDArray[np.bool_]  # [N] the current, legal state
    cost: float  # its price

    def price(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] price of the plan after flipping each op alone (the current price where the flip is not legal)."""

    def apply(self, op: int) -> None:
        """Makes the flip of `op` the current state."""

    def follow(self, requests: NDArray[np.uint8]) -> float:
        """Makes requests [N] to inline the current state, as far as they are legal; its price."""

    def saved(self) -> FlipState:
        """The current state, to come back to."""

    def restore(self, state: FlipState) -> None:
        """Makes a saved state the current one."""


class CostModel(ABC):
    """Prices plans. `needs` names required parts of a graph (e.g. `program` for executing cost models).

    reads: the parts of plans that count, by roles, and the names of further choices (`Plans.choices`) that it reads. A
    task may decide no other choices. assumes: of these choices, those that it has a default for where no task decides
    them; the others must be there.
    """

    name: str
    objective: Objective
    needs: ClassVar[frozenset[str]] = frozenset()
    deterministic: ClassVar[bool] = True  # a plan has one price; False where it is measured
    reads: ClassVar[frozenset[Role | str]] = PARTS
    assumes: ClassVar[frozenset[str]] = frozenset()
    prices_programs: ClassVar[bool] = False  # only which ops there are counts (graphopt/rewrite/program_cost.py)
    by_events: ClassVar[bool] = False  # prices by the rules of graphopt/costs/event.py, as exact methods do
    # Offers beside prices: `ends` (`price_and_ends`), `storage`, `prices of single ops` (ProgramCost.term_price).
    provides: ClassVar[frozenset[str]] = frozenset()
    one_device: ClassVar[bool] = False  # prices plans on one device alone
    op_by_op: ClassVar[bool] = False  # prices plans alone in which nothing is fused
    at_once: int = 1  # threads that may price plans at the same time

    @abstractmethod
    def price(self, plans: Plans) -> Prices:
        """Prices of all plans of the batch, in one call. Simulators give equal plans equal prices.

        Args:
            plans: B plans of one graph.
        Returns: B prices, in seconds or bytes as the objective says; inf where a plan does not fit.
        """

    def price_and_ends(self, plan: Plans) -> tuple[Prices, F64] | None:
        """The price of one plan (a batch of one), and when the kernel of each op ends [N] in seconds, 0 for ops without
        one; None where nothing is known but the price."""
        return None

    def peak_bytes(self, plan: Plans) -> NDArray[np.int64] | None:
        """[D] bytes that each device holds at its worst time under a plan (a batch of one); None where no device's
        capacity counts."""
        return None

    def storage(self, graph: Graph) -> LiveStorage | None:
        """Allocations of every op, where the price of a plan is the peak of its order on one device; else None."""
        return None

    def stored(self) -> Mapping[str, object]:
        """Values that stored answers keep in this model's configuration, so that they are priced alike elsewhere."""
        return {}

    def flips(self, graph: Graph, inline: NDArray[np.bool_], limits: KernelLimits) -> Flips | None:
        """A delta pricer that starts from legal flags `inline` [N], every op on device 0; None when there is none."""
        return None


OPS_PER_THREAD = 4000  # fewer op evaluations than this are not worth a thread


def rows_per_thread(graph: Graph, rows: int, threads: int) -> int:
    """How many of the plans of a batch a thread takes."""
    return max(-(-rows // threads), -(-OPS_PER_THREAD // graph.num_ops))


def price_of(plan: Plans, cost: CostModel) -> Price:
    """Of a batch of one, for nobody's budget."""
    return cost.price(plan).of(0)


def lack_of_memory(plan: Plans, cost: CostModel, machine: Machine) -> str:
    """The sentence for a plan (a batch of one) whose price is infinite; empty where the cost model knows no memory."""
    held = cost.peak_bytes(plan)
    if held is None:
        return ""
    over = [
        f"{device.name} needs {amount(need)}, {amount(need - device.capacity)} more than its {amount(device.capacity)}"
        for device, need in zip(machine.devices, held.tolist(), strict=True)
        if need > device.capacity
    ]
    if not over:
        return ""
    used = {int(d) for d, inline in zip(plan.device[0], plan.inline[0]) if not inline}
    advice = "Give more devices"
    if machine.num_devices > 1 and len(used) == 1:
        advice = f"Spread the ops over the {machine.num_devices} devices (task=placement or task=joint), or give more"
    return (
        f"no plan found fits the devices' memory: {'; '.join(over)}. {advice} "
        "(machine.devices.NAME.count=...) or larger ones (machine.devices.NAME.capacity=BYTES)"
    )


def amount(size: float) -> str:
    """Bytes in words: 4.95 MB. Decimal units, three digits."""
    units, scale = ("B", "kB", "MB", "GB", "TB", "PB"), 0
    while scale < len(units) - 1 and float(f"{abs(size):.3g}") >= 1000:
        size, scale = size / 1000, scale + 1
    return f"{size:.3g} {units[scale]}"
