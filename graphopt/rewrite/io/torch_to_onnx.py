"""Calls of torch operators that rewriting leaves alone, as ONNX nodes: elementwise ones by name, all others by
torch.onnx, which takes a second to import.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

from graphopt.core.errors import UserError
from graphopt.graphs.readers.pytorch.capture import fake_mode
from graphopt.graphs.readers.pytorch.trace_errors import quiet
from graphopt.rewrite.io.onnx_call import TORCH_OPSET, rename
from graphopt.rewrite.io.torch_import import Slot, TorchCall
from graphopt.rewrite.ir.vocabulary import TensorType

ELEMENTWISE = {"abs": "Abs", "ceil": "Ceil", "cos": "Cos", "div": "Div", "erf": "Erf", "exp": "Exp", "floor": "Floor",
               "log": "Log", "maximum": "Max", "minimum": "Min", "neg": "Neg", "pow": "Pow",
               "reciprocal": "Reciprocal", "round": "Round", "sign": "Sign", "sin": "Sin", "sqrt": "Sqrt",
               "sub": "Sub", "where": "Where"}  # fmt: skip
COMPARISONS = {"eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"}


class TypedCall(NamedTuple):
    """given, made: types of the tensors that it takes and makes. read: numbers of its results that are read."""

    call: TorchCall
    given: tuple[TensorType, ...]
    made: tuple[TensorType, ...]
    read: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal calls have equal keys."""
        return (self.call.key, *self[1:])


class Subgraph(NamedTuple):
    """Nodes that read `inputs` and their own constants, and make `outputs`, one for each result in `read`."""

    nodes: Sequence[NodeProto]
    constants: Sequence[TensorProto]
    inputs: Sequence[str]
    outputs: Sequence[str]
    read: Sequence[int]

    def placed(self, inputs: Sequence[str], outputs: Sequence[str], prefix: str
               ) -> tuple[list[NodeProto], list[TensorProto]]:  # fmt: skip
        """Copies between tensors of these names, outputs that of all results; names of their own begin with the
        prefix."""
        own = [name for node in self.nodes for name in node.output if name] + [c.name for c in self.constants]
        names = {name: f"{prefix}_t{i}" for i, name in enumerate(own)}
        names |= dict(zip(self.inputs, inputs, strict=True))
        names |= {name: outputs[number] for name, number in zip(self.outputs, self.read, strict=True)}
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        constants = [TensorProto.FromString(constant.SerializeToString()) for constant in self.constants]
        for node in nodes:
            node.name = ""
            rename(node, names)
        for constant in constants:
            constant.name = names[constant.name]
        return nodes, constants


_known: dict[tuple[Any, ...], Subgraph] = {}


def subgraphs(calls: Iterable[TypedCall]) -> list[Subgraph]:
    """Of each call, made once per process. Raises UserError for a call that ONNX does not have."""
    calls = list(calls)
    new = {call.key: call for call in calls if call.key not in _known}
    by_name = {key: _elementwise(call) for key, call in new.items()}
    _known.update({key: found for key, found in by_name.items() if found is not None})
    rest = [call for key, call in new.items() if by_name[key] is None]
    try:
        _known.update(_exported(rest))
    except Exception:  # one by one, to name the call
        for call in rest:
            try:
                _known.update(_exported([call]))
            except Exception as error:
                label = call.call.label
                raise UserError(f"operator {label} has no ONNX form in torch.onnx; price ops one by one: cost=profiled"
                                ) from error  # fmt: skip
    return [_known[call.key] for call in calls]


def _elementwise(typed: TypedCall) -> Subgraph | None:
    """The operator that takes the same arguments in the same order, all of one type of elements."""
    call, given, (made, *_), read = typed
    kinds = {kind.dtype for kind in (given[1:] if call.name == "where" else given)}
    alike = COMPARISONS if call.name in COMPARISONS else ELEMENTWISE
    real = all(kind.startswith(("float", "bfloat")) for kind in kinds)
    known = call.name in alike and (alike is COMPARISONS or kinds == {made.dtype})
    if not known or call.kwargs or len(kinds) != 1 or not real:
        return None
    inputs, constants = [f"x{i}" for i in range(len(given))], list[TensorProto]()

    def named(arg: Any) -> str:
        if isinstance(arg, Slot):
            return inputs[arg.index]
        constants.append(numpy_helper.from_array(np.asarray(arg, given[-1].dtype), f"c{len(constants)}"))
        return constants[-1].name

    return Subgraph([helper.make_node(alike[call.name], [named(arg) for arg in call.args], ["y"])], constants, inputs,
                    ["y"], read)  # fmt: skip


class _SideBySide(nn.Module):
    """Calls, each with tensors of its own."""

    def __init__(self, calls: Sequence[TypedCall]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        left, results = list(tensors), list[Tensor]()
        for call, given, _, read in self.calls:
            made = call.run(left[: len(given)])
            left = left[len(given) :]
            results += [made[number] for number in read]
        return tuple(results)


def _exported(calls: Sequence[TypedCall]) -> dict[tuple[Any, ...], Subgraph]:
    """All by one call of torch.onnx, since each takes half a second."""
    if not calls:
        return {}
    with fake_mode(), torch.no_grad():
        tensors = [torch.empty(kind.shape, dtype=getattr(torch, kind.dtype)) for call in calls for kind in call.given]
    with warnings.catch_warnings(), quiet(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(_SideBySide(calls), tuple(tensors))
        written = torch.onnx.export(program, dynamo=True, opset_version=TORCH_OPSET, verbose=False)
    assert written is not None
    model = written.model_proto
    inputs, outputs = iter(model.graph.input), iter(model.graph.output)
    return {call.key: _between(model, [next(inputs).name for _ in call.given], [next(outputs).name for _ in call.read],
                               call.read) for call in calls}  # fmt: skip


def _between(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str], read: Sequence[int]) -> Subgraph:
    """The nodes that make the outputs from the inputs."""
    wanted, nodes = {*outputs}, list[NodeProto]()
    for node in reversed(model.graph.node):
        if wanted & {*node.output}:
            nodes.append(node)
            wanted |= {*node.input}
    constants = [weight for weight in model.graph.initializer if weight.name in wanted]
    return Subgraph(nodes[::-1], constants, inputs, outputs, read)
