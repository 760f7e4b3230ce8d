"""`Pool`: who asks measuring processes. `LocalPool` has one here, `RayPool` has several, on any machine."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from graphopt.core.compiler import Device
from graphopt.core.errors import ConfigError, UserError
from graphopt.core.utils.process import TRIES, AnswerTimeout, Process, ProcessEnd
from graphopt.hardware.measure.environment import environment_here, variables

WORKER = "graphopt.hardware.measure.timing_worker"
READY_SECONDS = 60.0  # for an actor of Ray to find a processor and to start
MOST_GIVEN_UP = 5  # requests in a row that ended the process: then it is not the targets


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request without an answer. at: the target that was being made ready, None in the rounds; reason: the fate of
    the process, as it follows `X cannot be measured`."""

    at: int | None
    reason: str


Answer = dict[str, Any] | FailedRequest


class Pool(Protocol):
    """width: requests that are answered at once. counts: `requests`, `crashes`, `hangs`, `starts`."""

    width: int
    counts: Counter[str]

    def begin(self) -> None:
        """Its processes start, if they do not run, and nobody waits for them."""

    def ask(self, requests: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[Answer]:
        """Answers, in the order of the requests, each within its seconds, which count anew from target to target.
        Raises UserError where nothing can be measured."""

    def end(self) -> None:
        """Its processes end; another request begins new ones."""


class LocalPool:
    """One process that stays, pinned. A request that ends it is tried a second time. place: among several on one
    machine; module: the process's module, None: `WORKER`. kind: of targets, whose libraries it loads as it starts.
    layout: of memory, as of `Fork`. keeps_memory: as `variables` has it; else it allocates as a user's process does."""

    width = 1

    def __init__(self, device: Device, threads: int, place: int = 0, module: str | None = None, *,
                 kind: str | None = None, layout: int = 0, keeps_memory: bool = True) -> None:  # fmt: skip
        setting = {"device": device, "threads": threads, "place": place, "kind": kind, "layout": layout}
        self.process = Process(module or WORKER, setting, variables(threads, keeps_memory=keeps_memory))
        self.counts = Counter[str]()
        self._keeps, self._first = keeps_memory, None  # the default that it has run
        self._given_up = 0  # requests in a row that ended the process

    def begin(self) -> None:
        self.process.begin()

    def await_start(self) -> None:
        self.process.await_start()

    def ask(self, requests: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[Answer]:
        return [self._answer(request, limit) for request, limit in zip(requests, seconds, strict=True)]

    def end(self) -> None:
        self.process.end()

    def _answer(self, request: dict[str, Any], limit: float) -> Answer:
        self.counts["requests"] += 1
        at, first = None, request["targets"][0]
        if not self._keeps and self._first not in (None, first):
            self.process.end()  # forks inherit blocks that another program has freed
        self._first = first
        for _ in range(TRIES):
            try:
                answer = self.process.ask(request, limit)
            except ProcessEnd as lost:
                at = lost.at
                self.counts["crashes"] += 1
            except AnswerTimeout as lost:
                self.counts["hangs"] += 1
                return FailedRequest(
                    lost.at, f" in measuring.limit_seconds={limit:g}; raise it, or give smaller models"
                )
            else:
                self._given_up = 0
                if answer.get("fatal"):
                    raise UserError(answer["error"])
                return answer
            finally:
                self.counts["starts"] = self.process.starts
        self._given_up += 1
        if self._given_up >= MOST_GIVEN_UP:
            raise UserError(f"the process that measures ended with each of {self._given_up} requests in a row; "
                            "is there too little memory?")  # fmt: skip
        return FailedRequest(at, ": it ends the process that runs it, perhaps out of memory; give smaller models")


class RayPool:
    """Measuring processes in a Ray cluster, each on a processor of its own. workers: actors, each a `LocalPool`.
    address: of a running cluster; None begins one here that ends with this process. keeps_memory: as of `LocalPool`.

    Files that targets name must be there on every machine (a shared folder). Machines must be alike: prices are of
    the environment of the machine that asks. Raises UserError where they are not, or processors are missing."""

    def __init__(self, device: Device, threads: int, workers: int, address: str | None, *,
                 keeps_memory: bool = True) -> None:  # fmt: skip
        if find_spec("ray") is None:
            raise ConfigError("measuring.pool=ray needs Ray, which is not installed; pip install 'graphopt[ray]'")
        ray: Any = import_module("ray")
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        self.width, self.counts = workers, Counter[str]()
        self._ray, self._device, self._threads, self._keeps = ray, device, threads, keeps_memory
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < workers * threads:
            raise UserError(f"measuring.pool=ray: {workers} workers x {threads} threads, and the cluster has {there} "
                            "processors; give fewer measuring.workers")  # fmt: skip
        self._actors = [self._actor(place) for place in range(workers)]
        for actor in self._actors:
            self._check(actor)

    def begin(self) -> None:
        """They run."""

    def ask(self, requests: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[Answer]:
        """In turns of as many as there are actors; a machine that goes away loses the requests that it had."""
        found = list[Answer]()
        for start in range(0, len(requests), self.width):
            turn = list(zip(requests, seconds, strict=True))[start : start + self.width]
            asked = [self._actors[place].counted.remote(*one) for place, one in enumerate(turn)]
            most = [TRIES * limit * (len(request["targets"]) + 2) + READY_SECONDS for request, limit in turn]
            found += [self._answer(place, *answer) for place, answer in enumerate(zip(asked, most))]
        return found

    def end(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _actor(self, place: int) -> Any:
        remote: Any = self._ray.remote(CountedPool)
        return remote.options(num_cpus=self._threads).remote(
            self._device, self._threads, place, WORKER, keeps_memory=self._keeps
        )

    def _check(self, actor: Any) -> None:
        errors = self._ray.exceptions
        try:
            there = self._ray.get(actor.environment.remote(self._device, self._threads), timeout=READY_SECONDS)
        except (errors.GetTimeoutError, errors.RayActorError) as error:
            raise UserError(f"measuring.pool=ray: no worker starts in {READY_SECONDS:g} s ({type(error).__name__}); "
                            "give fewer measuring.workers, or wait until processors are free") from None  # fmt: skip
        if there != (here := environment_here(self._device, self._threads)):
            raise UserError(f"measuring.pool=ray: a worker is on {there}, and this machine is {here}; prices of "
                            "different machines are not compared, so ask from a machine of that kind")  # fmt: skip

    def _answer(self, place: int, asked: Any, most: float) -> Answer:
        errors = self._ray.exceptions
        try:
            answer, counts = self._ray.get(asked, timeout=most)
        except (errors.GetTimeoutError, errors.RayActorError) as error:
            self.counts["crashes"] += 1
            self._ray.kill(self._actors[place])
            self._actors[place] = self._actor(place)
            self._check(self._actors[place])
            return FailedRequest(None, f": the machine that ran it is gone ({type(error).__name__})")
        self.counts.update(counts)
        found: Answer = answer
        return found


class CountedPool(LocalPool):
    """The pool of an actor: answers together with counts."""

    def environment(self, device: Device, threads: int) -> str:
        return environment_here(device, threads)

    def counted(self, request: dict[str, Any], seconds: float) -> tuple[Answer, dict[str, int]]:
        self.counts.clear()
        (answer,) = self.ask([request], [seconds])
        return answer, dict(self.counts)
