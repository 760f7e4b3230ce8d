"""Runs cases in processes that may die, and counts what became of them. A case is a format and a seed."""

import argparse
import json
import math
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from graphopt.core.utils.terminal import Bar

from .judge import BAD, KINDS, Outcome, guard, judged

FORMATS = ".formats"
WALL = 180.0  # seconds after which a process that does not answer is ended: its own clock cannot stop compiled code
WARM = 600.0  # seconds for the first answer, which waits for imports and compiled code
SOUND = range(-4, 0)  # seeds of undamaged inputs

Case = tuple[str, int]  # format, seed


def run(cases: Iterable[Case], formats: str = FORMATS, wall: float = WALL) -> Iterator[tuple[str, int, Outcome]]:
    """(format, seed, outcome) of every case, in turn, in one process. One that dies, or gives no answer for so long, is
    begun again. formats: module of this package that has them."""
    left, spawn = deque(cases), multiprocessing.get_context("spawn")  # a fork would inherit threads, half alive
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    while left:
        pipe, other = spawn.Pipe(duplex=False)
        place = tempfile.TemporaryDirectory(prefix="fuzz_")  # outlives the process
        process = spawn.Process(target=serve, args=(list(left), formats, place.name, other), daemon=True)
        process.start()
        other.close()
        try:
            first, alive = _answer(pipe, process, WARM)
            if not alive:
                raise RuntimeError(f"before its first answer: {first.text}; --one {left[0][0]} -1 shows why")
            if first.kind != "result":
                raise RuntimeError(f"an undamaged input is not read: {first}")
            while left and alive:
                outcome, alive = _answer(pipe, process, wall)
                yield (*left.popleft(), outcome)
        finally:
            process.kill()
            process.join()
            pipe.close()
            place.cleanup()


def _answer(pipe: Connection, process: multiprocessing.process.BaseProcess, seconds: float) -> tuple[Outcome, bool]:
    """(outcome, whether the process lives on)"""
    try:
        if pipe.poll(seconds):
            return Outcome(*pipe.recv()), True
        return Outcome("hang", f"no answer in {seconds:g} s"), False
    except (EOFError, OSError):
        process.join(10)
        kind = "memory" if process.exitcode == -signal.SIGKILL else "traceback"
        return Outcome(kind, f"the process died ({process.exitcode})"), False


def serve(cases: Sequence[Case], formats: str, place: str, pipe: Connection) -> None:
    """The life of a process: it warms up by sound inputs of its formats, then answers for case after case.
    place: for all temporary files."""
    tempfile.tempdir = place
    known, folder = import_module(formats, __package__).FORMATS, Path(place) / "case"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull, "w") as nothing:  # a reader's own words are not the harness's
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    names = dict.fromkeys(name for name, _ in cases)
    warm = [judged(known[name], seed, emptied(folder), traced=True) for name in names for seed in SOUND]
    guard()
    with suppress(BrokenPipeError):
        pipe.send(tuple(next((outcome for outcome in warm if outcome.kind != "result"), warm[0])))
        for name, seed in cases:
            pipe.send(tuple(judged(known[name], seed, emptied(folder))))


def emptied(folder: Path) -> Path:
    """The folder without what the last case left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def table(found: dict[str, list[Outcome]], seconds: dict[str, float]) -> list[str]:
    """Markdown: a line for each format, and their sum."""
    lines = [f"| format | cases | {' | '.join(KINDS)} | seconds |", f"|---|{'---:|' * (len(KINDS) + 2)}"]
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    for name, outcomes in [*found.items(), ("**all**", every)]:
        counts = Counter(outcome.kind for outcome in outcomes)
        time = seconds.get(name, sum(seconds.values()))
        lines.append(f"| {name} | {len(outcomes):,} | {' | '.join(f'{counts[k]:,}' for k in KINDS)} | {time:,.0f} |")
    return lines


def one(name: str, seed: int) -> int:
    """Makes one case, reads it in this process, and shows the input and what became of it."""
    folder = emptied(Path(tempfile.gettempdir()) / "fuzz_one")
    outcome = judged(import_module(FORMATS, __package__).FORMATS[name], seed, folder, traced=True)
    print(f"{outcome.kind}: {outcome.text}\nthe input is in {folder}")
    return int(outcome.kind in BAD)


def main(arguments: Sequence[str]) -> int:
    known = import_module(FORMATS, __package__).FORMATS
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Damaged inputs, counted by outcome.")
    parser.add_argument("--cases", type=int, default=10_000, help="of all formats together; default: 10,000")
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each format")
    parser.add_argument("--format", action="append", choices=sorted(known), help="this one only; may be repeated")
    parser.add_argument("--failures", type=Path, default=Path("outputs/fuzz.json"), help="where seeds that fail go")
    parser.add_argument("--one", nargs=2, metavar=("FORMAT", "SEED"), help="one case, with its traceback")
    args = parser.parse_args(arguments)
    if args.one:
        return one(args.one[0], int(args.one[1]))
    names = args.format or list(known)
    each = args.cases / sum(known[name].share for name in names)
    cases = {name: range(args.seed, args.seed + math.ceil(each * known[name].share)) for name in names}
    found: dict[str, list[Outcome]] = defaultdict(list)
    seconds: dict[str, float] = {}
    bad: dict[str, dict[int, Outcome]] = defaultdict(dict)
    with suppress(KeyboardInterrupt), Bar("fuzz", sum(map(len, cases.values()))) as bar:  # Ctrl-C: the table so far
        for name, seeds in cases.items():
            start = time.perf_counter()
            for _, seed, outcome in run((name, seed) for seed in seeds):
                found[name].append(outcome)
                seconds[name] = time.perf_counter() - start
                if outcome.kind in BAD:
                    bad[name][seed] = outcome
                bar.step(f"{name}: {len(bad[name])} bad of {len(found[name])}")
    args.failures.parent.mkdir(parents=True, exist_ok=True)
    args.failures.write_text(json.dumps(bad, indent=1))
    print("\n".join(table(found, seconds)))
    for name, outcomes in bad.items():
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)  # failures at one place of the code
        for seed, outcome in outcomes.items():
            alike[outcome.kind, outcome.text.rpartition(" at ")[2]].append(seed)
        for (kind, _), group in sorted(alike.items(), key=lambda item: -len(item[1])):
            print(f"{name} {kind}, {len(group)} seeds such as {group[0]}: {outcomes[group[0]].text}")
    return int(any(bad.values()))
