"""Targets that torch runs, and the clock of GPUs.

Each loader takes the payload of a target and a device. `eager`: `program`, path of an FX program's file; `seed` of its
inputs. `inductor`: a module that TorchInductor generated here, in a build of ours: `source`, its path; `digest`; and as
for `eager`. `program`: `path` of a rewriting program's ONNX file and `dims`, sizes of open dimensions. `op`: a single
op of the rewriting vocabulary: `name`, `params`, `inputs` [[shape, dtype], ...].
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphopt.core.errors import ConfigError, UserError
from graphopt.core.utils.plain_json import tuples
from graphopt.graphs.readers.pytorch.program_file import load_program, make_inputs
from graphopt.graphs.readers.pytorch.program_inputs import bits_of, for_eager
from graphopt.hardware.measure.rounds import Column, Runner, Timed, by_turns, cpu_timed, ratios, runs_for
from graphopt.hardware.measure.timing_worker import Fork, Here
from graphopt.rewrite.equivalence import random_inputs
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.execution import Executor, apply
from graphopt.rewrite.ir.vocabulary import Operation

POOL = (1 << 20) + 7  # random numbers that the inputs of ops are filled with, over and over
COMPARED = {"rounds": 7, "noise": 0.01, "seconds": 0.4, "block_seconds": 0.01}  # as of `Comparing`
ROUGHLY: dict[str, Any] = {"rounds": 3, "noise": 0.03, "seconds": 0.05, "block_seconds": 0.003}  # of large differences
SMALLER = 1 / 16  # of drawn inputs: a softmax of large ones is 0 and 1, which hides differences
WARM_UP = 3  # runs before a CUDA graph is captured: libraries choose their kernels in them


def begin(threads: int) -> None:
    """Gradients are not recorded, here and from now on."""
    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # type: ignore[no-untyped-call]


def load_eager(payload: dict[str, Any], device: str) -> Runner:
    program = load_program(payload["program"])
    inputs = [tensor.to(device) for tensor in make_inputs(program.inputs, payload["seed"])]
    gm = for_eager(program.gm)
    return runner_of(lambda given: gm(*given), inputs)


def load_inductor(payload: dict[str, Any], device: str) -> Runner:
    """On a GPU as one CUDA graph, so that launches do not count, as with mode="reduce-overhead"."""
    from torch._inductor.codecache import PyCodeCache

    program = load_program(payload["program"])
    if program.device != device:
        raise UserError(f"the program runs on {program.device}, and {device} is measured; set measuring.device="
                        f"{program.device}")  # fmt: skip
    module = PyCodeCache.load_by_key_path(payload["digest"], payload["source"])
    inputs = make_inputs(program.inputs, payload["seed"], program.device)
    if device == "cuda":
        return _cuda_graph(runner_of(module.call, inputs, program.donated))
    for_eager(program.gm)(*[tensor.clone() for tensor in inputs])  # as in users' processes: freed blocks count
    return runner_of(module.call, inputs, program.donated)


def compare_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """given: as `lower_request` takes it. `equal`: whether that code gives the bits of the default's, on drawn inputs
    and on `SMALLER` ones. `ratio`: its time over the default's, by turns for a second or less, on a CPU and one thread.
    Raises GraphError where one of them cannot be lowered."""
    payloads = payload_of({**given, "requests": {}, "knobs": {}}), payload_of(given)
    columns = [fork_of(payload) for payload in payloads]
    equal = columns[0].bits == columns[1].bits and _bits(payloads[0], SMALLER) == _bits(payloads[1], SMALLER)
    return {"equal": equal, "ratio": _ratio(columns)}


def _bits(payload: dict[str, Any], scale: float) -> str:
    """Of that code, where normal inputs are so many times as large."""
    from torch._inductor.codecache import PyCodeCache

    program = load_program(payload["program"])
    specs = [replace(spec, numbers=(scale * spec.numbers[0], scale * spec.numbers[1])) if spec.fill == "normal"
             else spec for spec in program.inputs]  # fmt: skip
    call = PyCodeCache.load_by_key_path(payload["digest"], payload["source"]).call
    with torch.inference_mode():
        return runner_of(call, make_inputs(specs, payload["seed"]), program.donated).bits


def flush_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """given: as `lower_request` takes it. `ratio`: the time of that code where denormal numbers are flushed to zero
    over its time where they are not, roughly."""
    payload = payload_of(given)
    return {"ratio": _ratio([fork_of(payload), fork_of(payload, flush=True)], ROUGHLY)}


def payload_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the code for a request."""
    from graphopt.hardware.inductor.lowering import lower_request

    built = lower_request(given)
    return {"source": built["source"], "digest": built["key"], "program": given["program"], "seed": 0}


def fork_of(payload: dict[str, Any], *, flush: bool = False) -> Fork:
    """That code in a process of its own. flush: with denormal numbers flushed to zero."""
    with torch.inference_mode():
        load_inductor(payload, "cpu")  # compiles, so that the fork finds it compiled
        return Fork(partial(_here, payload, flush))


def _here(payload: dict[str, Any], flush: bool) -> Here:
    torch.set_flush_denormal(flush)
    return Here(cpu_timed(time.thread_time), load_inductor(payload, "cpu"))


def _ratio(columns: Sequence[Column], how: dict[str, Any] = COMPARED) -> float:
    runs = [runs_for(column, how["block_seconds"]) for column in columns]
    return float(np.median(ratios(np.asarray(by_turns(columns, runs, how, np.random.default_rng(0))))))


def runner_of(call: Callable[[list[Tensor]], Any], inputs: list[Tensor],
              donated: Sequence[int] | None = None) -> Runner:  # fmt: skip
    """call may empty its list, and change tensors in place. Tensors that its first run changes are restored before
    every run, so every run sees the same numbers. donated: inputs that it may leave with anything; None: nobody asks
    for its bits."""
    pristine, bits = [tensor.clone() for tensor in inputs], ""
    torch.manual_seed(0)
    results = call(list(inputs))
    if donated is not None:
        bits = bits_of([*results, *(tensor for i, tensor in enumerate(inputs) if i not in donated)])
    del results
    changed = [(now, kept) for now, kept in zip(inputs, pristine) if not _same(now, kept)]

    def reset() -> None:
        for now, kept in changed:
            now.copy_(kept)

    return Runner(lambda: call(list(inputs)), reset if changed else None, bits)


def _same(a: Tensor, b: Tensor) -> bool:
    """NaNs are equal where they stand in the same places."""
    return bool(torch.equal(a, b) or torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True))


def load_op(payload: dict[str, Any], device: str) -> Runner:
    operation = Operation(payload["name"], tuples(payload["params"]))
    inputs = [_tensor(shape, dtype, _pool(device)) for shape, dtype in payload["inputs"]]

    def run() -> Any:
        result = apply(operation, inputs)
        return result.contiguous() if operation.name == "transpose" else result  # else a view: its reader pays for it

    return Runner(run)


@cache
def _pool(device: str) -> Tensor:
    return torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(device)


def _tensor(shape: list[int], dtype: str, pool: Tensor) -> Tensor:
    """Normal numbers, the same over and over: drawing a large product's weights would take longer than the product.
    Ones of other types."""
    kind, size = getattr(torch, dtype), prod(shape)
    if kind.is_floating_point:
        return pool.repeat(ceil(size / POOL))[:size].view(shape).to(kind)
    return torch.ones(shape, dtype=kind, device=pool.device)


def load_program_file(payload: dict[str, Any], device: str) -> Runner:
    """Op by op (`rewrite.ir.execution`); on a GPU as one CUDA graph, so that launches do not count."""
    program = import_onnx(payload["path"], payload["dims"])
    executor, inputs = Executor(program, device=device), random_inputs(program, np.random.default_rng(0))
    if device == "cpu":
        return Runner(lambda: executor(inputs))
    given = executor.given(inputs)
    return _cuda_graph(Runner(lambda: executor.results(given)))


def _cuda_graph(runner: Runner) -> Runner:
    """Replays all kernels by one launch. Inputs, results and intermediate values stay in the graph's own memory."""
    beside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP):
            if runner.reset is not None:
                runner.reset()
            runner.run()
    torch.cuda.current_stream().wait_stream(beside)
    with torch.cuda.graph(graph):
        results = runner.run()

    def run(held: object = (runner, results)) -> None:
        """held: the tensors that the graph reads and writes have to live as long as it."""
        graph.replay()

    return Runner(run, runner.reset, runner.bits)


def cuda_clock() -> Timed:
    """By events of the device. Raises ConfigError where torch has no GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("measuring.device=cuda needs a GPU that torch can use, and there is none: choose "
                          "measuring.device=cpu")  # fmt: skip
    return _cuda_timed


def _cuda_timed(runner: Runner, runs: int) -> float:
    """Seconds of so many runs. Runs that are reset are timed one by one."""
    blocks = [runs] if runner.reset is None else [1] * runs
    return sum(_block(runner, block) for block in blocks)


def _block(runner: Runner, runs: int) -> float:
    if runner.reset is not None:
        runner.reset()
        torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(runs):
        runner.run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000.0
