"""A function or module with its gradient, as one function of tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from graphopt.readers.pytorch.nested_tensors import arguments_of, tensors_in, with_tensors

Step = tuple[Callable[..., list[Tensor]], list[Tensor]]


def whole_step(fn: Callable[..., Any] | nn.Module, inputs: Any) -> Step:
    """A function and tensors that it takes: it returns what `fn` returns, and after that the gradients of parameters
    and inputs that require them. It takes parameters, inputs, and gradients of what is returned. A function whose
    inputs require none is as it was. fn is run once."""
    held = dict(fn.named_parameters()) if isinstance(fn, nn.Module) else {}
    arguments = arguments_of(inputs)
    given = [*held.values(), *tensors_in(arguments)]

    def run(flat: Sequence[Tensor]) -> list[Tensor]:
        rest = iter(flat[len(held) :])
        args, kwargs = with_tensors(arguments, lambda _: next(rest))
        if isinstance(fn, nn.Module):
            return tensors_in(functional_call(fn, dict(zip(held, flat)), args, kwargs))
        return tensors_in(fn(*args, **kwargs))

    learned = [i for i, tensor in enumerate(given) if tensor.requires_grad]
    if not learned and isinstance(inputs, list | tuple) and not held and len(given) == len(inputs):
        return fn, given
    if not learned:
        return lambda *flat: run(flat), given
    seeds = [torch.randn_like(end) for end in run(given) if end.requires_grad]

    def step(*flat: Tensor) -> list[Tensor]:
        values = [t.detach().requires_grad_(i in learned) for i, t in enumerate(flat[: len(given)])]
        made = run(values)
        ends = [end for end in made if end.requires_grad]
        gradients = torch.autograd.grad(ends, [values[i] for i in learned], flat[len(given) :], allow_unused=True)
        return [*(t.detach() for t in made), *(g for g in gradients if g is not None)]

    return step, [*(t.detach() for t in given), *seeds]
