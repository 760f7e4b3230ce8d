"""`Machine`: devices, the links between them, and the rule by which results travel. All is data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import UserError
from graphopt.core.utils.marks import Between, NotNegative, Positive, Whole, check_ranges
from graphopt.core.utils.terminal import short

MOST_DEVICES = 1024  # links are matrices of all pairs
LONGEST = 1e9  # seconds of anything
Rate = Annotated[float, Between(1e-30, 1e30)]
AnyRate = Annotated[float, Between(1e-30, math.inf)]
AnyBytes = Annotated[float, Between(0.0, math.inf)]
Peak = Annotated[float, Between(0.0, 1e30)]  # 0: not known
Units = Annotated[int, Between(0, 2**31 - 1)]  # whose products are whole numbers too
Seconds = Annotated[float, Between(0.0, LONGEST)]


@dataclass(frozen=True, kw_only=True)
class Device:
    """One processor and how its kernels are priced (SI units: FLOP/s, B/s, s, B).

    `fusion_model: roofline` reads the fields of the first two blocks; `xla_gpu` reads the third (XLA's GPU cost model);
    `learned` a network's numbers beside peaks, bandwidth and launch (`graphopt.costs.one_kernel.learned_kernel`).
    Defaults are those of an ideal device: no launch cost, no memory cost, 1 FLOP/s, so FLOP are seconds.
    """

    name: str = "ideal"
    fusion_model: Literal["roofline", "xla_gpu", "learned"] = "roofline"
    vector_flops: Rate = 1.0  # peak of elementwise and reduction work
    contraction_flops: Rate = 1.0  # peak of matrix products and convolutions
    bandwidth: AnyRate = float("inf")
    launch: Seconds = 0.0  # overhead of starting a kernel
    capacity: AnyBytes = float("inf")  # bytes of device memory

    strided_factor: NotNegative = 1.0  # bytes of a strided read count this many times
    reread_factor: NotNegative = 0.0  # each further read of a byte already read costs this share
    spill_inputs: Whole = 8  # kernels with more inputs than this spill ...
    spill_factor: NotNegative = 0.0  # ... and slow their memory time by this share per further input
    cache_bytes: AnyBytes = 0.0  # last-level cache: kernels whose working set fits run at cache_speedup x bandwidth
    cache_speedup: Positive = 1.0
    saturation: Positive = 1.0  # elements in flight that are needed to reach the peaks
    prologue_factor: NotNegative = 1.0  # contraction time is multiplied by this when a producer is inlined into it

    clock: Peak = 0.0  # Hz
    cores: Units = 0  # streaming multiprocessors
    fpus_per_core: Units = 0
    l2_bytes: AnyBytes = 0.0

    kind: str = ""  # graphs with measured seconds of this kind of device are priced by them
    pays_transfers: bool = True  # objective max_load: sending and receiving takes the device's own time
    numbers: tuple[float, ...] = ()  # of a learned model of kernels, which an algorithm gives; nobody writes them

    def __post_init__(self) -> None:
        check_ranges(self, f"device {self.name!r}")
        if not np.all(np.isfinite(self.numbers)):
            raise UserError(f"device {self.name!r}: the numbers of its learned model of kernels are not all finite")


@dataclass(frozen=True, kw_only=True)
class TransferRule:
    """How results travel between devices.

    lane: `link` = one transfer at a time per ordered pair of devices; `source` = one outgoing bus per source device;
        `unlimited` = any number at a time, each as fast as if it were alone (the model of HEFT and of DAG scheduling).
    multicast: one transfer of a result serves all its remote consumers, on however many devices; else one each.
    order: waiting transfers go by the priority of the producing op, or first in, first out by when they became ready.
    op_order: ready kernels start by plan priority (ties by op id), or first in, first out by when they became ready.
    ties: the order of kernels that became ready at one instant, first in first out. `id` = the smallest op id, and all
        that can start at an instant does so together. `name` = one thing happens after the other, as in simulators that
        handle one event at a time: results arrive by the names of their producers, then of their readers, as strings;
        then lanes start, then devices, by the names of devices, and a kernel of zero seconds ends before the next
        start. Kernels that wait for nothing are in op order.
    op_overhead: seconds the device stays busy after every kernel of non-zero cost.
    lane_overhead: seconds the lane stays busy after every transfer has arrived.
    clock: `grid` = durations are multiples of 2^-40 s, so sums do not depend on their order and equal times are equal.
        `tick` = times are numbers of ticks in floating point, added up as they occur, so equal sums may differ in the
        last bit, as in simulators that count so; kernels take whole millionths of a tick.
    free: memory of a result is freed when its last consumer ends, or one tick before (`tick_before`: at
        floor(start / tick) + floor(cost / tick) - 1 ticks of its last consumer on any device, received copies not
        counted: the rule of simulators with integer clocks).
    """

    lane: Literal["link", "source", "unlimited"] = "link"
    multicast: bool = False
    order: Literal["priority", "fifo"] = "priority"
    op_order: Literal["priority", "fifo"] = "priority"
    ties: Literal["id", "name"] = "id"
    clock: Literal["grid", "tick"] = "grid"
    op_overhead: Seconds = 0.0
    lane_overhead: Seconds = 0.0
    free: Literal["end", "tick_before"] = "end"
    tick: Positive = 1e-6

    def __post_init__(self) -> None:
        check_ranges(self, "transfer")
        for name, kind in get_type_hints(TransferRule).items():
            choices = get_args(kind)
            if choices and getattr(self, name) not in choices:
                raise UserError(f"transfer.{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if self.lane == "unlimited" and self.lane_overhead:
            raise UserError("transfer.lane_overhead keeps a lane busy: with transfer.lane=unlimited it has to be 0")
        if self.ties == "name" and (self.lane == "unlimited" or {self.order, self.op_order} != {"fifo"}):
            raise UserError("transfer.ties=name needs order=fifo, op_order=fifo, and lane=link or lane=source")

    @property
    def unit(self) -> float:
        """Seconds in which the clock counts."""
        return self.tick if self.clock == "tick" else 1.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """D devices and the links between them.

    Args:
        name: as tables have it.
        devices: D of them, each with its peak FLOP/s, bandwidth in B/s and capacity in bytes.
        link_bandwidth: B/s, one number for every pair or a D x D matrix.
        link_latency: s, likewise.
        transfer: how results travel; more in `TransferRule`.
    Raises: ValueError for a machine without devices, or numbers that are no rates.
    """

    name: str
    devices: tuple[Device, ...]
    link_bandwidth: float | tuple[tuple[float, ...], ...] = float("inf")
    link_latency: float | tuple[tuple[float, ...], ...] = 0.0
    transfer: TransferRule = field(default_factory=TransferRule)

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError(f"machine {self.name!r} has no devices")
        for device in self.devices:
            if device.fusion_model == "xla_gpu" and min(device.clock, device.cores, device.fpus_per_core) <= 0:
                raise ValueError(
                    f"machine {self.name!r}, device {device.name!r}: xla_gpu needs clock, cores, fpus_per_core"
                )
            if device.fusion_model == "learned" and not device.numbers:
                raise ValueError(
                    f"machine {self.name!r}, device {device.name!r}: learned kernels are what algo=kernel_model makes; "
                    "choose roofline or xla_gpu"
                )
        if not np.all(self.link_bandwidth_DD > 0):  # NaN is not
            raise ValueError(f"machine {self.name!r}: link bandwidth must be positive")
        if not np.all((self.link_latency_DD >= 0) & (self.link_latency_DD <= LONGEST)):
            raise ValueError(f"machine {self.name!r}: link latency must be from 0 to {LONGEST:g} seconds")

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def link_bandwidth_DD(self) -> NDArray[np.float64]:
        """[D, D] bytes per second from row to column."""
        return self._matrix(self.link_bandwidth)

    @property
    def link_latency_DD(self) -> NDArray[np.float64]:
        """[D, D] seconds from row to column."""
        return self._matrix(self.link_latency)

    def _matrix(self, value: float | tuple[tuple[float, ...], ...]) -> NDArray[np.float64]:
        d = len(self.devices)
        return np.array(np.broadcast_to(np.asarray(value, np.float64), (d, d)))


def make_machine(*, name: str, devices: Mapping[str, Mapping[str, object]],
                 link_bandwidth: AnyRate | Sequence[Sequence[AnyRate]],
                 link_latency: Seconds | Sequence[Sequence[Seconds]],
                 transfer: Mapping[str, object]) -> Machine:  # fmt: skip
    """A machine from plain data, as in conf/machine/*.yaml.

    devices: fields of `Device` and `count` for each name; where count is above 1 they are called name0, name1, ...
    transfer: fields of `TransferRule`. Raises UserError on an unknown field.
    """
    made: list[Device] = []
    kinds: Mapping[str, Mapping[str, Any]] = devices
    rule: Mapping[str, Any] = transfer
    if not isinstance(devices, Mapping) or not all(isinstance(values, Mapping) for values in devices.values()):
        raise UserError(f"machine {name!r}: devices must be fields by name, as in conf/machine/*.yaml")
    for label, values in kinds.items():
        where, count = f"machine {name!r}, device {label!r}", values.get("count", 1)
        open_fields = [key for key, value in values.items() if value is None]
        if open_fields:
            raise UserError(
                f"{where}: {', '.join(open_fields)} is null and no file of the data set says it (or several differ); "
                f"give machine.devices.{label}.{open_fields[0]}=..., or one file"
            )
        if not _is_whole(count) or not 0 <= count + len(made) <= MOST_DEVICES:
            raise UserError(f"{where}: count={count} must be a whole number, all together at most {MOST_DEVICES:,}")
        given = {key: value for key, value in values.items() if key != "count"}
        _check_fields(where, given, Device)
        made += [Device(name=label if count == 1 else f"{label}{i}", **given) for i in range(count)]
    _check_fields(f"machine {name!r}, transfer", transfer, TransferRule)
    try:
        return Machine(name=name, devices=tuple(made), link_bandwidth=_nested(link_bandwidth),
                       link_latency=_nested(link_latency), transfer=TransferRule(**rule))  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UserError(f"machine {name!r} cannot be: {error}") from None


def _nested(value: float | Sequence[Sequence[float]]) -> float | tuple[tuple[float, ...], ...]:
    return float(value) if isinstance(value, (int, float)) else tuple(tuple(float(v) for v in row) for row in value)


def _check_fields(where: str, given: Mapping[str, Any], kind: type[Device] | type[TransferRule]) -> None:
    """Raises UserError on an unknown field and on a value of another type."""
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)} - {"name"}
    if not isinstance(given, Mapping):
        raise UserError(f"{where} must be fields by name: {', '.join(sorted(known))}")
    if {*given} - known:
        unknown = ", ".join(sorted(map(str, {*given} - known)))[:200]
        raise UserError(f"{where} has no field {unknown}; known fields: {', '.join(sorted(known))}")
    for key, value in given.items():
        if not _fits(value, hints[key]):
            raise UserError(f"{where}: {key}={short(value)} must be {_WORDS.get(hints[key]) or _one_of(hints[key])}")


_WORDS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
}


def _one_of(hint: Any) -> str:
    return f"one of {', '.join(get_args(hint))}"


def _fits(value: Any, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, float) or _is_whole(value)
    if hint is int:
        return _is_whole(value)
    return isinstance(value, hint) if hint in (bool, str) else value in get_args(hint)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
