"""Modules without memory: made on torch's meta device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

READ_AT_ONCE = (torch.linspace,)  # constructors ask these for numbers, such as rates by depth


class _Readable(TorchFunctionMode):
    """What constructors read is computed; all else is left to the mode around."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        settings = dict(kwargs or {})
        if func in READ_AT_ONCE:
            settings.setdefault("device", "cpu")
        return func(*args, **settings)


@contextmanager
def weightless() -> Iterator[None]:
    """Tensors that are made inside have shapes and no values."""
    with torch.device("meta"), _Readable():
        yield
