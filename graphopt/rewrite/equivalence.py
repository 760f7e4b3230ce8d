"""A rewritten program checked against the original, by running both: a mismatch is an error, never a result.

`check_equivalence` draws weights and inputs by a seed. `disagreement` draws them from the system's randomness, of
several scales, signs and patterns, so that nobody could know them.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import ConfigError, UserError
from graphopt.core.utils.terminal import printable
from graphopt.problems.problem import Equality
from graphopt.rewrite.ir.program_builder import (
    RandomWeights,
    default_role,
    drawable_weights,
    drawn_as,
    roles_of,
    with_random_weights,
)
from graphopt.rewrite.ir.terms import Program, maker_of

Array = NDArray[Any]
TOLERANCE = 1e-5  # difference over the largest magnitude of the output, in double precision


class EquivalenceError(UserError):
    """A rewritten program computes something else than the original."""


class NotFinite(EquivalenceError):
    """The original gives infinite numbers, or none."""


def check_equivalence(original: Program, rewritten: Program, *, seed: int = 0, tolerance: float = TOLERANCE) -> float:
    """Runs both on random inputs, in double precision, with the same weights. A rewrite must hold for all weights.
    Zeros, ones and copies hide mistakes, so random ones take their place (`distinguishing_weights`). Where these give
    no finite numbers, both run with their own.

    An output agrees when no element differs by more than `tolerance` x its largest magnitude; so must the inputs of a
    last opaque operation, since a softmax hides differences too. Opaque ONNX operators compute in their own precision.
    Returns the largest difference found. Raises EquivalenceError on a mismatch or a type that differs, and when the
    original does not give finite numbers with its own weights, so that nothing can be compared.
    """
    if [original.terms.types[t] for t in original.outputs] != [rewritten.terms.types[t] for t in rewritten.outputs]:
        raise EquivalenceError("the rewritten program's outputs differ in number, shape or type from the original's")
    first, second = with_probes(original, rewritten)
    inputs = random_inputs(original, np.random.default_rng(seed))
    weights = distinguishing_weights(first, seed)
    try:
        return compared(replace(first, weights=weights), replace(second, weights=weights), inputs, tolerance)
    except NotFinite:
        if weights is first.weights:
            raise
        return compared(first, second, inputs, tolerance)


SAMPLE = 4096  # elements of a weight that are looked at
SMALL = 2**16  # elements of a weight that is drawn in any case


def distinguishing_weights(program: Program, seed: int) -> Mapping[str, Array]:
    """The program's weights, with random ones in place of those that are small, hold one value for more than a tenth,
    or look as another does. Random weights stay as they are."""
    if isinstance(program.weights, RandomWeights):
        return program.weights
    drawn, met = {}, set[bytes]()
    for name, made in drawable_weights(program).items():
        array = np.asarray(program.weights[name])
        sample = array.reshape(-1)[:: max(1, array.size // SAMPLE)].copy()
        _, counts = np.unique(sample, return_counts=True)
        if array.size <= SMALL or counts.max() > len(sample) // 10 or sample.tobytes() in met:
            drawn[name] = made
        met.add(sample.tobytes())
    return RandomWeights(seed, drawn, program.weights)


def compared(first: Program, second: Program, inputs: list[Array], tolerance: float) -> float:
    """The largest difference in double precision, as `compare` scales it. Raises EquivalenceError."""
    from graphopt.rewrite.ir.execution import Executor  # torch

    known, found = (Executor(program, double=True, once=True)(inputs) for program in (first, second))
    return compare(known, found, first.output_names, tolerance)


def with_probes(first: Program, second: Program) -> tuple[Program, Program]:
    """Both programs with further outputs: the inputs of opaque operations and softmaxes that make outputs last, and are
    the same."""
    pairs, names = list(zip(first.outputs, second.outputs, strict=True)), list(first.output_names)
    for a, b in pairs:  # grows
        one, other = maker_of(first.terms, a), maker_of(second.terms, b)
        operation = first.terms.operation[one]
        if operation.name in ("opaque", "softmax") and operation == second.terms.operation[other]:
            for pair in zip(first.terms.inputs[one], second.terms.inputs[other], strict=True):
                if pair not in pairs:
                    pairs.append(pair)
                    names.append(f"input of {operation.params[0] if operation.name == 'opaque' else operation.name}")
    ours, theirs = (tuple(pair[i] for pair in pairs) for i in (0, 1))
    return (replace(first, outputs=ours, output_names=tuple(names)),
            replace(second, outputs=theirs, output_names=tuple(names)))  # fmt: skip


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
    finite = np.isfinite(known)
    if np.isnan(known).any() or not finite.any():
        raise NotFinite(f"output {name!r} of the original is not finite on random inputs, so nothing can be "
                         "compared; give the model trained weights")  # fmt: skip
    if not np.isfinite(found[finite]).all() or not np.array_equal(known[~finite], found[~finite]):
        return float("inf")  # infinities of masks must stand in the same places
    # complex, unsigned and short numbers are compared in a type that holds them all
    wide = np.complex128 if np.iscomplexobj(known) else np.float64
    known, found = known[finite].astype(wide), found[finite].astype(wide)
    gap, size = float(np.abs(known - found).max()), float(np.abs(known).max())
    if size == 0.0:
        return 0.0 if gap == 0.0 else float("inf")
    return gap / size


def random_inputs(program: Program, rng: np.random.Generator) -> list[Array]:
    """Standard normal numbers; 0 and 1 for integers, which may be indices; text is empty."""
    return [random_array(*program.terms.type_of(t), rng) for t in program.inputs]


def random_array(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """One of them."""
    if "float" in dtype:
        drawn = rng.standard_normal(shape)
        return drawn if dtype == "bfloat16" else drawn.astype(dtype)
    if dtype == "object":
        return np.full(shape, "", object)
    return rng.integers(0, 2, shape).astype(dtype)


def run_onnx(model: Any, inputs: dict[str, Array]) -> list[Array]:
    """Outputs of an ONNX model, or a file, by ONNX Runtime. Raises ConfigError when it is not installed, UserError when
    it cannot run the model or takes too long."""
    from graphopt.rewrite.io.onnx_call import onnxruntime_runner

    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigError("ONNX Runtime is not installed; pip install -e '.[onnx]'") from error
    try:
        return onnxruntime_runner(model)(inputs)
    except Exception as error:  # ONNX Runtime has many
        why = " ".join(str(error).split())[:300]
        raise UserError(printable(f"ONNX Runtime cannot run the model: {why}; export it again")) from error


INFORMATIVE = 1e4  # times the tolerance: the least change that other inputs have to make
RETRIES = 3  # where the original gives no finite numbers; the last one draws weights of usual magnitudes and signs
INDICES = 2**16  # whole numbers are below; a gather counts modulo the axis


def disagreement(original: Program, rewritten: Program, equality: Equality) -> str:
    """The difference, in one sentence; empty where the programs agree on all draws. Both share their terms."""
    first, second = with_probes(original, rewritten)
    try:
        for draw in range(equality.draws):
            for tries in range(RETRIES):
                rng, last = np.random.default_rng(secrets.randbits(128)), tries + 1 == RETRIES
                usual = with_random_weights(first, secrets.randbits(62)).weights if last else None
                weights, inputs = usual or _weights(first, rng), _inputs(first, rng)
                ours, theirs = replace(first, weights=weights), replace(second, weights=weights)
                try:
                    compared(ours, theirs, inputs, equality.tolerance)
                except NotFinite:
                    if last:
                        raise
                    continue
                if not draw:
                    _check_telling(ours, inputs, _inputs(first, rng), equality.tolerance)
                break
    except EquivalenceError as error:
        return str(error)
    return ""


def _check_telling(program: Program, inputs: list[Array], others: list[Array], tolerance: float) -> None:
    """Raises EquivalenceError where outputs that depend on inputs hardly change with them: then nothing is shown."""
    from graphopt.rewrite.ir.execution import Executor  # torch

    run, terms = Executor(program, double=True), program.terms
    for known, found, output, name in zip(run(inputs), run(others), program.outputs, program.output_names, strict=True):
        try:
            compare([known], [found], (name,), INFORMATIVE * tolerance)
        except EquivalenceError:
            continue
        if not terms.static[output]:
            raise EquivalenceError(f"output {name!r} of the original hardly depends on random inputs, so nothing "
                                   "can be checked; give the problem another model")  # fmt: skip


def _weights(program: Program, rng: np.random.Generator) -> dict[str, Array]:
    """One array for each weight of the program: usual magnitudes, each tensor times .5 to 2, both signs but for
    variances."""
    roles, found = roles_of(program), dict[str, Array]()
    for term in program.live():
        operation = program.terms.operation[term]
        if operation.name != "weight":
            continue
        name, shape, dtype = operation.params
        if "float" not in dtype:
            found[name] = rng.integers(0, 2 if dtype == "bool" else INDICES, shape).astype(dtype)
            continue
        role = roles.get(name, default_role(shape))
        drawn = drawn_as(rng, shape, role) * np.float32(2.0 ** rng.uniform(-1, 1))
        if role == "scale":
            drawn = drawn * rng.choice(np.array([-1, 1], np.float32), shape)
        found[name] = np.asarray(drawn, np.float64 if dtype == "bfloat16" else dtype)
    return found


def _inputs(program: Program, rng: np.random.Generator) -> list[Array]:
    """Normal numbers of a magnitude from .1 to 10 about a mean of their own, of which a part may be 0."""
    found = list[Array]()
    for shape, dtype in map(program.terms.type_of, program.inputs):
        if dtype == "object":
            found.append(np.full(shape, "", object))
        elif "float" not in dtype:
            found.append(rng.integers(0, 2 if dtype == "bool" else INDICES, shape).astype(dtype))
        else:
            drawn = 10.0 ** rng.uniform(-1, 1) * (rng.standard_normal(shape) + rng.choice([0.0, 0.0, rng.normal()]))
            drawn *= rng.random(shape) >= rng.choice([0.0, 0.0, 0.5])
            found.append(np.asarray(drawn, np.float64 if dtype == "bfloat16" else dtype))
    return found
