"""Beside fake tensors, values that follow from inputs of known values.

Indices by masks, `nonzero`, `unique` and numbers that are read from tensors ask for values, which fake tensors lack. In
graph networks they follow from the edges alone, in language models from token ids and masks, so whole numbers and truth
values of a user's example are followed.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from graphopt.graphs.readers.pytorch.nested_tensors import tensors_in

VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)
MOST_KNOWN = 2**22  # elements of a tensor whose values are followed
_BY_MASK = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


class KnownValues(TorchDispatchMode):
    """Operators whose operands are all known are computed with values, too. A result whose shape only values tell
    becomes a fake tensor that holds them (`_stored_values`); masks become the positions where they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = list[tuple[Tensor, Tensor]]()  # fake tensor, value
        # memory that something unknown was written into; held, as numbers of freed memory return
        self.lost = dict[int, Any]()

    def follow(self, stand_in: Tensor, value: Tensor) -> None:
        """Also the values of this input."""
        self.inputs.append((stand_in, value))

    def __enter__(self) -> Self:
        self.lost.clear()
        with _disable_current_modes():
            for stand_in, value in self.inputs:  # a run may write into them
                stand_in._known = value.detach().cpu().clone()  # type: ignore[attr-defined]
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        known = not drawn and all(self.value(t) is not None for t in tensors)
        try:
            result = func(*args, **kwargs)
        except VALUE_ERRORS:
            if func in _BY_MASK:
                result = func(args[0], self._positions(args[1], args[0].fake_mode), *args[2:], **kwargs)
            elif known:
                mode = next(t.fake_mode for t in tensors if isinstance(t, FakeTensor))
                return tree_map_only(Tensor, lambda value: constant_of(value, mode), self._computed(func, args, kwargs))
            else:
                raise
        made = tensors_in(result)
        if known and made and all(t.numel() <= MOST_KNOWN for t in (*tensors, *made)):
            for stand_in, value in zip(made, tensors_in(self._computed(func, args, kwargs)), strict=True):
                stand_in._known = value  # type: ignore[attr-defined]
        else:
            memory = [t.untyped_storage() for t in _written(func, args)]
            self.lost |= {one._cdata: one for one in memory}
        return result

    def value(self, tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return tensor
        if tensor.untyped_storage()._cdata in self.lost:
            return None
        found = getattr(tensor, "_known", None)
        return tensor.constant if found is None else found

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        with _disable_current_modes(), torch.no_grad():
            values = tree_map_only(Tensor, self.value, (args, kwargs))
            return func(*values[0], **values[1])

    def _positions(self, indices: Sequence[Tensor | None], mode: FakeTensorMode) -> list[Tensor | None]:
        """Indices without known masks."""
        found = list[Tensor | None]()
        for index in indices:
            value = None if index is None or index.dtype not in (torch.bool, torch.uint8) else self.value(index)
            if value is None:
                found.append(index)
                continue
            with _disable_current_modes():
                places = value.nonzero(as_tuple=True)
            found += [constant_of(place, mode) for place in places]
        return found


def _written(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """The operands that it writes into."""
    writes = (about.alias_info is not None and about.alias_info.is_write for about in func._schema.arguments)
    return tensors_in([arg for arg, written in zip(args, writes) if written])


def constant_of(value: Tensor, mode: FakeTensorMode) -> Tensor:
    """A fake tensor that is recorded as a constant of that value."""
    with _disable_current_modes():
        made = mode.from_tensor(value)
    made._known = made._stored_values = value  # type: ignore[attr-defined]
    return made
