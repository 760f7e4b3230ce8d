"""The process that times targets, asked line by line (`process.serve`); started by `pool`.

Its setting is {"device", "threads", "place", "kind", "layout"}; libraries of that kind of targets are loaded at once,
on any processor. A request holds `targets`, of `Target.request`, and `how`, of
`Measuring` or `Comparing` as JSON. With `alone`, the one target is timed by itself: {"seconds", "spread", "blocks"}.
Else the first is the default, and the answer is {"rounds": [R, C] seconds, "errors": {target: [reason, lasting]},
"unequal": targets whose bits are not the default's}; columns are the default, its copy, and the other targets that can
be run. While a target is made ready, the process tells its place in the request.
"""

import importlib
import json
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe, get_context
from typing import Any, NamedTuple

import numpy as np

from graphopt.core.errors import UserError
from graphopt.core.utils.process import START_SECONDS, Request, Tell, in_words, lasts, serve
from graphopt.hardware.measure.environment import pin
from graphopt.hardware.measure.rounds import Column, Runner, Timed, alone, by_turns, cpu_timed, runs_for

TORCH = "graphopt.hardware.measure.kinds.torch_kinds"
ONNX = "graphopt.hardware.measure.kinds.onnx_kind"
HELD, HELD_LOG2 = 8, (10, 20)  # blocks of a layout; logarithms of their least and most bytes


class Kind(NamedTuple):
    """module: its `begin(threads)` is called once; of it `function`, `(payload, device) -> Runner`. loads: a module
    beside it. itself: it times its targets, so `function` is `(payload, how) -> the answer`."""

    module: str
    function: str
    loads: str = ""
    itself: bool = False


KINDS = {
    "op": Kind(TORCH, "load_op"),
    "program": Kind(TORCH, "load_program_file"),
    "eager": Kind(TORCH, "load_eager"),
    "inductor": Kind(TORCH, "load_inductor", loads="torch._inductor.select_algorithm"),
    "onnx": Kind(ONNX, "load_onnx"),
    "onnx_op": Kind(ONNX, "alone_onnx", itself=True),
}


def main(arguments: list[str]) -> int:
    setting = json.loads(arguments[0])
    bench = Bench(setting["device"], setting["threads"], setting["layout"])
    if setting["kind"] in KINDS:
        with suppress(Exception):  # a target of that kind will have the error
            bench.load(setting["kind"])
    pin(setting["threads"], setting["place"])
    return serve(arguments, bench.answer)


class Bench:
    """Makes targets ready and times them. The last default stays ready, with its copy."""

    def __init__(self, device: str, threads: int, layout: int) -> None:
        self.device, self.threads, self.layout = device, threads, layout  # layout: of `Fork`
        self._begun, self._tried = set[str](), set[str]()  # modules of `KINDS`; kinds
        self._default: tuple[str, list[Column]] = ("", [])

    def answer(self, request: Request, tell: Tell) -> dict[str, Any]:
        targets, how = request["targets"], request["how"]
        if targets[0]["kind"] in KINDS and KINDS[targets[0]["kind"]].itself:
            tell(at=0, more=START_SECONDS)
            own: dict[str, Any] = self.load(targets[0]["kind"])(targets[0]["payload"], how)
            return own
        if request.get("alone"):
            return alone(self._here(self._loaded(0, targets[0], tell)), how)
        columns, errors, unequal = self._of_default(targets[0], tell), dict[int, list[Any]](), list[int]()
        known = columns[0].bits == columns[1].bits  # else the program gives other bits in every process
        runs = [runs_for(column, how["block_seconds"]) for column in columns]
        for i, target in enumerate(targets[1:], 1):
            try:
                column = self._ready(i, target, tell)
                runs.append(runs_for(column, how["block_seconds"]))
                columns.append(column)
                unequal += [i] if known and column.bits != columns[0].bits else []
            except Exception as error:  # any exception of a library: this one cannot be run, the others can
                errors[i] = [in_words(error), lasts(error)]
        tell(at=None, more=how["seconds"] * len(columns))
        taken = by_turns(columns, runs, how, np.random.default_rng(0))
        return {"rounds": taken, "errors": errors, "unequal": unequal}

    def _of_default(self, target: dict[str, Any], tell: Tell) -> list[Column]:
        """The default and its copy, each with inputs of its own."""
        if self._default[0] != target["digest"]:
            self._default = ("", [])  # before another one takes memory
            self._default = (target["digest"], [self._ready(0, target, tell) for _ in range(2)])
        tell(at=0)
        return list(self._default[1])

    def _ready(self, at: int, target: dict[str, Any], tell: Tell) -> Column:
        make = self._loaded(at, target, tell)
        if self.device == "cuda":
            return self._here(make)
        if self.threads == 1 and target["kind"] not in self._tried:  # forks find its libraries loaded
            make()  # with more threads there would be some, which forks have not
            self._tried.add(target["kind"])
        return Fork(lambda: self._here(make), self.layout)

    def _here(self, make: Callable[[], Runner]) -> Column:
        """In this process."""
        return Here(self._timed(), make())

    def _loaded(self, at: int, target: dict[str, Any], tell: Tell) -> Callable[[], Runner]:
        """The function that makes it ready, with its libraries loaded here."""
        tell(at=at, more=START_SECONDS)
        load = self.load(target["kind"])
        tell(at=at)
        return partial(load, target["payload"], self.device)

    def load(self, kind: str) -> Callable[[dict[str, Any], Any], Any]:
        """The function of the kind, with all that it needs."""
        known = KINDS[kind]
        module = importlib.import_module(known.module)
        if known.module not in self._begun:
            module.begin(self.threads)
            self._begun.add(known.module)
        if known.loads:
            importlib.import_module(known.loads)
        function: Callable[[dict[str, Any], Any], Any] = getattr(module, known.function)
        return function

    def _timed(self) -> Timed:
        if self.device == "cuda":
            timed: Timed = importlib.import_module(TORCH).cuda_clock()
            return timed
        return cpu_timed(time.thread_time if self.threads == 1 else time.perf_counter)


class Here:
    """A target in this process."""

    def __init__(self, timed: Timed, runner: Runner) -> None:
        self._timed, self._runner, self.bits = timed, runner, runner.bits

    def __call__(self, runs: int) -> float:
        return self._timed(self._runner, runs)


class Fork:
    """A target in a fork of this process, where nothing else allocates, as in a process that runs this target alone.
    The largest block that a process has freed moves glibc's thresholds, and so decides which pages fault in every run.

    Where blocks lie decides this as well, and which of them share lines of a cache. layout: above 0, the fork first
    takes blocks of its own and keeps them. Their sizes are drawn by this number (after Curtsinger and Berger 2013).

    Ends with this object. Raises the fork's exceptions, in words; ends this process where the fork has died."""

    def __init__(self, make: Callable[[], Column], layout: int = 0) -> None:
        self._pipe, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads, if any, are none of the fork's
            process = get_context("fork").Process(target=_serve_runs, args=(theirs, make, layout), daemon=True)
            process.start()
        theirs.close()
        weakref.finalize(self, process.kill)
        self.bits = ""
        self(0)  # until it is ready

    def __call__(self, runs: int) -> float:
        self._pipe.send(runs)
        try:
            taken, self.bits, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            sys.exit("a target has ended the process that runs it")
        if error is None:
            return float(taken)
        words, lasting, fatal = error
        raise UserError(words) if fatal else RuntimeError(words) if lasting else OSError(words)


def _serve_runs(pipe: Any, make: Callable[[], Column], layout: int) -> None:
    """In the fork, until nobody asks any more."""
    sizes = 2.0 ** np.random.default_rng(layout).uniform(*HELD_LOG2, HELD if layout else 0)
    held = [bytearray(int(size)) for size in sizes]
    column: Column | None = None
    with suppress(EOFError):
        while True:
            runs = pipe.recv()
            answer: tuple[float, str, tuple[str, bool, bool] | None]
            try:
                column = column or make()
                answer = (column(runs), column.bits, None)
            except Exception as error:  # any exception of a library
                answer = (0.0, "", (in_words(error), lasts(error), isinstance(error, UserError)))
            pipe.send(answer)
    del held
