"""How much an operation computes."""

from collections.abc import Sequence
from math import prod

from graphopt.rewrite.ir.vocabulary import Operation, TensorType

ACTIVATION_FLOP = {
    "none": 0.0,
    "relu": 1.0,
    "sigmoid": 12.0,
    "tanh": 16.0,
}  # per element, as of core.operators


def window_flop(operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
    """FLOP of matmul, conv and pooling, a multiply-add being two; None for all others."""
    out = float(prod(results[0].shape))
    match operation.name:
        case "matmul":
            return out * (2.0 * inputs[0].shape[-1] + ACTIVATION_FLOP[operation.params[0]])
        case "conv":
            bias = len(inputs) == 3
            return out * (2.0 * prod(inputs[1].shape[1:]) + bias + ACTIVATION_FLOP[operation.params[2]])
        case "pool_max" | "pool_avg":
            return out * float(prod(operation.params[0]))
    return None
