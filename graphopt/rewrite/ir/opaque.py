"""What stands behind an operation that the vocabulary does not know."""

from collections.abc import Sequence
from typing import Any, Protocol

from graphopt.rewrite.ir.vocabulary import TensorType


class OpaqueCall(Protocol):
    """An operation that stays as it was read. `Program.opaque` holds one for every key."""

    @property
    def label(self) -> str:
        """Its name where it comes from, e.g. Softmax."""

    @property
    def kind(self) -> str:
        """Its kind among `graphopt.core.operators`."""

    def flops(self, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
        """FLOP of one run; None for the kind's own count."""

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Its results, in order: tensors of torch, or arrays where torch has no such element type.

        Floating-point inputs may be wider than the operation says (float64 for float32).
        """
