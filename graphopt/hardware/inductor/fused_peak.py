"""The peak memory of a training step that TorchInductor fused for a CPU, before any kernel is compiled.

Both programs are lowered to the Python code that calls their kernels. That code then runs once on zeros, with kernels
that do nothing. So it allocates and frees as it will in use, and so do calls of libraries (convolutions, products).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import IRNode
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from graphopt.core.graph import GraphError
from graphopt.hardware.inductor.lowering import check_version, in_words
from graphopt.hardware.program_run import allocated_peak

SCALAR = {"fx_graph_cache": False, "cpp.simdlen": 1}  # how kernels are written does not matter, and vectors take time
Strides = dict[str, tuple[int, ...]]
Values = list[tuple[str, Any]]  # of placeholders: a name, and a fake tensor or another argument


class _CallingCode(NamedTuple):
    """constants: by name, which the source reads. strides: of results, None for other values than tensors."""

    source: str
    constants: dict[str, Tensor]
    strides: list[tuple[int, ...] | None]


class _CodeStands(BaseException):
    """The code stands; no kernel need be compiled."""


def fused_peaks(forward: GraphModule, backward: GraphModule, outputs: int) -> tuple[int, int]:
    """Bytes at the worst moment of each program, over parameters and inputs. outputs: how many results of the forward
    program are its user's, which keeps them while the backward program runs. Both modules are used up. Raises
    GraphError where Inductor cannot lower them, or where the code does not run."""
    check_version()
    with in_words():
        values = _values(forward, {})
        if not all(value.device.type == "cpu" for _, value in values if isinstance(value, Tensor)):
            raise GraphError("the peaks of fused programs are known on CPUs alone")
        code = _code(forward, values, outputs, backward=False)
        first, results = _ran(code, values, lambda name: True)
        returned: Any = forward.graph.output_node().args[0]
        user, handed = _memory(results[:outputs]), _memory(results[outputs:])
        held = sum(size for place, size in user.items() if place not in handed)
        shared = {node.name for node, result in zip(returned, results, strict=True)
                  if isinstance(result, Tensor) and result.untyped_storage().data_ptr() in user}  # fmt: skip
        laid = zip(returned, code.strides, strict=True)
        values = _values(backward, {node.name: s for node, s in laid if isinstance(node, Node) and s is not None})
        del results
        code = _code(backward, values, 0, backward=True)
        second, _ = _ran(code, values, lambda name: name in shared or name.startswith("tangents"))
        return first, held + second


def _memory(results: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of each storage."""
    storages = [result.untyped_storage() for result in results if isinstance(result, Tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _values(gm: GraphModule, strides: Strides) -> Values:
    """strides: as Inductor lays tensors out that it hands from one program to the other."""
    return [(node.name, _laid_out(node.meta["val"], strides.get(node.name)))
            for node in gm.graph.find_nodes(op="placeholder")]  # fmt: skip


def _laid_out(value: Any, stride: tuple[int, ...] | None) -> Any:
    if not isinstance(value, Tensor) or stride is None or stride == value.stride():
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)


def _code(gm: GraphModule, values: Values, outputs: int, *, backward: bool) -> _CallingCode:
    found, write = list[_CallingCode](), GraphLowering.codegen

    def codegen(graph: GraphLowering) -> Any:
        source = write(graph)[0].value
        found.append(_CallingCode(source, dict(graph.constants), [_stride(out) for out in graph.graph_outputs]))
        raise _CodeStands

    gm.graph.output_node().meta["user_visible_output_idxs"] = list(range(outputs))
    with config.patch(SCALAR), mock.patch.object(GraphLowering, "codegen", codegen), suppress(_CodeStands):
        compile_fx_inner(gm, [value for _, value in values], is_backward=backward)
    return found[0]


def _stride(out: Any) -> tuple[int, ...] | None:
    laid = isinstance(out, IRNode) and out.has_tensor_output()
    return tuple(int(s) for s in out.get_layout().stride) if laid else None  # type: ignore[attr-defined]


def _ran(code: _CallingCode, values: Values, keeps: Callable[[str], bool]) -> tuple[int, list[Any]]:
    """(bytes at the worst moment over parameters and inputs, results). keeps: which of the values by name the caller
    keeps; the program frees the others after their last use."""
    space: dict[str, Any] = {"__name__": __name__, **code.constants}
    results = list[Any]()
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        with mock.patch.object(AsyncCompile, "cpp_pybinding", lambda *_, **__: lambda *_: None):
            exec(compile(code.source, "<fused>", "exec"), space)  # as Inductor itself does with its source
        space["empty_strided_cpu"] = lambda *layout: torch.empty_strided(*layout[:2], dtype=layout[2]).zero_()
        outside = _zeros(pair for pair in values if pair[0].startswith("primals"))

        def run() -> None:
            tensors = {**outside, **_zeros(pair for pair in values if pair[0] not in outside)}
            kept = [value for name, value in tensors.items() if keeps(name)]
            arguments = [tensors.pop(name) for name, _ in values]
            results.extend(space["call"](arguments))
            del kept

        return allocated_peak(run), results


def _zeros(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Real tensors in the place of fake ones; those that share memory still do."""
    found, memory = dict[str, Any](), dict[int, torch.UntypedStorage]()
    for name, value in values:
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            if storage._cdata not in memory:
                memory[storage._cdata] = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            real = torch.empty(0, dtype=value.dtype)
            value = real.set_(memory[storage._cdata], value.storage_offset(), value.shape, value.stride())
        found[name] = value
    return found
