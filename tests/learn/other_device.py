"""A device that is not there: tensors on it hold CPU tensors, and operators complain as a GPU would where tensors of
both meet. `with other_device() as device:` around all that moves to it, computes there and comes back."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")  # whose tensors autograd takes without a driver
aten = torch.ops.aten
PACK = aten._pack_padded_sequence.default  # takes and gives sizes on the CPU
BETWEEN = {aten.copy_.default, aten._to_copy.default, PACK}
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor,
            aten._index_put_impl_.default}  # fmt: skip


class There(Tensor):
    """A tensor of the other device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        made: There = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE)  # fmt: skip
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"There({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor of another device is no array; take .cpu() first")
        return self.held.detach().numpy()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return performed(func, args, kwargs or {})


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return performed(func, args, kwargs or {})


class _Numbers(TorchFunctionMode):
    """Tensors of numbers, which no operator makes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        goes = func in (torch.tensor, torch.as_tensor) and torch.device(given.get("device") or "cpu") == DEVICE
        if goes:
            del given["device"]
        made = func(*args, **given)
        return There(made) if goes and not isinstance(made, There) else made


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Within the block tensors may move there."""
    with _Numbers(), _Operators():
        yield DEVICE


def performed(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What an operator makes, on the CPU, and on the device where a GPU would have made it."""
    tensors = [value for value in tree_flatten((args, dict(kwargs)))[0] if isinstance(value, Tensor)]
    there = [value for value in tensors if isinstance(value, There)]
    asked = kwargs.get("device")
    goes = bool(there) if asked is None else torch.device(asked).type == DEVICE.type
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if there and len(there) < len(tensors) and func not in BETWEEN:
        check(func, args, tensors)
    made = func(*tree_map(held, args), **tree_map(held, dict(kwargs)))
    if func is PACK:
        return There(made[0]), made[1]
    changed = func._schema.is_mutable  # type: ignore[attr-defined]
    if changed:
        known = {id(held(value)): value for value in tensors}
        return tree_map(lambda value: known.get(id(value), value), made)
    return tree_map(lambda value: There(value) if goes and isinstance(value, Tensor) else value, made)


def check(func: Any, args: Any, tensors: Iterable[Tensor]) -> None:
    """Numbers of no dimension may come from the CPU, and so may indices."""
    tensors = list(tensors)
    first = tensors[0]
    if func in BY_INDEX and isinstance(first, There):
        return
    wrong = [value for value in tensors if not isinstance(value, There) and value.dim()]
    if wrong or not isinstance(first, There):
        raise RuntimeError(f"{func} meets tensors of two devices")


def held(value: Any) -> Any:
    return value.held if isinstance(value, There) else value
