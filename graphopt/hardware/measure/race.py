"""`graphopt measure race BEFORE.onnx AFTER.onnx`: which model runs faster, whole, in ONNX Runtime.

Both models and the first one once more run by turns, on one thread, in several fresh processes. The state of a process
(memory, caches, neighbours) affects all three. The ratio of the first to its copy is the noise: where its interval and
the speed-up's overlap, nothing is shown.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from graphopt.core.errors import ConfigError, Unmeasured, UserError
from graphopt.core.utils.marks import count, seconds, sizes_of
from graphopt.hardware.measure.rounds import Rounds, ratio_of
from graphopt.hardware.measure.service import fresh_rounds
from graphopt.hardware.measure.target import Comparing, Failure, Ratio, Target

PROCESSES = 6  # extremes of six medians hold the true median with a probability of 97 % (1 - 2 / 2^6)
SECONDS = 4.0  # of turns in each process
ROUNDS = 9  # at least
BLOCK_SECONDS = 0.005
LIMIT_SECONDS = 3600.0  # for a process to make a model ready


@dataclass(frozen=True)
class Race:
    """before, after: seconds of a run. speedup: before over after. noise: before over its own copy."""

    before: float
    after: float
    speedup: Ratio
    noise: Ratio
    processes: int
    rounds: int  # of all processes

    @property
    def verdict(self) -> str:
        """In words."""
        if self.speedup.low > max(1.0, self.noise.high):
            return "faster"
        return "slower" if self.speedup.high < min(1.0, self.noise.low) else "no difference shown"


def race(before: Path, after: Path, *, dims: Mapping[str, int] | None = None, processes: int = PROCESSES,
         seconds: float = SECONDS, rounds: int = ROUNDS) -> Race:  # fmt: skip
    """Runs two ONNX files against one another. dims: sizes of open dimensions.

    Raises UserError when ONNX Runtime cannot run one of them.
    """
    if find_spec("onnxruntime") is None:
        raise ConfigError("ONNX Runtime is not installed; pip install -e '.[onnx]'")
    first, second = (onnx_target(file, str(file), dims=dims) for file in (before, after))
    how = Comparing(device="cpu", threads=1, block_seconds=BLOCK_SECONDS, rounds=rounds, noise=0.0, seconds=seconds / 3,
                    limit_seconds=LIMIT_SECONDS, pool="local", workers=1,
                    address=None)  # fmt: skip
    try:
        taken = fresh_rounds(first, [second], how, processes)
    except Unmeasured as error:
        raise UserError(f"ONNX Runtime cannot run the two models: {error}") from None
    if isinstance(taken, Failure):
        raise UserError(f"ONNX Runtime cannot run the two models: {taken.reason}")
    return result_of(taken)


def onnx_target(file: Path, digest: str, *, optimisations: str = "default",
                 dims: Mapping[str, int] | None = None) -> Target:  # fmt: skip
    """A whole ONNX file in ONNX Runtime."""
    return Target("onnx", digest, {"path": str(file), "dims": dict(dims or {}), "optimisations": optimisations})


def result_of(taken: Rounds) -> Race:
    """From seconds [processes, rounds, (before, its copy, after)]; processes may have rounds of different number."""
    arrays = [np.asarray(rounds) for rounds in taken]
    first, second = (median(float(np.median(a[:, model])) for a in arrays) for model in (0, 2))
    speedup, noise = (ratio_of([np.median(a[:, 0] / a[:, other]) for a in arrays]) for other in (2, 1))
    return Race(first, second, speedup, noise, len(arrays), sum(len(a) for a in arrays))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt measure race", description="Runs two models by turns.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="fixes an open dimension")
    parser.add_argument("--processes", type=count, default=PROCESSES)
    parser.add_argument("--seconds", type=seconds, default=SECONDS, help="of turns in each process")
    args = parser.parse_args(arguments)
    found = race(args.before, args.after, dims=sizes_of(args.dim), processes=args.processes, seconds=args.seconds)
    print(f"before {1e3 * found.before:.4g} ms, after {1e3 * found.after:.4g} ms: {found.speedup} times as fast; "
          f"against its own copy {found.noise}: {found.verdict}")  # fmt: skip
    return 0
