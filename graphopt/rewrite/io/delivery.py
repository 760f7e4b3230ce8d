"""The rewritten model for the user: written as ONNX, run by ONNX Runtime, and compared with the original once more."""

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from graphopt.errors import UserError
from graphopt.rewrite.equivalence import compare, random_inputs, run_onnx
from graphopt.rewrite.ir.terms import Program

SINGLE = 1e-3  # tolerance of the comparison: ONNX Runtime computes in single precision, and fuses on its own


def deliver(original: Program, best: Program, rules: Sequence[str], path: Path, *, seed: int = 0) -> list[str]:
    """Writes `best` with the rules that led there; what is wrong with it, in sentences.

    Where ONNX Runtime is installed (extra `onnx`), both models run in it on random inputs and must agree within
    `SINGLE` of the largest value of each output.
    """
    from graphopt.rewrite.io.onnx_export import export_onnx, save_onnx

    path.parent.mkdir(parents=True, exist_ok=True)
    save_onnx(best, path, rules=rules)
    if find_spec("onnxruntime") is None:
        return []
    given = random_inputs(original, np.random.default_rng(seed))
    names = [str(original.terms.operation[leaf].params[0]) for leaf in original.inputs]
    inputs = dict(zip(names, given, strict=True))
    try:
        before = run_onnx(export_onnx(original), inputs)
    except (
        UserError
    ) as error:  # ONNX Runtime has no kernel for one of its operators, so there is nothing to compare with
        warnings.warn(f"{path.name} is not compared in ONNX Runtime: {error}", stacklevel=2)
        return []
    try:
        compare(before, run_onnx(str(path), inputs), original.output_names, SINGLE)
    except UserError as error:
        return [f"{path.name} in ONNX Runtime: {error}"]
    return []
