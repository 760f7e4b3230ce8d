"""A captured module as a program with inputs that it can be run on: random numbers, and indices within their bounds."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.program_file import FxProgram, InputSpec

DEVIATION = 0.1  # of weights and inputs
AROUND_ONE = (0.5, 1.5)  # least and largest value of buffers: variances are positive
ROWS = {"embedding": (0, 1), "gather": (0, 2), "scatter": (0, 2), "scatter_add": (0, 2), "scatter_reduce": (0, 2),
        "index_add": (0, 2), "index_select": (0, 2)}  # fmt: skip # operator -> arguments: what is indexed, by what
LISTS = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")  # indices of the first dimensions, in a list
SAME = ("view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "slice", "select", "permute", "clone",
        "cat", "_to_copy", "unbind", "alias", "split", "split_with_sizes", "detach", "getitem", "roll")  # fmt: skip
"""What makes indices of indices, none of them larger."""


def as_program(captured: GraphModule) -> FxProgram:
    """What `capture(..., keep_program=True)` kept; what is no weight is given away."""
    nodes = captured.graph.find_nodes(op="placeholder")
    weights = [isinstance(value, nn.Parameter) for value in captured.meta["weights"].values()]
    positive = [not learned for learned in weights] + [False] * (len(nodes) - len(weights))
    specs = tuple(_spec(node, of) for node, of in zip(nodes, positive, strict=True))
    return FxProgram(captured, specs, donated=tuple(range(len(weights), len(nodes))))


def _spec(node: Node, positive: bool) -> InputSpec:
    value = node.meta["val"]
    if any(type(size) is not int for size in value.shape):
        raise GraphError(f"the shape of {node.name} depends on data; give a module with fixed shapes")
    shape, stride, dtype = tuple(value.shape), tuple(value.stride()), str(value.dtype).removeprefix("torch.")
    if value.dtype.is_floating_point and positive:
        return InputSpec(shape, stride, dtype, "uniform", AROUND_ONE)
    if value.dtype.is_floating_point:
        return InputSpec(shape, stride, dtype, "normal", (0.0, DEVIATION))
    return InputSpec(shape, stride, dtype, "uniform", (0.0, float(min(_bounds(node), default=2) - 1)))


def _bounds(node: Node) -> Iterator[int]:
    """Sizes of all dimensions that a tensor of integers indexes."""
    seen, stack = {node}, [node]
    while stack:
        index = stack.pop()
        for user in index.users:
            name = getattr(user.target, "_opname", getattr(user.target, "__name__", ""))
            yield from _indexed(name, user, index)
            if name in SAME and user not in seen:
                seen.add(user)
                stack.append(user)


def _indexed(name: str, user: Node, index: Node) -> Iterator[int]:
    given: Any = user.args[0]
    if name in ROWS and user.args[ROWS[name][1]] is index:
        yield given.meta["val"].shape[0 if name == "embedding" else user.args[1]]
    elif name in LISTS:
        places: Any = user.args[1]
        yield from (given.meta["val"].shape[i] for i, place in enumerate(places) if place is index)
