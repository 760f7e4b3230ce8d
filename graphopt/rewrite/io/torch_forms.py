"""ONNX forms of calls of torch operators that rewriting leaves alone: elementwise ones by name, all others by
torch.onnx, which takes a second to import.
"""

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from onnx import ModelProto, NodeProto, TensorProto
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from graphopt.core.errors import UserError
from graphopt.rewrite.io.onnx_call import rename
from graphopt.rewrite.io.torch_import import Slot, TorchCall
from graphopt.rewrite.ir.vocabulary import TensorType

OPSET = 18  # the first that torch.onnx writes
ELEMENTWISE = {"abs": "Abs", "ceil": "Ceil", "cos": "Cos", "div": "Div", "erf": "Erf", "exp": "Exp", "floor": "Floor",
               "log": "Log", "maximum": "Max", "minimum": "Min", "neg": "Neg", "pow": "Pow",
               "reciprocal": "Reciprocal", "round": "Round", "sign": "Sign", "sin": "Sin", "sqrt": "Sqrt",
               "sub": "Sub", "where": "Where"}  # fmt: skip
COMPARISONS = {"eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"}


class Wish(NamedTuple):
    """A call that is to be written. given: of the tensors that it takes. read: numbers of its results that are read."""

    call: TorchCall
    given: tuple[TensorType, ...]
    read: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal wishes have equal keys."""
        return (self.call.key, *self[1:])


class Written(NamedTuple):
    """Nodes that read `inputs` and their own constants, and make `outputs`."""

    nodes: Sequence[NodeProto]
    constants: Sequence[TensorProto]
    inputs: Sequence[str]
    outputs: Sequence[str]

    def placed(self, inputs: Sequence[str], outputs: Sequence[str], prefix: str
               ) -> tuple[list[NodeProto], list[TensorProto]]:  # fmt: skip
        """Copies between tensors of these names; names of their own begin with the prefix."""
        made = [name for node in self.nodes for name in node.output if name] + [c.name for c in self.constants]
        names = {name: f"{prefix}_t{i}" for i, name in enumerate(made)}
        names |= dict(zip(self.inputs, inputs, strict=True)) | dict(zip(self.outputs, outputs, strict=True))
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        constants = [TensorProto.FromString(constant.SerializeToString()) for constant in self.constants]
        for node in nodes:
            node.name = ""
            rename(node, names)
        for constant in constants:
            constant.name = names[constant.name]
        return nodes, constants


def elementwise(call: TorchCall, given: Sequence[TensorType], made: TensorType) -> str | None:
    """The ONNX operator that takes the same arguments in the same order, all of one type of elements."""
    kinds = {kind.dtype for kind in (given[1:] if call.name == "where" else given)}
    alike = COMPARISONS if call.name in COMPARISONS else ELEMENTWISE
    real = all(kind.startswith(("float", "bfloat")) for kind in kinds)
    if call.kwargs or len(kinds) != 1 or not real or (alike is ELEMENTWISE and kinds != {made.dtype}):
        return None
    return alike.get(call.name)


_known: dict[tuple[Any, ...], Written] = {}


def forms(wishes: Iterable[Wish]) -> Mapping[tuple[Any, ...], Written]:
    """A form for the key of each, made once per process. Raises UserError for a call that ONNX does not have."""
    new = {wish.key: wish for wish in wishes if wish.key not in _known}
    try:
        _known.update(_written([*new.values()]))
    except Exception:  # torch.onnx has many; one by one, to name the call
        for wish in new.values():
            try:
                _known.update(_written([wish]))
            except Exception as error:
                label = wish.call.label
                raise UserError(f"operator {label} has no ONNX form in torch.onnx; price ops one by one: cost=profiled"
                                ) from error  # fmt: skip
    return _known


class _Calls(nn.Module):
    """Calls side by side, each with tensors of its own."""

    def __init__(self, wishes: Sequence[Wish]) -> None:
        super().__init__()
        self.wishes = wishes

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        left, made = list(tensors), list[Tensor]()
        for call, given, read in self.wishes:
            results = call.run(left[: len(given)])
            left = left[len(given) :]
            made += [results[number] for number in read]
        return tuple(made)


def _written(wishes: Sequence[Wish]) -> dict[tuple[Any, ...], Written]:
    if not wishes:
        return {}
    with FakeTensorMode(), torch.no_grad():
        tensors = [torch.empty(kind.shape, dtype=getattr(torch, kind.dtype)) for w in wishes for kind in w.given]
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it logs what is not installed
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            calls = torch.export.export(_Calls(wishes), tuple(tensors))
            written = torch.onnx.export(calls, dynamo=True, opset_version=OPSET, verbose=False)
    finally:
        logger.setLevel(level)
    assert written is not None
    model = written.model_proto
    inputs, outputs = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    found: dict[tuple[Any, ...], Written] = {}
    for wish in wishes:
        read, inputs = inputs[: len(wish.given)], inputs[len(wish.given) :]
        made, outputs = outputs[: len(wish.read)], outputs[len(wish.read) :]
        found[wish.key] = _part(model, read, made)
    return found


def _part(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> Written:
    """What makes the outputs from the inputs."""
    wanted, nodes = {*outputs}, list[NodeProto]()
    for node in reversed(model.graph.node):
        if wanted & {*node.output}:
            nodes.append(node)
            wanted |= {*node.input}
    constants = [weight for weight in model.graph.initializer if weight.name in wanted]
    return Written(nodes[::-1], constants, inputs, outputs)


def operands(call: TorchCall, names: Sequence[str], constant: Any) -> list[str]:
    """Names of an elementwise call's arguments; constant: names a number's tensor."""
    return [names[arg.index] if isinstance(arg, Slot) else constant(arg) for arg in call.args]
