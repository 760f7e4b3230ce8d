"""The clock of GPUs: events of the device, around a block of runs."""

import torch

from graphopt.errors import ConfigError
from graphopt.measure.rounds import Runner

if not torch.cuda.is_available():
    raise ConfigError("measuring.device=cuda needs a GPU that torch can use, and there is none: choose "
                      "measuring.device=cpu")  # fmt: skip


def cuda_timed(runner: Runner, runs: int) -> float:
    """Seconds of so many runs; those that are reset are timed one by one."""
    if runner.reset is not None:
        return sum(_block(runner, 1) for _ in range(runs))
    return _block(runner, runs)


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
