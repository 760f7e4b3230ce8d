"""`python -m graphopt.rewrite.race BEFORE.onnx AFTER.onnx`: which model runs faster, whole, in ONNX Runtime.

Both models and the first one once more run by turns, on one thread, in several fresh processes: what a process does to
one (memory, caches, neighbours) it does to all three. The ratio of the first to its copy is the noise: where its
interval and the speed-up's overlap, nothing is shown.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from graphopt.errors import ConfigError, UserError
from graphopt.utils.channel import is_seconds

PROCESSES = 6  # extremes of six medians hold the true median with a probability of 97 % (1 - 2 / 2^6)
SECONDS = 4.0  # of turns in each process
ROUNDS = 9  # at least
LIMIT_SECONDS = 7200.0  # for one process to answer


@dataclass(frozen=True)
class Ratio:
    """Over processes: the median, and the extremes, of each one's median ratio."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


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
    asked = {"models": [str(file) for file in (before, after, before)], "dims": dict(dims or {}),
             "seconds": seconds, "rounds": rounds}  # fmt: skip
    return result_of([_process(asked) for _ in range(processes)])


def result_of(taken: Sequence[Sequence[Sequence[float]]]) -> Race:
    """From seconds [processes, rounds, (before, after, before)]; processes may have rounds of different number."""
    arrays = [np.asarray(rounds) for rounds in taken]
    first, second = (median(float(np.median(a[:, model])) for a in arrays) for model in (0, 1))
    speedup, noise = (_ratio([float(np.median(a[:, 0] / a[:, other])) for a in arrays]) for other in (1, 2))
    return Race(first, second, speedup, noise, len(arrays), sum(len(a) for a in arrays))


def _ratio(values: list[float]) -> Ratio:
    return Ratio(median(values), min(values), max(values))


def _process(asked: Mapping[str, object]) -> list[list[float]]:
    command = [sys.executable, "-m", "graphopt.measure.race_worker", json.dumps(asked)]
    with tempfile.TemporaryFile() as file:  # nobody else's: what libraries print goes to standard error
        command.append(str(file.fileno()))
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[file.fileno()], timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"ONNX Runtime has not run the two models in {LIMIT_SECONDS:g} s; give smaller ones"
            ) from None
        file.seek(0)
        return rounds_in(file.read())


def rounds_in(answer: bytes) -> list[list[float]]:
    """[rounds, models] seconds. Raises UserError unless the answer of a process holds such, all finite and positive."""
    try:
        said = json.loads(answer or b'{"error": "its process ended, out of memory?"}')
    except ValueError:
        said = {"error": "its process ended before it had answered"}
    answered: dict[str, Any] = said if isinstance(said, dict) else {}
    rounds = answered.get("rounds")
    if isinstance(rounds, list) and rounds and all(map(_is_round, rounds)):
        return rounds
    why = answered.get("error", "it measured no time")
    raise UserError(f"ONNX Runtime cannot run the two models: {why}")


def _is_round(models: Any) -> bool:
    return isinstance(models, list) and len(models) == 3 and all(map(is_seconds, models))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m graphopt.rewrite.race", description="Runs two models by turns.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="fixes an open dimension")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of turns in each process")
    args = parser.parse_args(arguments)
    try:
        dims = {name: int(size) for name, size in (entry.split("=", 1) for entry in args.dim)}
    except ValueError:
        raise UserError("--dim takes NAME=SIZE") from None
    found = race(args.before, args.after, dims=dims, processes=args.processes, seconds=args.seconds)
    print(f"before {1e3 * found.before:.4g} ms, after {1e3 * found.after:.4g} ms: {found.speedup} times as fast; "
          f"against its own copy {found.noise}: {found.verdict}")  # fmt: skip
    return 0


if __name__ == "__main__":
    from graphopt.cli import sentences

    with sentences():
        sys.exit(main(sys.argv[1:]))
