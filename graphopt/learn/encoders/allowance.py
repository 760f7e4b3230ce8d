"""How large a network may be that a configuration asks for: said before its memory is taken."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from graphopt.core.errors import UserError

MOST = 100_000_000  # numbers of a network while it is built; training takes four times their bytes, REGAL eight times
LEAST = 1_000  # numbers that every tensor counts for, however small it is: many take long


class TooLarge(UserError):
    """A network of more numbers than are built here."""


class Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, new tensors may have `most` numbers together, those that initialisers work with included; copies do
    not count. What asks for more raises `TooLarge` before torch asks the system for memory."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most, self._left = most, most

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if args and isinstance(args[0], list | tuple) and all(isinstance(size, int) for size in args[0]):
            self._left -= max(LEAST, math.prod(args[0]))  # it makes a tensor, of which the shape comes first
            if self._left < 0:
                raise TooLarge(
                    f"the network takes more than {self._most:,} numbers to build; "
                    "choose a smaller encoder.width, fewer layers or rounds, or smaller sizes of algo's network"
                )
        return func(*args, **(kwargs or {}))
