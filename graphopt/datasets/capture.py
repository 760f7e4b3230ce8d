"""Any `nn.Module` to a `Graph` of primitive operators, without computing anything: traced with fake tensors."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from graphopt.datasets.aten_table import decompositions
from graphopt.datasets.fx_reader import read_fx
from graphopt.datasets.recorder import record
from graphopt.graph import Graph, GraphError

_decompositions = lru_cache(maxsize=1)(decompositions)


def capture(module: nn.Module, example_inputs: tuple[Any, ...], *, name: str, family: str, backward: bool,
            keep_program: bool) -> Graph:  # fmt: skip
    """The graph of one call of `module`, in evaluation mode; with `backward`, in training mode and with its gradients.

    `example_inputs` are tensors, or nested containers of them; only shapes and dtypes count, and fake tensors will do.
    Backward: the gradients arriving at the outputs are graph inputs, those of the parameters are further outputs (as if
    the loss were the sum of outputs times fixed targets). Updates of buffers (running statistics) are not traced.
    `keep_program` keeps the traced `GraphModule`, whose placeholders are parameters, buffers, inputs, output gradients;
    its `meta["weights"]` has the first two by name.
    Raises GraphError, in one sentence, when the module cannot be traced or its shapes depend on data.
    """
    fake, weights, inputs = _fake(module, example_inputs)
    modes = {part: part.training for part in module.modules()}
    try:
        run, arguments = _functional(module.train(backward), weights, inputs, backward, fake)
        traced, constants = _trace(run, arguments, fake, keep_program)
    except Exception as error:
        raise GraphError(f"{name}: the module cannot be traced: {_sentence(error)}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    program = GraphModule(constants, traced) if keep_program else None
    if program is not None:
        program.meta["weights"] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return read_fx(traced, name=name, family=family, weights=len(weights), program=program)


def fake_mode() -> FakeTensorMode:
    """A mode under which modules and tensors are made without memory: `with fake_mode(): module = Net()`."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fake(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[FakeTensorMode, dict[str, Tensor], tuple[Any, ...]]:
    """Weights by name and inputs as fake tensors of one mode: theirs if there is one."""
    weights: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    modes = [t.fake_mode for t in (*weights.values(), *tree_leaves(inputs)) if isinstance(t, FakeTensor)]
    mode = modes[0] if modes else fake_mode()

    def convert(value: Any) -> Any:
        return mode.from_tensor(value) if isinstance(value, Tensor) and not isinstance(value, FakeTensor) else value

    return mode, {key: convert(value) for key, value in weights.items()}, tree_map(convert, inputs)


def _functional(module: nn.Module, weights: dict[str, Tensor], inputs: tuple[Any, ...], backward: bool,
                fake: FakeTensorMode) -> tuple[Callable[..., Any], list[Any]]:  # fmt: skip
    """The call as a function of a flat list of tensors, and example values for it."""
    leaves, structure = tree_flatten(inputs)
    arguments = [*weights.values(), *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
    names = list(weights)

    def forward(*flat: Tensor) -> list[Tensor]:
        given = iter(flat[len(names) :])
        call = tree_unflatten([next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)
        result = functional_call(module, dict(zip(names, flat)), call)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]

    if not backward:
        return torch.no_grad()(forward), arguments
    with fake, torch.no_grad():
        seeds = [torch.empty_like(t) for t in forward(*arguments) if t.is_floating_point()]
    learned = [i for i, weight in enumerate(weights.values()) if weight.requires_grad]
    return _with_gradients(forward, learned, len(arguments)), [*arguments, *seeds]


def _with_gradients(forward: Callable[..., list[Tensor]], learned: list[int], given: int) -> Callable[..., Any]:
    """`forward` of the first `given` tensors, followed by the gradients of those at `learned`; further tensors are the
    gradients that arrive at the outputs."""

    def run(*flat: Tensor) -> list[Tensor | None]:
        values = [t.detach().requires_grad_(i in set(learned)) for i, t in enumerate(flat[:given])]
        outputs = forward(*values)
        pairs = [(t, seed) for t, seed in zip((t for t in outputs if t.is_floating_point()), flat[given:])]
        reached, seeds = [t for t, _ in pairs if t.requires_grad], [seed for t, seed in pairs if t.requires_grad]
        if not reached:
            raise ValueError("no output depends on a parameter that is learned; leave backward away")
        wanted = [values[i] for i in learned]
        return [*outputs, *torch.autograd.grad(reached, wanted, seeds, allow_unused=True)]

    return run


def _trace(run: Callable[..., Any], arguments: list[Tensor], fake: FakeTensorMode,
           keep_values: bool) -> tuple[FxGraph, nn.Module]:  # fmt: skip
    """Recorded as primitive operators; where it updates tensors in place, recorded again without such updates."""
    with _plain_implementations():
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
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)


def _sentence(error: Exception) -> str:
    """What went wrong, short; data-dependent shapes are called by that name."""
    kind = type(error).__name__
    if "DataDependent" in kind or "DynamicOutputShape" in kind or "GuardOn" in kind:
        return f"its shapes or branches depend on values ({error}); give a module whose shapes follow from its inputs'"
    text = str(error).strip().split("\n")[0]
    return f"{kind}: {text}" if text else kind
