"""Any `nn.Module` to a `Graph` of primitive operators, without computing anything: traced with fake tensors."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphopt.core.graph import Graph, GraphError
from graphopt.readers.pytorch.aten_table import decompositions
from graphopt.readers.pytorch.fx_reader import read_fx
from graphopt.readers.pytorch.nested_tensors import Arguments, arguments_of, loss_in, tensors_in, with_tensors
from graphopt.readers.pytorch.recorder import record
from graphopt.readers.pytorch.trace_errors import complaint, quiet, refuse_what_cannot_be_called

_decompositions = lru_cache(maxsize=1)(decompositions)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a module: its arguments with fake tensors, weights by name, and the mode that all of them share."""

    module: nn.Module
    weights: dict[str, Tensor]
    arguments: Arguments
    mode: FakeTensorMode

    @property
    def given(self) -> list[Tensor]:
        """The tensors that the call depends on: weights, then inputs."""
        return [*self.weights.values(), *tensors_in(self.arguments)]

    def result(self, flat: Sequence[Tensor]) -> Any:
        """What the module returns where `flat` stands for `given`."""
        inputs = iter(flat[len(self.weights) :])
        args, kwargs = with_tensors(self.arguments, lambda _: next(inputs))
        return functional_call(self.module, dict(zip(self.weights, flat)), args, kwargs)


def capture(module: nn.Module, example_inputs: Any, *, name: str, family: str, backward: bool,
            keep_program: bool) -> Graph:  # fmt: skip
    """The graph of one call of `module`, in evaluation mode; with `backward`, in training mode and with its gradients.

    `example_inputs` are the call's arguments as `arguments_of` reads them; of tensors in them only shapes and dtypes
    count. What the module returns may be nested as deep.
    Backward: gradients start from the output called `loss` (a key or an attribute that is one number), else from all
    floating outputs. The gradients arriving there are graph inputs; those of parameters, and of inputs that require
    them, are further outputs. Updates of buffers (running statistics) are not traced.
    `keep_program` keeps the traced `GraphModule`, whose placeholders are parameters, buffers, inputs, output gradients;
    its `meta["weights"]` has the first two by name.
    Raises GraphError, in one sentence, when the module cannot be traced or its shapes depend on data.
    """
    modes = {part: part.training for part in module.modules()}
    try:
        with _plain_implementations():
            call = _prepared(module.train(backward), arguments_of(example_inputs))
            run, given = _functional(call, backward)
            traced, constants = _trace(run, given, call.mode, keep_program)
        program = GraphModule(constants, traced) if keep_program else None
    except (Exception, SystemExit) as error:
        raise GraphError(f"{name}: {complaint(error)}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    if program is not None:
        program.meta["weights"] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return read_fx(traced, name=name, family=family, weights=len(call.weights), program=program)


def fake_mode() -> FakeTensorMode:
    """A mode under which modules and tensors are made without memory: `with fake_mode(): module = Net()`."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def _prepared(module: nn.Module, arguments: Arguments) -> _Call:
    """The call with fake tensors of one mode: theirs if there is one. What stands on `meta` is taken to the CPU."""
    refuse_what_cannot_be_called(module)
    weights: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    modes = [t.fake_mode for t in (*weights.values(), *tensors_in(arguments)) if isinstance(t, FakeTensor)]
    mode = modes[0] if modes else fake_mode()

    def convert(value: Tensor) -> Tensor:
        if isinstance(value, FakeTensor):
            return value
        if not value.is_meta:
            return mode.from_tensor(value)
        with mode:
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        return made.requires_grad_(value.requires_grad)

    return _Call(module, {key: convert(t) for key, t in weights.items()}, with_tensors(arguments, convert), mode)


def _functional(call: _Call, backward: bool) -> tuple[Callable[..., Any], list[Tensor]]:
    """The call as a function of a flat list of tensors, and example values for it."""
    given = call.given
    if not backward:
        return torch.no_grad()(lambda *flat: _returned(call.result(flat))), given
    wanted = [i for i, t in enumerate(given) if t.requires_grad]
    with call.mode, torch.enable_grad():
        seeds = [torch.empty_like(t) for t in _starts(call.result(_leaves(given, wanted)))]
    return torch.enable_grad()(_with_gradients(call, wanted)), [*given, *(seed.detach() for seed in seeds)]


def _returned(result: Any) -> list[Tensor]:
    outputs = tensors_in(result)
    if not outputs:
        raise GraphError("the module returns no tensor; return what it computes")
    return outputs


def _starts(result: Any) -> list[Tensor]:
    """Where gradients start: at the loss, if the result names one, else at all outputs that have a gradient."""
    loss = loss_in(result)
    outputs = _returned(result) if loss is None else [loss]
    return [t for t in outputs if t.is_floating_point() or t.is_complex()]


def _leaves(flat: Sequence[Tensor], wanted: list[int]) -> list[Tensor]:
    return [t.detach().requires_grad_(i in set(wanted)) for i, t in enumerate(flat)]


def _with_gradients(call: _Call, wanted: list[int]) -> Callable[..., Any]:
    """The call's outputs, followed by the gradients of the tensors at `wanted`; what follows the call's own tensors are
    the gradients that arrive at `_starts`."""

    def run(*flat: Tensor) -> list[Tensor | None]:
        values = _leaves(flat[: len(call.given)], wanted)
        result = call.result(values)
        pairs = [(t, seed) for t, seed in zip(_starts(result), flat[len(values) :]) if t.requires_grad]
        if not pairs:
            raise GraphError("no output depends on a parameter that is learned; leave backward away")
        gradients = torch.autograd.grad(
            [t for t, _ in pairs], [values[i] for i in wanted], [seed for _, seed in pairs], allow_unused=True
        )
        return [*_returned(result), *gradients]

    return run


def _trace(run: Callable[..., Any], arguments: list[Tensor], fake: FakeTensorMode,
           keep_values: bool) -> tuple[FxGraph, nn.Module]:  # fmt: skip
    """Recorded as primitive operators; where it updates tensors in place, recorded again without such updates."""
    graph, constants = record(run, arguments, _decompositions(), fake, keep_values=keep_values)
    if any(_updates_in_place(node) for node in graph.nodes):
        graph, constants = record(run, arguments, {}, fake, keep_values=False)
        pure = functionalize(GraphModule(constants, graph))
        with torch.no_grad():
            graph, constants = record(pure, arguments, _decompositions(), fake, keep_values=keep_values)
    return graph, constants


def _updates_in_place(node: Node) -> bool:
    """Whether the node writes into its operand, other than into a buffer that is not read again."""
    if not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return False
    target = node.args[0] if node.args else None
    return bool(node.users) or not isinstance(target, Node) or target.op != "placeholder"


@contextmanager
def _plain_implementations() -> Iterator[None]:
    """Without the fused CPU implementations that hide many operators in one."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(quiet())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
