"""Placements that heuristics propose for a graph, and what of each can be known without a price.

Shape legend: N ops, D devices, C candidates, E dependencies.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64
from graphopt.core.list_schedule import bottom_levels
from graphopt.search.heuristics.expert import by_layers
from graphopt.search.heuristics.rules import HEURISTICS, SchedulingInstance, heft_schedule

CAUTIONS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)  # HEFT with transfers so many times as long
RULES = ("list_bottom_level", "spectral", "spectral_by_bytes", "blocks", "blocks_by_bytes")  # of `HEURISTICS`
NAMES = ("initial", *(f"heft_{caution:g}" for caution in CAUTIONS), *RULES, "expert")
KNOWN = ("load", "path", "path_alone", "bound", "busiest_link", "traffic", "cut", "devices", "planned")

I16 = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Candidates:
    """device: [C, N], in the order of `NAMES`. known: [C, len(KNOWN)], see `_known`."""

    device: I16
    known: F64


def candidates(instance: SchedulingInstance) -> Candidates:
    """All of them; no price is asked for."""
    seconds = instance.kernels.time.min(1)
    total = max(float(seconds[np.isfinite(seconds)].sum()), 1e-30)
    device, planned = [np.asarray(instance.initial.device[0])], [np.nan]
    for caution in CAUTIONS:
        schedule = heft_schedule(instance, caution)
        device.append(schedule.device)
        planned.append(schedule.makespan)
    device += [*(HEURISTICS[rule](instance).device for rule in RULES), by_layers(instance)]
    planned += [np.nan] * (len(device) - len(planned))
    device_CN = np.stack([np.asarray(each, np.int16) for each in device])
    known = [_known(instance, each, plan, total) for each, plan in zip(device_CN, planned, strict=True)]
    return Candidates(device_CN, np.array(known))


def _known(instance: SchedulingInstance, device: I16, planned: float, total: float) -> list[float]:
    """Logarithms of shares of the time that all ops take on one device after the other: the most loaded device; the
    longest path, with transfers and without; the larger of load and path, below which no plan is; the busiest link and
    all links together; what HEFT itself expects (of others, the bound). And the share of dependencies that are cut, and
    of devices that are used."""
    needs, ops = instance.needs, np.arange(len(device))
    time = instance.kernels.time[ops, device]
    devices = instance.kernels.time.shape[1]
    reader = device[np.repeat(ops, np.diff(needs.ptr))]
    maker = device[needs.source]
    travel = np.where(maker == reader, 0.0, instance.links.latency[maker, reader]
                      + needs.size * instance.links.per_byte[maker, reader])  # fmt: skip
    load = float(np.bincount(device, time, devices).max())
    path = float(bottom_levels(time, needs, travel).max(initial=0.0))
    alone = float(bottom_levels(time, needs, np.zeros(len(travel))).max(initial=0.0))
    lanes = np.bincount(maker.astype(np.int64) * devices + reader, travel, devices**2)
    bound = max(load, path)
    shares = [load, path, alone, bound, float(lanes.max(initial=0.0)), float(travel.sum())]
    logs = [_log(share / total) for share in shares]
    cut = float((maker != reader).mean()) if len(maker) else 0.0
    used = len(np.unique(device[instance.kernels.is_kernel])) / devices
    return [*logs, cut, used, _log((bound if np.isnan(planned) else planned) / total)]


def _log(share: float) -> float:
    return float(np.log(np.clip(share, 1e-3, 1e3))) if np.isfinite(share) else float(np.log(1e3))
