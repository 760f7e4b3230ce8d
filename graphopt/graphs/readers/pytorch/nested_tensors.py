"""Arguments and results of modules: the tensors within any nesting of containers and objects."""

import dataclasses
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from graphopt.core.graph import GraphError

FORMS = "a tensor, a tuple or list of arguments, a dict of keyword arguments, or (tuple, dict) of both"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional, by keyword


def arguments_of(example_inputs: Any) -> Arguments:
    """The arguments that example inputs stand for.

    One tensor, or one named tuple, is one argument; a tuple or list has the positional ones; a mapping with names for
    keys has those by keyword; a tuple of a tuple and such a mapping has both. Raises GraphError on anything else.
    """
    if isinstance(example_inputs, Tensor) or _is_named_tuple(example_inputs):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), _by_keyword(example_inputs)
    if isinstance(example_inputs, tuple) and len(example_inputs) == 2:
        first, second = example_inputs
        if type(first) is tuple and isinstance(second, Mapping):
            return first, _by_keyword(second)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    raise GraphError(f"example inputs are {FORMS}; not {_brief(example_inputs)}")


def _by_keyword(given: Mapping[Any, Any]) -> dict[str, Any]:
    for key in given:
        if not isinstance(key, str):
            raise GraphError(f"keyword arguments are named by strings, not {_brief(key)}")
    return dict(given)


def _brief(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) < 60 and "\n" not in text else type(value).__name__


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a value, in order: of containers, mappings, data classes and other objects with attributes."""
    found: list[Tensor] = []
    seen: dict[int, Any] = {}  # objects, which may refer to one another in circles
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            found.append(part)
        elif (children := _registered(part)) is not None:
            waiting.extend(reversed(children[0]))
        elif id(part) not in seen:
            seen[id(part)] = part
            waiting.extend(reversed(_attributes(part).values()))
    return found


def with_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The value with every tensor in it changed, in the order of `tensors_in`; values without tensors stay."""
    return _Changing(change, {}).of(value)


@dataclasses.dataclass
class _Changing:
    """Copies of objects that hold tensors; the same copy wherever the same object is met."""

    change: Callable[[Tensor], Any]
    copies: dict[int, Any]

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.change(value)
        if id(value) in self.copies or not tensors_in(value):
            return self.copies.get(id(value), value)
        if (children := _registered(value)) is not None:
            return tree_unflatten([self.of(child) for child in children[0]], children[1])
        made = self.copies[id(value)] = copy(value)
        for key, part in _attributes(value).items():
            changed = self.of(part)
            if isinstance(value, Mapping):
                made[key] = changed
            if not isinstance(value, Mapping) or getattr(value, str(key), None) is part:
                object.__setattr__(made, key, changed)
        return made


def _registered(value: Any) -> tuple[list[Any], Any] | None:
    """Children and structure of a container that torch knows (tuple, list, dict, named tuple and types registered with
    its `pytree`), one level deep; None for anything else."""
    children, structure = tree_flatten(value, is_leaf=lambda part: part is not value)
    return None if structure.is_leaf() else (children, structure)


def _attributes(value: Any) -> dict[Any, Any]:
    """The parts of another object by key or attribute; none of modules, classes and functions."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type | nn.Module) or callable(value):
        return {}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return dict(getattr(value, "__dict__", {}))


def loss_in(value: Any) -> Tensor | None:
    """The number that a result names its loss: one floating element under the key or attribute `loss`."""
    named = value.get("loss") if isinstance(value, Mapping) else getattr(value, "loss", None)
    found = isinstance(named, Tensor) and named.numel() == 1 and named.is_floating_point()
    return named if found else None
