"""Targets in ONNX Runtime, on one thread of a CPU. Of a whole file the payload has `path`; `dims`, sizes of open
dimensions; `optimisations` of ONNX Runtime, default, off, or the name of one that is left out. Inputs are random, the
same for all files with the same inputs. Of an op it has `name`, `params`, `inputs`, shapes and types, and
`optimisations`."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import ConfigError
from graphopt.core.utils.plain_json import tuples
from graphopt.hardware.measure.rounds import LEAST, MOST_ROUNDS, Runner, spread_of
from graphopt.rewrite.equivalence import random_array
from graphopt.rewrite.io.onnx_call import onnxruntime_session
from graphopt.rewrite.io.onnx_export import export_onnx
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import Operation

ELEMENTS = {"float": "float32", "double": "float64", "string": "object"}  # names of ONNX Runtime that numpy has not


def begin(threads: int) -> None:
    """Sessions have one thread each."""


def load_onnx(payload: dict[str, Any], device: str) -> Runner:
    if device != "cpu":
        raise ConfigError("ONNX Runtime is run on CPUs only: choose measuring.device=cpu")
    session = onnxruntime_session(payload["path"], optimisations=payload["optimisations"])
    feeds = random_feeds(session, payload["dims"])
    return Runner(lambda: session.run(None, feeds))


def random_feeds(session: Any, dims: Mapping[str, int]) -> dict[str, Any]:
    """The same for all files with the same inputs."""
    rng, feeds = np.random.default_rng(0), {}
    for given in session.get_inputs():
        inner = given.type.removeprefix("tensor(").removesuffix(")")
        feeds[given.name] = random_array(_shape(given, dims), ELEMENTS.get(inner, inner), rng)
    return feeds


def alone_onnx(payload: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """Of one op: `seconds` of its kernels, by ONNX Runtime's own profile, `spread` over runs, and `blocks`, how many.

    Unless optimisations are off, convolutions run in blocked layouts. Conversions into such a layout and back are left
    out: in a network they happen at the ends, not around each op. how: of `Measuring`; a block is one run.
    """
    model = export_onnx(_program(Operation(payload["name"], tuples(payload["params"])), payload["inputs"]))
    with TemporaryDirectory(prefix="graphopt-") as folder:
        profile = str(Path(folder) / "op")
        session = onnxruntime_session(model, optimisations=payload["optimisations"], profile=profile)
        feeds, begun, ends = random_feeds(session, {}), time.perf_counter(), list[float]()
        while not _enough(np.diff([begun, *ends]), how):
            session.run(None, feeds)
            ends.append(time.perf_counter())
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = defaultdict(list)
    for event in events:
        if event["name"].endswith("_kernel_time") and not event["args"]["op_name"].startswith("Reorder"):
            kernels[event["name"]].append(event["dur"] * 1e-6)
    runs = len(ends)
    taken = np.sum([times[-runs:][1:] for times in kernels.values()], axis=0) if kernels else np.zeros(runs - 1)
    low, high = np.quantile(taken, [0.25, 0.75])  # durations are whole microseconds: the mean of the middle tells more
    return {"seconds": float(taken[(taken >= low) & (taken <= high)].mean()), "spread": spread_of(taken.tolist()),
            "blocks": runs - 1}  # fmt: skip


def _enough(runs: NDArray[np.float64], how: dict[str, Any]) -> bool:
    """Whether so many runs, in seconds [R], are enough; the first does not count."""
    passed = runs.sum()
    if len(runs) <= LEAST or len(runs) == MOST_ROUNDS or passed >= how["op_seconds"]:
        return len(runs) > LEAST
    alike = len(runs) > how["blocks"] and spread_of(runs[1:].tolist()) <= how["spread"]
    return bool(alike and passed >= how["blocks"] * how["block_seconds"])


def _program(operation: Operation, inputs: list[Any]) -> Program:
    """The op by itself. Second operands of convolutions, normalisations and products with matrices are constant."""
    terms, leaves, weights = Terms(), list[int](), {}
    for i, (shape, dtype) in enumerate(inputs):
        known = i > 0 and (operation.name in ("conv", "batch_norm") or (operation.name == "matmul" and len(shape) == 2))
        kind = "weight" if known else "input"
        leaves.append(terms.add(Operation(kind, (f"x{i}", tuple(shape), dtype))))
        if known:
            weights[f"x{i}"] = random_array(tuple(shape), dtype, np.random.default_rng(i))
    made = terms.add(operation, leaves)
    count = len(terms.types[made])
    ends = [made] if count == 1 else [terms.add(Operation("item", (i,)), [made]) for i in range(count)]
    given = tuple(leaf for leaf in leaves if terms.operation[leaf].name == "input")
    return Program(terms, tuple(ends), tuple(f"y{i}" for i in range(count)), given, weights)


def _shape(given: Any, dims: Mapping[str, int]) -> tuple[int, ...]:
    for size in given.shape:
        if not isinstance(size, int) and size not in dims:
            raise ValueError(f"input {given.name!r} has the open dimension {size or 'without a name'}; give its size")
    return tuple(size if isinstance(size, int) else dims[size] for size in given.shape)
