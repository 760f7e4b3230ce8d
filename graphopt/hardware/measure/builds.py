"""Build processes, which lower and compile programs, and the pipeline from requests to times.

A batch flows lower -> one of each digest -> compile -> timer; programs that are ready are timed while others are being
built. A build process takes lines {"build": a name of `TASKS`, "given": the argument of that function} and gives
{"built": its result, as JSON}. A crash or a hang of a build process fails one request.
"""

import gc
import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import LifoQueue
from typing import Any
from weakref import WeakValueDictionary

from graphopt.core.utils.process import AnswerTimeout, Process, ProcessEnd, Request, Tell, serve
from graphopt.hardware.measure.environment import keep_off, variables
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Failure, Measured, Target

BUILDER = "graphopt.hardware.measure.builds"  # whose `main` a build process runs
TASKS = {  # name -> module and function, which takes a mapping and gives one, both plain JSON
    "lower": ("graphopt.hardware.inductor.lowering", "lower_request"),
    "compile": ("graphopt.hardware.inductor.lowering", "compile_request"),
    "compare": ("graphopt.hardware.measure.kinds.torch_kinds", "compare_request"),
    "flush": ("graphopt.hardware.measure.kinds.torch_kinds", "flush_request"),
}
Built = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Of a build process."""
    with suppress(Exception):  # a request will have the error
        for module, _ in TASKS.values():
            importlib.import_module(module)
    gc.freeze()  # an eighth of the time that lowering takes
    return serve(arguments, answer)


def answer(request: Request, tell: Tell) -> dict[str, Any]:
    """Nothing is timed while something is lowered, so that may run on every processor."""
    keep_off(request["build"] != "lower")
    module, name = TASKS[request["build"]]
    return {"built": getattr(importlib.import_module(module), name)(request["given"])}


class Builds:
    """A pool of build processes, each of one thread. limit_seconds: for one request; then its process is ended.

    counts: of each name the requests, and `crashes`, `hangs`, `errors`.
    """

    def __init__(self, builders: int, limit_seconds: float) -> None:
        self.counts = Counter[str]()
        self._limit = limit_seconds
        self._threads = ThreadPoolExecutor(builders)
        self._open = set[Future[Built | Failure]]()  # requests without a result yet
        self._lowered: dict[str, Built] = {}  # by request
        self._free: LifoQueue[Process] = LifoQueue()  # running processes come before those that must start
        self.processes = [Process(BUILDER, {}, variables(1)) for _ in range(builders)]
        for process in self.processes:
            self._free.put(process)

    def begin(self) -> None:
        """The first process starts, if it does not run, and nobody waits for it."""
        self.processes[-1].begin()

    def ask(self, name: str, given: Mapping[str, Any]) -> Future[Built | Failure]:
        """The result of a function of `TASKS` on plain JSON, once a process is free. A plan that is predicted and then
        measured is lowered once."""
        request = self._threads.submit(self._known if name == "lower" else self._built, name, given)
        self._open.add(request)
        request.add_done_callback(self._open.discard)
        return request

    @contextmanager
    def batch(self) -> Iterator[None]:
        """An error in the block, Ctrl-C among them, cancels open requests. Otherwise this process would build the rest
        before it ends."""
        try:
            yield
        except BaseException:
            for request in [*self._open]:
                request.cancel()
            for process in self.processes:
                process.give_up()
            raise

    def end(self) -> None:
        """Requests that were not begun are dropped; the processes end."""
        self._threads.shutdown(cancel_futures=True)
        for process in self.processes:
            process.end()

    def _known(self, name: str, given: Mapping[str, Any]) -> Built | Failure:
        key = json.dumps(given, sort_keys=True)
        known = self._lowered.get(key)
        if known is not None and Path(known.get("source", "")).is_file():
            return known
        built = self._built(name, given)
        if not isinstance(built, Failure):
            self._lowered[key] = built
        return built

    def _built(self, name: str, given: Mapping[str, Any]) -> Built | Failure:
        self.counts[name] += 1
        process = self._free.get()
        try:
            answer = process.ask({"build": name, "given": dict(given)}, self._limit)
        except ProcessEnd:
            return self._failed("crashes", f"{name} ends the process that does it, perhaps out of memory")
        except AnswerTimeout:
            return self._failed("hangs", f"{name} takes more than {self._limit:g} s")
        finally:
            self._free.put(process)
        if isinstance(answer.get("built"), dict):
            built: Built = answer["built"]
            return built
        reason = f"{name}: {answer.get('error', 'no answer')}"
        return self._failed("errors", reason, lasting=bool(answer.get("lasting")))

    def _failed(self, how: str, reason: str, *, lasting: bool = False) -> Failure:
        self.counts[how] += 1
        return Failure(reason, lasting)


_SHARED: "WeakValueDictionary[tuple[int, float], Builds]" = WeakValueDictionary()


def shared_builds(builders: int, limit_seconds: float) -> Builds:
    """One for all that ask for the same, while any of them holds it: a build process takes seconds to start."""
    found = _SHARED.get((builders, limit_seconds)) or Builds(builders, limit_seconds)
    _SHARED[builders, limit_seconds] = found
    return found


@dataclass(frozen=True, slots=True)
class Evaluation:
    """lowered: the answer of lowering, which holds `digest`; None where it failed."""

    lowered: Built | None
    measured: Measured


@dataclass(frozen=True)
class BuildPipeline:
    """target_of: makes the timed target of a lowered program. Its digest is that of the generated code, so requests
    that lead to the same code are compiled and timed once."""

    builds: Builds
    service: Service
    target_of: Callable[[Built], Target]

    def lower(self, requests: Sequence[Mapping[str, Any]]) -> list[Built | Failure]:
        """All of them, in their order."""
        with self.builds.batch():
            return [lowering.result() for lowering in [self.builds.ask("lower", request) for request in requests]]

    def evaluate(self, default: Target, requests: Sequence[Mapping[str, Any]]) -> list[Evaluation]:
        """One for each request, against a default that is compiled. Known times are neither compiled nor measured."""
        lowered = self.lower(requests)
        distinct = {built["digest"]: built for built in lowered if not isinstance(built, Failure)}
        targets = {digest: self.target_of(built) for digest, built in distinct.items()}
        measured = dict[str, Measured]()
        for digest, target in targets.items():
            if (known := self.service.known(default, target)) is not None:
                measured[digest] = known
        with self.builds.batch():
            compiling = {self.builds.ask("compile", distinct[digest]): target
                         for digest, target in targets.items() if digest not in measured}  # fmt: skip
            measured |= self._timed(default, compiling)
        return [Evaluation(None, one) if isinstance(one, Failure) else Evaluation(one, measured[one["digest"]])
                for one in lowered]  # fmt: skip

    def _timed(self, default: Target, compiling: dict[Future[Built | Failure], Target]) -> dict[str, Measured]:
        """By digest. Times programs while others are being compiled; a race in fresh processes waits for all."""
        found = dict[str, Measured]()
        while compiling:
            done, _ = wait(compiling, return_when=ALL_COMPLETED if self.service.processes else FIRST_COMPLETED)
            ready = list[Target]()
            for future in done:
                compiled, target = future.result(), compiling.pop(future)
                if isinstance(compiled, Failure):
                    found[target.digest] = self.service.refuse(default, target, compiled)
                else:
                    ready.append(target)
            if ready:
                timed = self.service.compare(default, ready)
                found |= {target.digest: one for target, one in zip(ready, timed, strict=True)}
        return found
