"""A program run op by op in an order, inputs given away and values dropped after their last use, and what its allocator
reports meanwhile.

On a CPU the allocator's own reports are read from PyTorch's profiler: results, and what operators allocate inside. What
MKL or oneDNN take from the system for themselves is not among them. On a GPU they are the caching allocator's
statistics, in its blocks of 512 bytes.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import profile, record_function
from torch.fx import Node
from torch.fx.node import map_arg

from graphopt.execution.program_steps import ProgramSteps

MARK = "graphopt node "
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler tells the terminal nothing of its own


@dataclass(frozen=True, eq=False)
class Execution:
    """What one run did."""

    outputs: list[Tensor | None]
    resident: int  # bytes there before it: inputs, weights, constants
    peak: int  # bytes at the worst moment, with what was resident
    workspace: list[int]  # [nodes] bytes above what lived before, at each node's worst moment


class Values:
    """What lives during a run: values of nodes, dropped after their last use in the sequence."""

    def __init__(self, steps: ProgramSteps, sequence: Sequence[Node], inputs: list[Tensor]) -> None:
        self.steps, self.sequence = steps, sequence
        self.device = next((value.device for value in inputs), torch.device("cpu"))
        self.of: dict[Node, Any] = {}
        self.left = Counter(given for node in sequence for given in dict.fromkeys(node.all_input_nodes))
        self.left.update(node for node in steps.outputs if node is not None)
        for node in steps.module.graph.nodes:
            if node.op == "get_attr" and self.left[node]:
                value = getattr(steps.module, str(node.target))
                self.of[node] = value if value.is_meta else value.to(self.device)
                self.left[node] += 1
        for i, node in enumerate(steps.placeholders):
            value, stays = inputs[i], i not in steps.given
            if self.left[node] or stays:
                self.of[node] = value
                self.left[node] += stays

    def begin(self) -> None:
        """Takes copies of the inputs that are given away, which an allocator that is watched then knows."""
        for i, node in enumerate(self.steps.placeholders):
            if i in self.steps.given and node in self.of:
                old = self.of[node]
                self.of[node] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
                self.of[node].copy_(old)

    def run(self, node: Node) -> None:
        """Computes a node and drops what nobody reads any more."""
        args, kwargs = map_arg((node.args, node.kwargs), self.of.__getitem__)
        value = node.target(*args, **kwargs)  # type: ignore[operator]
        del args, kwargs
        if node in self.steps.parts:
            for part in self.steps.parts[node]:
                self.of[part] = value[part.args[1]]
        else:
            self.of[node] = value
        del value
        self.drop(node)

    def drop(self, node: Node) -> None:
        """Forgets what nobody reads after this node."""
        for given in dict.fromkeys(node.all_input_nodes):
            self.left[given] -= 1
            if not self.left[given]:
                del self.of[given]
        for made in self.steps.parts.get(node, [node]):
            if not self.left[made]:
                del self.of[made]


def execute(steps: ProgramSteps, order: Sequence[int], inputs: list[Tensor]) -> Execution:
    """Runs the program in an order of its ops."""
    return run_all(Values(steps, steps.in_order(order), inputs))


def run_all(values: Values) -> Execution:
    """Runs a sequence to its end."""
    resident = sum(storages(values.of.values()).values())
    torch.manual_seed(0)
    with torch.no_grad():
        recorded = _on_gpu(values) if values.device.type == "cuda" else _on_cpu(values)
    outputs = [None if node is None else values.of[node] for node in values.steps.outputs]
    return Execution(outputs, resident, resident + recorded.peak, recorded.workspace)


def storages(values: Any) -> dict[int, int]:
    """Storage -> its bytes, of all tensors in a nesting of values."""
    found: dict[int, int] = {}
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, (list, tuple)):
            stack += value
        elif isinstance(value, Tensor) and not value.is_meta:
            found[value.untyped_storage()._cdata] = size_of(value)
    return found


def size_of(value: Tensor) -> int:
    """Bytes of its storage, as its device's allocator gives them out."""
    size = value.untyped_storage().nbytes()
    return -(-size // 512) * 512 if value.is_cuda else size


class _Recorded(NamedTuple):
    peak: int  # bytes over what was there at the start
    workspace: list[int]


def _on_cpu(values: Values) -> _Recorded:
    with profile(use_cpu=True, profile_memory=True) as profiler:
        values.begin()
        for i, running in enumerate(values.sequence):
            with record_function(f"{MARK}{i}"):
                values.run(running)
    tree: Any = profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    live = peak = 0
    began, workspace = dict[int, int](), [0] * len(values.sequence)
    for _, node, change in sorted(_changes(tree)):
        if node >= 0:
            before = began.setdefault(node, live)
            live += change
            peak, workspace[node] = max(peak, live), max(workspace[node], live - before)
    return _Recorded(peak, workspace)


def allocated_peak(run: Callable[[], object]) -> int:
    """Most bytes that a CPU's allocator had given out at any moment of a call, over those from before it."""
    with profile(use_cpu=True, profile_memory=True) as profiler:
        run()
    tree: Any = profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    return max(0, *accumulate(change for _, _, change in sorted(_changes(tree))))


def _changes(tree: Any) -> Iterator[tuple[int, int, int]]:
    """(time, place in the sequence of the node that was running, or -1, bytes) of all that the allocator reports."""
    stack = [(event, -1) for event in tree]
    while stack:
        event, node = stack.pop()
        if event.name.startswith(MARK):
            node = int(event.name.removeprefix(MARK))
        elif event.name == "[memory]":
            yield event.start_time_ns, node, event.extra_fields.alloc_size
        stack += [(child, node) for child in event.children]


def _on_gpu(values: Values) -> _Recorded:
    """By the caching allocator: what is given out, not what it holds back."""
    values.begin()
    first, peak, workspace = torch.cuda.memory_allocated(), 0, []
    for node in values.sequence:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        values.run(node)
        workspace.append(torch.cuda.max_memory_allocated() - before)
        peak = max(peak, before + workspace[-1] - first)
    torch.cuda.synchronize()
    return _Recorded(peak, workspace)
