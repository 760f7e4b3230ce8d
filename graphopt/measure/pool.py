"""`Pool`: who asks measuring processes. `LocalPool` has one here; `ray_pool.RayPool` has several, on any machine."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graphopt.errors import UserError
from graphopt.measure.environment import variables
from graphopt.measure.process import TRIES, Ended, Late, Process
from graphopt.measure.subject import Device

WORKER = "graphopt.measure.timing_worker"
MOST_GIVEN_UP = 5  # requests in a row that ended the process: then it is not the subjects


@dataclass(frozen=True, slots=True)
class Lost:
    """A request without an answer. at: the subject that was being made ready, None in the rounds; reason: what happened
    to the process, as it follows `X cannot be measured`."""

    at: int | None
    reason: str


Answer = dict[str, Any] | Lost


class Pool(Protocol):
    """width: requests that are answered at once. counts: what happened: `requests`, `crashes`, `hangs`, `starts`."""

    width: int
    counts: Counter[str]

    def ask(self, requests: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[Answer]:
        """Answers, in the order of the requests, each within its seconds, which count anew from subject to subject.
        Raises UserError where nothing can be measured."""

    def end(self) -> None:
        """Its processes end; another request begins new ones."""


class LocalPool:
    """One process that stays, pinned, with a steady allocator. What ends it is tried a second time. place: among
    several on one machine; module: what is run, None: `WORKER`."""

    width = 1

    def __init__(self, device: Device, threads: int, place: int = 0, module: str | None = None) -> None:
        setting = {"device": device, "threads": threads, "place": place}
        self.process = Process(module or WORKER, setting, variables(threads))
        self.counts = Counter[str]()
        self._given_up = 0  # requests in a row that ended the process

    def ask(self, requests: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[Answer]:
        return [self._asked(request, limit) for request, limit in zip(requests, seconds, strict=True)]

    def end(self) -> None:
        self.process.end()

    def _asked(self, request: dict[str, Any], limit: float) -> Answer:
        self.counts["requests"] += 1
        at = None
        for _ in range(TRIES):
            try:
                answer = self.process.ask(request, limit)
            except Ended as lost:
                at = lost.at
                self.counts["crashes"] += 1
            except Late as lost:
                self.counts["hangs"] += 1
                return Lost(lost.at, f" in measuring.limit_seconds={limit:g}; raise it, or give smaller models")
            else:
                self._given_up = 0
                if answer.get("fatal"):
                    raise UserError(answer["error"])
                return answer
            finally:
                self.counts["starts"] = self.process.starts
        return self._gave_up(at)

    def _gave_up(self, at: int | None) -> Lost:
        self._given_up += 1
        if self._given_up >= MOST_GIVEN_UP:
            raise UserError(f"the process that measures ended with each of {self._given_up} requests in a row; "
                            "is there too little memory?")  # fmt: skip
        return Lost(at, ": it ends the process that runs it, perhaps out of memory; give smaller models")
