"""The process that times targets, asked line by line (`process.serve`); started by `pool`.

Its setting is {"device", "threads", "place", "kind"}; libraries of that kind of targets are loaded at once, on any
processor. A request holds `targets`, of `Target.request`, and `how`, of
`Measuring` or `Comparing` as JSON. With `alone`, the one target is timed by itself: {"seconds", "spread",
"blocks"}. Else the first is the default, and the answer is {"rounds": [R, C] seconds, "errors": {target: [reason,
lasting]}}; columns are the default, its copy, and the other targets that can be run. While a target is made ready,
the process tells its place in the request.
"""

import importlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from graphopt.core.utils.process import START_SECONDS, Request, Tell, in_words, lasts, serve
from graphopt.hardware.measure.environment import pin
from graphopt.hardware.measure.rounds import Runner, Timed, alone, by_turns, cpu_timed, runs_for

TORCH = "graphopt.hardware.measure.kinds.torch_kinds"
ONNX = "graphopt.hardware.measure.kinds.onnx_kind"
# Kind -> module, of which `begin(threads)` is called once, and function `(payload, device) -> Runner`.
KINDS = {
    "op": (TORCH, "load_op"),
    "program": (TORCH, "load_program_file"),
    "eager": (TORCH, "load_eager"),
    "inductor": (TORCH, "load_inductor"),
    "onnx": (ONNX, "load_onnx"),
}
LOADED = {"inductor": "torch._inductor.async_compile"}  # beside the module of the kind
OWN = {"onnx_op": (ONNX, "alone_onnx")}  # kinds that time themselves: `(payload, how) -> the answer`


def main(arguments: list[str]) -> int:
    setting = json.loads(arguments[0])
    bench = Bench(setting["device"], setting["threads"])
    if setting["kind"] in KINDS:
        with suppress(Exception):  # a target of that kind will say what is wrong
            bench.load(setting["kind"])
    pin(setting["threads"], setting["place"])
    return serve(arguments, bench.answer)


class Bench:
    """Makes targets ready and times them. The last default stays ready, with its copy."""

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self._begun = set[str]()  # modules of `KINDS`
        self._default: tuple[str, list[Runner]] = ("", [])

    def answer(self, request: Request, tell: Tell) -> dict[str, Any]:
        targets, how, timed = request["targets"], request["how"], self._timed(tell)
        if targets[0]["kind"] in OWN:
            tell(at=0, more=START_SECONDS)
            name, function = OWN[targets[0]["kind"]]
            own: dict[str, Any] = getattr(importlib.import_module(name), function)(targets[0]["payload"], how)
            return own
        if request.get("alone"):
            return alone(self._ready(0, targets[0], tell), timed, how)
        runners, errors = self._of_default(targets[0], tell), dict[int, list[Any]]()
        runs = [runs_for(timed, runner, how["block_seconds"]) for runner in runners]
        for i, target in enumerate(targets[1:], 1):
            try:
                runner = self._ready(i, target, tell)
                runs.append(runs_for(timed, runner, how["block_seconds"]))
                runners.append(runner)
            except Exception as error:  # whatever a library raises: this one cannot be run, the others can
                errors[i] = [in_words(error), lasts(error)]
        tell(at=None, more=how["seconds"] * len(runners))
        return {"rounds": by_turns(runners, runs, timed, how, np.random.default_rng(0)), "errors": errors}

    def _of_default(self, target: dict[str, Any], tell: Tell) -> list[Runner]:
        """The default and its copy, each with inputs of its own."""
        if self._default[0] != target["digest"]:
            self._default = ("", [])  # before another one takes memory
            self._default = (target["digest"], [self._ready(0, target, tell) for _ in range(2)])
        tell(at=0)
        return list(self._default[1])

    def _ready(self, at: int, target: dict[str, Any], tell: Tell) -> Runner:
        tell(at=at, more=START_SECONDS)
        load = self.load(target["kind"])
        tell(at=at)
        return load(target["payload"], self.device)

    def load(self, kind: str) -> Callable[[dict[str, Any], str], Runner]:
        """What makes its targets ready, with all that it needs."""
        name, function = KINDS[kind]
        module = importlib.import_module(name)
        if name not in self._begun:
            module.begin(self.threads)
            self._begun.add(name)
        if kind in LOADED:
            importlib.import_module(LOADED[kind])
        load: Callable[[dict[str, Any], str], Runner] = getattr(module, function)
        return load

    def _timed(self, tell: Tell) -> Timed:
        if self.device == "cuda":
            tell(at=0, more=START_SECONDS)
            timed: Timed = importlib.import_module(TORCH).cuda_clock()
            return timed
        return cpu_timed(time.thread_time if self.threads == 1 else time.perf_counter)
