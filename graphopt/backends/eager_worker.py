"""The process in which `graphopt measure backends` decides about one program, or runs its backends by turns.

Shape legend: R rounds, C columns (eager execution, its copy, then the backends that run).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from time import thread_time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from graphopt.backends.graphnet import GraphoptBackend, Searched
from graphopt.core.utils.process import Tell, in_words, serve
from graphopt.graphs.readers.pytorch.graphnet.archive import sample_at
from graphopt.graphs.readers.pytorch.graphnet.sample import read_sample
from graphopt.graphs.readers.pytorch.nested_tensors import tensors_in
from graphopt.hardware.costs.inductor import NOTHING
from graphopt.hardware.measure.rounds import Runner, by_turns, cpu_timed, runs_for
from graphopt.hardware.measure.timing_worker import Fork, Here
from graphopt.hardware.requests import request_of
from graphopt.report.error_aware import TOLERANCES

HOW = {"rounds": 9, "noise": 0.003, "seconds": 1.5}  # of turns: at least, until the error is so small, or so long each
BLOCK_SECONDS = 0.005
POWERS = {torch.float16: 3.0, torch.bfloat16: 1.796, torch.float32: 5.886, torch.float64: 7.0}


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    return serve(arguments, answer)


def answer(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """request: `sample`, a place; `folder`, of its decision files; with `evals` it is decided about, else `backends`
    run."""
    place = str(request["sample"])
    module, inputs = read_sample(sample_at(place), place).module(fake=False)
    program, given = module.program, [t.detach() for t in module.arranged(inputs)]  # weights are inputs in GraphNet
    tell(at=0)
    with torch.no_grad():
        if "evals" in request:
            return decided(program, given, request)
        return run_by_turns(program, given, request)


def decided(program: GraphModule, given: list[Tensor], request: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves decision files in the folder where anything is to be done otherwise than TorchInductor does."""
    searched = Searched(program, int(request["evals"]), request["numerics"])
    searched(*given)
    found = searched.found
    used = [request_of(answer.plan, 0) for name, answer in found.answers.items() if name not in found.undone]
    changed = any(one != NOTHING for one in used)
    if changed:
        found.save(str(request["folder"]))
    return {"changed": changed}


def run_by_turns(program: GraphModule, given: list[Tensor], request: Mapping[str, Any]) -> dict[str, Any]:
    """columns: names, rounds: [R, C] seconds, closeness: by backend, failed: the reasons of backends that do not
    run."""
    compilers: dict[str, Callable[[GraphModule], Any]] = {
        "inductor": torch.compile, "graphopt": GraphoptBackend({"decisions": str(request["folder"])})
    }  # fmt: skip
    reference, closeness, failed = outcome(program, given), dict[str, int | None](), dict[str, str]()
    columns, runners = ["eager", "copy"], [Runner(lambda: program(*given))] * 2
    for name in request["backends"]:
        try:
            compiled = compilers[name](deepcopy(program))
            closeness[name] = closeness_of(reference, outcome(compiled, given))
        except Exception as error:  # any exception of a compiler
            failed[name] = in_words(error)
            continue
        columns.append(name)
        runners.append(Runner(lambda run=compiled: run(*given)))  # type: ignore[misc]
    timed, rng = cpu_timed(thread_time), np.random.default_rng(int(request["seed"]))
    turns = [Fork(partial(Here, timed, runner)) for runner in runners]
    rounds = by_turns(turns, [runs_for(turn, BLOCK_SECONDS) for turn in turns], HOW, rng)
    return {"columns": columns, "rounds": rounds, "closeness": closeness, "failed": failed}


def outcome(run: Callable[..., Any], given: Sequence[Tensor]) -> list[Tensor]:
    """The results, from copies of the inputs and one seed."""
    torch.manual_seed(0)
    return [t.clone() for t in tensors_in(run(*[t.clone() for t in given]))]


def closeness_of(reference: Sequence[Tensor], found: Sequence[Tensor]) -> int | None:
    """The lowest t at which all results are close by GraphNet's tolerances; None where none is."""
    alike = len(reference) == len(found) and all(a.shape == b.shape and a.dtype == b.dtype
                                                 for a, b in zip(reference, found))  # fmt: skip
    holds = (t for t in TOLERANCES if t <= 0 and alike and all(close(a, b, t) for a, b in zip(reference, found)))
    return next(holds, None)


def close(a: Tensor, b: Tensor, t: int) -> bool:
    """Within 10^t, and relatively within a power of it by the data type; whole numbers are equal."""
    power = POWERS.get(a.dtype)
    if power is None:
        return torch.equal(a, b)
    relative = 10.0 ** (t * power / 5)
    return torch.allclose(b, a, rtol=relative, atol=relative if a.dtype == torch.float64 else 10.0**t, equal_nan=True)
