"""`graphopt rules check MODEL.onnx`: the ops of a model that rewriting knows, and whether the exported model computes
the same.

Prints the ops that the vocabulary has and those that stay opaque. Then the model is exported again; both are run by
ONNX Runtime on random inputs, and the program by torch.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto

from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.core.utils.marks import sizes_of
from graphopt.core.utils.terminal import printable
from graphopt.graphs.readers.onnx.reader import OnnxProgram
from graphopt.rewrite.equivalence import EquivalenceError, compare, random_inputs, run_onnx
from graphopt.rewrite.io.onnx_export import export_onnx
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.terms import Program

TOLERANCE = 1e-4  # of the largest magnitude of an output: both compute in single precision, in orders of their own


def main(arguments: Sequence[str]) -> int:
    """0 when the model came back unharmed, 1 with a sentence otherwise."""
    parser = argparse.ArgumentParser(prog="graphopt rules check", description="Takes a model in and out.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="fixes an open dimension")
    args = parser.parse_args(arguments)
    try:
        dims = sizes_of(args.dim)
        program = import_onnx(args.model, dims)
        print("\n".join(inventory(program)))
        print("\n".join(round_trip(program, OnnxProgram(args.model, tuple(dims.items())).load())))
    except (GraphError, UserError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def inventory(program: Program) -> list[str]:
    """Numbers of ops by name, opaque ones apart, and of parameters."""
    known, opaque = Counter[str](), Counter[str]()
    for term in program.live():
        operation = program.terms.operation[term]
        if not program.terms.runs[term]:
            continue
        if operation.name == "opaque":
            opaque[program.opaque[operation.params[0]].label] += 1
        else:
            known[operation.name] += 1
    return [f"{program.num_ops()} ops, {program.parameters():,} parameters",
            f"can be rewritten: {_listed(known)}", f"opaque: {_listed(opaque)}"]  # fmt: skip


def round_trip(program: Program, original: ModelProto) -> list[str]:
    """How far outputs lie apart. Raises EquivalenceError beyond the tolerance."""
    from graphopt.rewrite.ir.execution import Executor  # torch

    given = random_inputs(program, np.random.default_rng(0))
    named = {str(program.terms.operation[t].params[0]): x for t, x in zip(program.inputs, given, strict=True)}
    before = run_onnx(original, named)
    lines = []
    found = {"exported and run by ONNX Runtime": run_onnx(export_onnx(program), named)}
    found["run by torch"] = Executor(program)(given)
    for label, after in found.items():
        try:
            worst = compare(before, after, program.output_names, TOLERANCE)
        except EquivalenceError as error:
            raise EquivalenceError(f"{label}: {error}") from error
        lines.append(f"{label}: differs by {worst:.1e} of the largest value")
    return lines


def _listed(counts: Counter[str]) -> str:
    return printable(", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none")
