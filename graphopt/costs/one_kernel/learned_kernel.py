"""A learned model of the time of one kernel (`fusion_model: learned`): a small network over facts that lowering gives
without running the kernel, and the device's data sheet. `algo=kernel_model` trains it and searches with it.

The network corrects a plain roofline, launch + max(arithmetic, memory): without training it is that. After Kaufman et
al., "A Learned Performance Model for Tensor Processing Units" (MLSys 2021), which reads a kernel's ops one by one by a
graph network; sums over the kernel and a network of two hidden layers are our choice, since a search asks it a million
times.

Shape legend: F columns of a kernel, H hidden units, R kernels.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible
from graphopt.core.graph import F64
from graphopt.core.utils.compiled import njit

COLUMNS = (
    "roofline", "vector_time", "contraction_time", "write_time", "read_time", "read_again_time", "strided_time",
    "working_set", "inputs", "ops", "elements", "most_elements", "reductions", "contraction", "prologue",
)  # fmt: skip
HIDDEN = 32
SIZES = (len(COLUMNS) * HIDDEN, HIDDEN, HIDDEN * HIDDEN, HIDDEN, HIDDEN, 1)  # weights and biases, layer by layer
NUMBERS = sum(SIZES)
LEAST = 1e-3  # of a launch: shorter times are alike
SCALE = 1 / 3  # of logarithms


@njit(cache=True, nogil=True)
def learned_kernel_time(f, root, work, w, device):  # type: ignore[no-untyped-def]
    """Seconds of the kernel whose members and reads are in `w` (see `kernel_work`)."""
    x, h, y = np.empty(len(COLUMNS)), np.empty(HIDDEN), np.empty(HIDDEN)
    kernel_columns(f, root, work, w, device, x)
    first = _layer(device.numbers, 0, x, h)
    second = _layer(device.numbers, first, h, y)
    out = device.numbers[second + HIDDEN]
    for i in range(HIDDEN):
        out += device.numbers[second + i] * y[i]
    return device.launch * math.exp(x[0] / SCALE + out)


def _layer(numbers: F64, start: int, x: F64, y: F64) -> int:
    """y = max(0, W x + b), W [H, len(x)] row by row from `start` on, then b; where the next layer begins."""
    bias = start + len(y) * len(x)
    y[:] = numbers[bias : bias + len(y)]
    for k in range(len(x)):
        y += numbers[start + k : bias : len(x)] * x[k]
    np.maximum(y, 0.0, out=y)
    return bias + len(y)


@overload(_layer)
def _compiled_layer(numbers, start, x, y):  # type: ignore[no-untyped-def]
    """The same sums in the same order, without arrays in between."""

    def layer(numbers, start, x, y):  # type: ignore[no-untyped-def]
        bias = start + len(y) * len(x)
        for i in range(len(y)):
            total, row = numbers[bias + i], start + i * len(x)
            for k in range(len(x)):
                total += numbers[row + k] * x[k]
            y[i] = max(0.0, total)
        return bias + len(y)

    return layer


@njit(cache=True, nogil=True)
def kernel_columns(f: Fusible, root: int, work: Any, w: Any, device: Any, x: F64) -> None:
    """Fills x [F]: logarithms of times over a launch, of bytes and of counts."""
    write, read, again, strided, most = f.op[root].out_bytes, 0.0, 0.0, 0.0, work.elements
    for i in range(work.inputs):
        tensor = w.touched[i]
        slot = len(f.op) + tensor
        reads = w.slot[slot].once + w.slot[slot].more
        element = f.tensor[tensor].num_bytes / f.tensor[tensor].numel
        once = min(reads, f.tensor[tensor].numel)
        read += element * once
        again += element * (reads - once)
        strided += element * once if w.slot[slot].strided else 0.0
        most = max(most, once)
    vector = work.vector_flops / device.vector_flops / device.launch
    contraction = work.contraction_flops / device.contraction_flops / device.launch
    memory = device.bandwidth * device.launch
    x[0] = math.log(1.0 + max(vector + contraction, (write + read) / memory))
    x[1], x[2], x[3] = _log(vector), _log(contraction), _log(write / memory)
    x[4], x[5], x[6] = _log(read / memory), _log(again / memory), _log(strided / memory)
    x[7], x[8], x[9] = math.log(1.0 + write + read), math.log(1.0 + work.inputs), math.log(1.0 + work.size)
    x[10], x[11] = math.log(1.0 + work.elements), math.log(1.0 + most)
    reductions, contractions = 0, 0
    for i in range(work.size):
        reductions += 1 if f.op[w.members[i]].heavy == 1 else 0
        contractions += 1 if f.op[w.members[i]].heavy == 2 else 0
    x[12], x[13], x[14] = float(reductions), float(contractions), 1.0 if work.prologue else 0.0
    for i in range(len(x)):
        x[i] *= SCALE


@njit(cache=True, nogil=True)
def _log(value: float) -> float:
    return math.log(max(value, LEAST))


def as_numbers(weights: list[NDArray[np.floating[Any]]]) -> tuple[float, ...]:
    """The fields of a `Device` from the weights and biases of three layers, [H, F], [H], [H, H], [H], [1, H], [1]."""
    return tuple(np.concatenate([part.ravel() for part in weights]).astype(np.float64).tolist())


def from_numbers(numbers: Sequence[float]) -> tuple[F64, F64, F64, F64, F64, F64]:
    """The weights and biases of three layers, [H, F], [H], [H, H], [H], [H], [1], from the fields of a `Device`."""
    parts = np.split(np.array(numbers), np.cumsum(SIZES)[:-1])
    return parts[0].reshape(HIDDEN, -1), parts[1], parts[2].reshape(HIDDEN, -1), parts[3], parts[4], parts[5]
