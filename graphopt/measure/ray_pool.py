"""`RayPool`: measuring processes in a Ray cluster, several on each machine, each on a processor of its own.

Files that subjects name must be there on every machine (a shared folder), and machines must be alike: a memo's
environment is that of the machine that asks.
"""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from graphopt.errors import ConfigError
from graphopt.measure import pool
from graphopt.measure.pool import Answer, LocalPool, Lost
from graphopt.measure.subject import Device


class RayPool:
    """workers: actors, each a `LocalPool`. address: of a running cluster; None begins one here that ends with this
    process."""

    def __init__(self, device: Device, threads: int, workers: int, address: str | None) -> None:
        if find_spec("ray") is None:
            raise ConfigError("measuring.pool=ray needs Ray, which is not installed; pip install 'graphopt[ray]'")
        ray: Any = import_module("ray")
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        self.width, self.counts = workers, Counter[str]()
        self._ray, self._device, self._threads = ray, device, threads
        self._actors = [self._actor(place) for place in range(workers)]

    def ask(self, requests: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[Answer]:
        """In turns of as many as there are actors; a machine that goes away loses the requests that it had."""
        found = list[Answer]()
        for start in range(0, len(requests), self.width):
            turn = list(zip(requests, seconds, strict=True))[start : start + self.width]
            asked = [self._actors[place].counted.remote(*one) for place, one in enumerate(turn)]
            found += [self._answer(place, answer) for place, answer in enumerate(asked)]
        return found

    def end(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _actor(self, place: int) -> Any:
        remote: Any = self._ray.remote(CountedPool)
        return remote.options(num_cpus=self._threads).remote(self._device, self._threads, place, pool.WORKER)

    def _answer(self, place: int, asked: Any) -> Answer:
        try:
            answer, counts = self._ray.get(asked)
        except self._ray.exceptions.RayActorError as error:
            self.counts["crashes"] += 1
            self._actors[place] = self._actor(place)
            return Lost(None, f": the machine that ran it is gone ({type(error).__name__})")
        self.counts.update(counts)
        found: Answer = answer
        return found


class CountedPool(LocalPool):
    """What an actor is: answers together with what happened on the way."""

    def counted(self, request: dict[str, Any], seconds: float) -> tuple[Answer, dict[str, int]]:
        self.counts.clear()
        (answer,) = self.ask([request], [seconds])
        return answer, dict(self.counts)
