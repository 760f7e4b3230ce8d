"""Inputs of programs: a description of each input tensor, from which tensors like it are made; and stand-ins for
operators that eager torch lacks."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from graphopt.core.compiler import Device
from graphopt.core.graph import DTYPES, GraphError
from graphopt.core.utils.limits import machine_memory

Fill = Literal["normal", "uniform", "exact"]
EXACT_BYTES = 8 * 2**20  # of the values of one tensor that are kept
COUNTS = {torch.ops.prims.iota, torch.ops.aten.arange}
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FEW = 16  # a tensor with no more distinct values than this is kept as it is: masks, constants, scales


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input tensor: its layout, and how it is filled.

    numbers: mean and standard deviation of `normal`; least and largest value of `uniform`, both included for integers.
    values: the elements of `exact` in order of indices, as they lie in memory.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str  # of DTYPES
    fill: Fill
    numbers: tuple[float, float] = (0.0, 1.0)
    values: bytes = b""

    @property
    def extent(self) -> int:
        """Elements of the memory that the tensor lies in."""
        return extent(self.shape, self.stride)

    @property
    def bytes(self) -> int:
        return self.extent * torch_dtype(self.dtype).itemsize


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 0 if 0 in shape else 1 + sum((d - 1) * s for d, s in zip(shape, stride))


def torch_dtype(name: str) -> torch.dtype:
    """Raises GraphError where graphs have no such type."""
    if name not in DTYPES:
        raise GraphError(f"tensors of type {name} are not measured; use one of {', '.join(DTYPES)}")
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def describe(tensor: Tensor) -> InputSpec:
    """A substitute for a user's tensor. Indices, masks and constants stay as they are, as far as they are at most 8
    MiB; other values are drawn: from a normal distribution, or uniform where none is negative or none positive.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    torch_dtype(dtype)
    fill, numbers, values = _fill(tensor.detach().cpu())
    return InputSpec(tuple(tensor.shape), tuple(tensor.stride()), dtype, fill, numbers, values)


def _fill(tensor: Tensor) -> tuple[Fill, tuple[float, float], bytes]:
    if tensor.numel() * tensor.element_size() <= EXACT_BYTES and (not tensor.is_floating_point() or _few(tensor)):
        return "exact", (0.0, 1.0), raw(tensor)
    wide = tensor.double()
    finite = wide[wide.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if not tensor.is_floating_point() or low >= 0 or high <= 0:
        return "uniform", (low, high), b""
    return "normal", (float(finite.mean()), float(finite.std())), b""


def _few(tensor: Tensor) -> bool:
    """Whether its values are few different ones; a part of it is looked at first."""
    flat = tensor.reshape(-1)
    return all(len(torch.unique(part, sorted=False)) <= FEW for part in (flat[:1000], flat))  # type: ignore[no-untyped-call]


def raw(tensor: Tensor) -> bytes:
    """The elements in order of indices, as they lie in memory."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = flat if flat.stride() == (1,) else flat.clone(memory_format=torch.contiguous_format)  # of one element
    return flat.view(torch.uint8).numpy().tobytes()


def bits_of(values: Iterable[Any]) -> str:
    """A digest of all elements of tensors; of other values, of their text."""
    digest = sha256()
    for value in values:
        digest.update(raw(value.detach().cpu()) if isinstance(value, Tensor) else repr(value).encode())
    return digest.hexdigest()


def from_raw(values: bytes, shape: Sequence[int], dtype: str) -> Tensor:
    """Raises GraphError where the bytes are not that many elements."""
    kind = torch_dtype(dtype)
    if len(values) != prod(shape) * kind.itemsize:
        raise GraphError(f"{len(values)} bytes are no {dtype} tensor of shape {list(shape)}; write the file anew")
    if not values:
        return torch.empty(tuple(shape), dtype=kind)
    if kind is torch.bool:  # any other byte is no truth value
        return torch.frombuffer(bytearray(values), dtype=torch.uint8).ne(0).reshape(tuple(shape))
    return torch.frombuffer(bytearray(values), dtype=kind).reshape(tuple(shape))


def device_of(tensors: Sequence[Tensor]) -> Device:
    """Where all of them lie. Raises GraphError where they lie apart, or where programs cannot be run."""
    found = sorted({str(tensor.device) for tensor in tensors}) or ["cpu"]
    if len(found) > 1:
        raise GraphError(f"tensors lie on {' and '.join(found)}; move the model and its inputs to one of them")
    if found[0] not in ("cpu", "cuda:0"):
        raise GraphError(f"inputs must lie on the CPU or on cuda:0, not on {found[0]}; move the model and its inputs")
    return "cpu" if found[0] == "cpu" else "cuda"


def make_inputs(specs: Sequence[InputSpec], seed: int, device: Device = "cpu") -> list[Tensor]:
    """Tensors as described, the same for the same seed on every device. Raises GraphError when they do not fit into
    memory."""
    total = sum(spec.bytes for spec in specs)
    if total > machine_memory() // 2:
        raise GraphError(f"inputs of {total:,} bytes are more than half of this machine's memory; take a smaller model")
    draws = [torch.Generator().manual_seed(1_000_003 * seed + i) for i in range(len(specs))]
    made = (_made(spec, draw) for spec, draw in zip(specs, draws))
    return [*made] if device == "cpu" else [_moved(tensor, device) for tensor in made]


def _moved(tensor: Tensor, device: Device) -> Tensor:
    """With all memory between its elements, so with its strides."""
    memory = tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,)).to(device)
    return memory.as_strided(tensor.shape, tensor.stride())


def _made(spec: InputSpec, draw: torch.Generator) -> Tensor:
    dtype = torch_dtype(spec.dtype)
    if spec.fill != "exact":
        return _drawn(spec, dtype, draw).as_strided(spec.shape, spec.stride)
    flat = torch.zeros(spec.extent, dtype=dtype)
    place = torch.arange(spec.extent).as_strided(spec.shape, spec.stride).reshape(-1)
    flat[place] = from_raw(spec.values, spec.shape, spec.dtype).reshape(-1)
    return flat.as_strided(spec.shape, spec.stride)


def _drawn(spec: InputSpec, dtype: torch.dtype, draw: torch.Generator) -> Tensor:
    """[extent] random values."""
    first, second = spec.numbers
    if not dtype.is_floating_point:
        return torch.randint(int(first), int(second) + 1, (spec.extent,), generator=draw).to(dtype)
    random = torch.randn if spec.fill == "normal" else torch.rand
    values = random(spec.extent, generator=draw)
    return (values * (second if spec.fill == "normal" else second - first) + first).to(dtype)


def for_eager(gm: GraphModule) -> GraphModule:
    """The same program for eager torch, which has no `arange` of unsigned integers: it counts in int64 and converts.
    `torch.eye` of more than 255 rows is lowered to such a count. `gm` itself where there is none."""
    if not any(map(_counts_unsigned, gm.graph.nodes)):
        return gm
    graph = deepcopy(gm.graph)
    for node in filter(_counts_unsigned, graph.nodes):
        node.args, node.target = (node.target, *node.args), _counted
    return GraphModule(gm, graph)


def _counted(target: Callable[..., Tensor], *args: Any, dtype: torch.dtype, **settings: Any) -> Tensor:
    return target(*args, dtype=torch.int64, **settings).to(dtype)


def _counts_unsigned(node: Node) -> bool:
    return getattr(node.target, "overloadpacket", None) in COUNTS and node.kwargs.get("dtype") in UNSIGNED
