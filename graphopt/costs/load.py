"""The load of every device under a plan: what limits the throughput of pipelined inference.

There all devices work at the same time, on different samples (the rule of Tarnawski et al., "Efficient algorithms for
device placement of DNN graph operators", NeurIPS 2020).

The load of a device is the sum of
- the times of its kernels,
- for every result that leaves it, the time of the transfer once (the longest, where several devices receive it),
- for every result of another device that its kernels read, the time of that transfer once.
Devices that do not pay for transfers (`pays_transfers: false`) have the first part only. Order does not matter. Memory
is that of the weights of a device's kernels: samples stream through.

Shape legend: B plans, N ops, D devices.
"""

import numpy as np

from graphopt.compiled import njit
from graphopt.costs.event import GRID


@njit(cache=True, nogil=True)
def loads(flow, wires, pays, device, load, held):  # type: ignore[no-untyped-def]
    """Device [B, N] -> seconds `load` [B, D] and bytes of weights `held` [B, D], both written from zero."""
    first = flow.out_ptr[0]
    for b in range(len(device)):
        here, seconds, weights = device[b], load[b], held[b]
        for n in range(len(flow.is_kernel)):
            if flow.is_kernel[n]:
                seconds[here[n]] += flow.time[n, flow.column[here[n]]]
        for tensor in range(first):
            seen = np.int64(0)
            for r in range(flow.reader_ptr[tensor], flow.reader_ptr[tensor + 1]):
                there = np.int64(here[flow.reader[r]])
                if flow.is_weight[tensor] and not (seen >> there) & 1:
                    seen |= np.int64(1) << there
                    weights[there] += flow.tensor_bytes[tensor]
        for n in range(len(flow.is_kernel)):
            source = np.int64(here[n])
            for tensor in range(flow.out_ptr[n], flow.out_ptr[n + 1]):
                seen, longest = np.int64(1) << source, 0.0
                for r in range(flow.reader_ptr[tensor], flow.reader_ptr[tensor + 1]):
                    there = np.int64(here[flow.reader[r]])
                    if not (seen >> there) & 1:
                        seen |= np.int64(1) << there
                        travel = _travel(flow.tensor_bytes[tensor], source, there, wires)
                        longest = max(longest, travel)
                        seconds[there] += travel if pays[there] else 0.0
                seconds[source] += longest if pays[source] else 0.0


@njit(cache=True, nogil=True)
def _travel(size, source, there, wires):  # type: ignore[no-untyped-def]
    """Seconds, on the grid on which sums are exact."""
    return np.floor((wires.latency[source, there] + size / wires.bandwidth[source, there]) / GRID + 0.5) * GRID
