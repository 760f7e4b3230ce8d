"""`CodeTime`: the time of generated code as a sum over its work (`graphopt.hardware.inductor.code_features`).

Costs are those that `graphopt measure calibrate` measures of operations, reads, writes and loops. Nothing is fitted to
plans: costs that were fitted to some thousands of measured plans were no better (results/tried.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.costs.loops.preset import Level, Preset

Features = Mapping[str, float]
# Instructions -> their names in a preset. Others have their own names there.
CALLED = {"simple": "add", "load": "read", "store": "write", "div": "truediv", "strided": "uneven",
          "mask_load": "truth_read", "mask_store": "truth_write", "fma": "add", "isnan": "add", "is_masked": "add",
          "to": "add", "div_floor_integer": "add", "cascade_sum_combine": "add", "sum_masked_reduce": "add",
          "max_masked_reduce": "add", "min_masked_reduce": "add", "ceil": "floor", "nearbyint": "round",
          "mod": "remainder", "div_floor_floating_vec": "remainder", "calc_digamma": "digamma",
          "calc_erfinv": "erfinv"}  # fmt: skip
MISSED = {"missed_load": "missed_read", "missed_store": "missed_write"}  # counted one by one in vectors too
PART_STORES = 5  # times a load: a vector that is not full is written through a buffer
FUNCTION = 5.0  # ns of a call that no probe knows
CACHES = {"near": (0, 1 << 20), "middle": (1 << 20, 1 << 24), "far": (1 << 24, 1 << 62)}  # bytes since the last use


@dataclass(frozen=True)
class CodeTime:
    """nanoseconds: a unit of each feature. Of others `v.NAME` and `s.NAME` take `FUNCTION`; those that hold the same
    in other units count for nothing."""

    nanoseconds: Mapping[str, float]

    @classmethod
    def of_preset(cls, preset: Preset) -> "CodeTime":
        costs = {"v.part_load": preset.part, "v.part_store": PART_STORES * preset.part, "nests": preset.result,
                 "kernels": preset.kernel, "calls": preset.kernel, "flops": preset.flop}  # fmt: skip
        for kind, table, lanes in (("v", preset.vector, preset.lanes), ("s", preset.scalar, 1)):
            costs |= {f"{kind}.{name}": cost * lanes for name, cost in table.items()}
            costs |= {f"{kind}.{name}": table[known] * lanes for name, known in CALLED.items() if known in table}
            costs |= {f"{kind}.{name}": table[known] for name, known in MISSED.items() if known in table}
        for cache, (low, high) in CACHES.items():
            costs[f"bytes.{cache}"] = sum(_mean(levels, low, high) for levels in (preset.read, preset.write)) / 2
        return cls(costs)

    def of(self, features: Features) -> float:
        """The predicted time of code, in seconds."""
        return sum(self.parts(features).values()) * 1e-9

    def parts(self, features: Features) -> dict[str, float]:
        """The nanoseconds of each feature."""
        return {name: self._cost(name) * count for name, count in features.items()}

    def ratio(self, features: Features, default: Features) -> float:
        """The predicted time over that of the default of the same graph."""
        return self.of(features) / self.of(default)

    def _cost(self, name: str) -> float:
        return self.nanoseconds.get(name, FUNCTION if name.startswith(("v.", "s.")) else 0.0)


def _mean(levels: tuple[Level, ...], low: int, high: int) -> float:
    """ns a byte, of levels between two distances, else of the furthest."""
    found = [cost for size, cost in levels if low < size <= high] or [levels[-1][1]]
    return sum(found) / len(found)
