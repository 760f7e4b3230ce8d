"""A rewritten program against the original, on weights and inputs that nobody could know: all are drawn anew from the
system's randomness, of several scales, signs and patterns, so that a program that agrees agrees everywhere.
"""

import secrets
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.problems.solution import Equality
from graphopt.rewrite.equivalence import EquivalenceError, NotFinite, compare, compared, with_probes
from graphopt.rewrite.ir.random_weights import default_role, drawn_as, roles_of, with_random_weights
from graphopt.rewrite.ir.terms import Program

Array = NDArray[Any]
INFORMATIVE = 1e4  # times the tolerance: what other inputs have to change at least
RETRIES = 3  # where the original gives no finite numbers; the last one draws weights of usual magnitudes and signs
INDICES = 2**16  # whole numbers are below; a gather counts modulo the axis


def disagreement(original: Program, rewritten: Program, equality: Equality) -> str:
    """What differs, in one sentence; empty where the programs agree on all draws. Both share their terms."""
    first, second = with_probes(original, rewritten)
    try:
        for number in range(equality.draws):
            _one_draw(first, second, equality.tolerance, telling=not number)
    except EquivalenceError as error:
        return str(error)
    return ""


def _one_draw(first: Program, second: Program, tolerance: float, *, telling: bool) -> None:
    """Raises EquivalenceError. telling: whether to see that the outputs depend on the inputs."""
    for tries in range(RETRIES):
        rng, last = np.random.default_rng(secrets.randbits(128)), tries + 1 == RETRIES
        usual = with_random_weights(first, secrets.randbits(62)).weights if last else None
        weights, given = usual or _weights(first, rng), _inputs(first, rng)
        ours, theirs = replace(first, weights=weights), replace(second, weights=weights)
        try:
            compared(ours, theirs, given, tolerance)
        except NotFinite:
            if last:
                raise
            continue
        if telling:
            _check_telling(ours, given, _inputs(first, rng), tolerance)
        return


def _check_telling(program: Program, given: list[Array], others: list[Array], tolerance: float) -> None:
    """Raises EquivalenceError where outputs that depend on inputs hardly change with them: then nothing is shown."""
    from graphopt.rewrite.ir.execution import Executor  # torch

    run, terms = Executor(program, double=True), program.terms
    for known, found, output, name in zip(run(given), run(others), program.outputs, program.output_names, strict=True):
        try:
            compare([known], [found], (name,), INFORMATIVE * tolerance)
        except EquivalenceError:
            continue
        if not terms.static[output]:
            raise EquivalenceError(f"output {name!r} of the original hardly depends on random inputs, so nothing "
                                   "can be judged; give the problem another model")  # fmt: skip


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
    return [_input(*program.terms.type_of(term), rng) for term in program.inputs]


def _input(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Normal numbers of a magnitude from .1 to 10 about a mean of their own, of which a part may be 0."""
    if dtype == "object":
        return np.full(shape, "", object)
    if "float" not in dtype:
        return rng.integers(0, 2 if dtype == "bool" else INDICES, shape).astype(dtype)
    drawn = 10.0 ** rng.uniform(-1, 1) * (rng.standard_normal(shape) + rng.choice([0.0, 0.0, rng.normal()]))
    drawn *= rng.random(shape) >= rng.choice([0.0, 0.0, 0.5])
    return np.asarray(drawn, np.float64 if dtype == "bfloat16" else dtype)
