"""A rewritten program checked against the original, by running both: a mismatch is an error, never a result."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import ConfigError, UserError
from graphopt.rewrite.terms import Program

Array = NDArray[Any]
TOLERANCE = 1e-5  # difference over the largest magnitude of the output, in double precision


class EquivalenceError(UserError):
    """A rewritten program computes something else than the original."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a check found. worst: largest difference of two elements over the largest magnitude of their output."""

    trials: int
    worst: float


def check_equivalence(original: Program, rewritten: Program, *, seed: int = 0, trials: int = 2,
                      tolerance: float = TOLERANCE) -> Agreement:  # fmt: skip
    """Runs both on random inputs, in double precision.

    An output agrees when no element differs by more than `tolerance` x its largest magnitude. Opaque ONNX operators
    compute in their own precision. Raises EquivalenceError on a mismatch or a type that differs, and when the original
    does not give finite numbers, so that nothing can be compared.
    """
    from graphopt.rewrite.execution import Executor  # torch

    if [original.terms.types[t] for t in original.outputs] != [rewritten.terms.types[t] for t in rewritten.outputs]:
        raise EquivalenceError("the rewritten program's outputs differ in number, shape or type from the original's")
    first, second = Executor(original, double=True), Executor(rewritten, double=True)
    rng, worst = np.random.default_rng(seed), 0.0
    for _ in range(trials):
        given = random_inputs(original, rng)
        worst = max(worst, compare(first(given), second(given), original.output_names, tolerance))
    return Agreement(trials, worst)


def differences(original: Program, rewritten: Program) -> list[str]:
    """What `check_equivalence` finds wrong, in one sentence; empty when the programs agree."""
    try:
        check_equivalence(original, rewritten)
    except EquivalenceError as error:
        return [str(error)]
    return []


def compare(known: list[Array], found: list[Array], names: tuple[str, ...], tolerance: float) -> float:
    """The largest scaled difference. Raises EquivalenceError where it exceeds the tolerance."""
    worst = 0.0
    for ours, theirs, name in zip(found, known, names, strict=True):
        if ours.shape != theirs.shape:
            raise EquivalenceError(f"output {name!r} has the shape {ours.shape}, the original's is {theirs.shape}")
        worst = max(worst, _difference(np.asarray(theirs), np.asarray(ours), name))
        if worst > tolerance:
            raise EquivalenceError(f"output {name!r} differs from the original's by {worst:.2g} of its largest value, "
                                   f"more than {tolerance:.2g}; the rewritten program is wrong")  # fmt: skip
    return worst


def _difference(known: Array, found: Array, name: str) -> float:
    if not np.issubdtype(known.dtype, np.number) or known.size == 0:
        return 0.0 if np.array_equal(known, found) else float("inf")
    if not np.isfinite(known).all():
        raise EquivalenceError(f"output {name!r} of the original is not finite on random inputs, so nothing can be "
                               "compared; give the model trained weights")  # fmt: skip
    if not np.isfinite(found).all():
        return float("inf")
    # complex, unsigned and short numbers are compared as what holds them all
    wide = np.complex128 if np.iscomplexobj(known) else np.float64
    known, found = known.astype(wide), found.astype(wide)
    gap, size = float(np.abs(known - found).max()), float(np.abs(known).max())
    if size == 0.0:
        return 0.0 if gap == 0.0 else float("inf")
    return gap / size


def random_inputs(program: Program, rng: np.random.Generator) -> list[Array]:
    """Standard normal numbers; 0 and 1 for integers, which may be indices; text is empty."""
    return [_random(*program.terms.type_of(t), rng) for t in program.inputs]


def _random(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    if "float" in dtype:
        drawn = rng.standard_normal(shape)
        return drawn if dtype == "bfloat16" else drawn.astype(dtype)
    if dtype == "object":
        return np.full(shape, "", object)
    return rng.integers(0, 2, shape).astype(dtype)


def run_onnx(model: Any, inputs: dict[str, Array]) -> list[Array]:
    """Outputs of an ONNX model, or a file, by ONNX Runtime. Raises ConfigError when it is not installed."""
    from graphopt.rewrite.onnx_call import onnxruntime_runner

    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigError("ONNX Runtime is not installed; pip install -e '.[onnx]'") from error
    return onnxruntime_runner(model)(inputs)
