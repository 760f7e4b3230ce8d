"""`Builds`: a pool of processes that lower and compile. A crash or a hang costs one request."""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from graphopt.measure.environment import variables
from graphopt.measure.process import Ended, Late, Process
from graphopt.measure.subject import Failure

BUILDER = "graphopt.measure.build_worker"
Built = dict[str, Any]


class Builds:
    """builders: processes, each of one thread. limit_seconds: for one request; then its process is ended.

    counts: of each name the requests, and `crashes`, `hangs`, `errors`.
    """

    def __init__(self, builders: int, limit_seconds: float) -> None:
        self.counts = Counter[str]()
        self._limit = limit_seconds
        self._threads = ThreadPoolExecutor(builders)
        self._open = set[Future[Built | Failure]]()  # what was asked for and is not there yet
        self._free: SimpleQueue[Process] = SimpleQueue()
        self.processes = [Process(BUILDER, {}, variables(1)) for _ in range(builders)]
        for process in self.processes:
            self._free.put(process)

    def ask(self, name: str, given: Mapping[str, Any]) -> Future[Built | Failure]:
        """What a function of `build_worker.TASKS` makes of plain JSON, once a process is free."""
        asked = self._threads.submit(self._built, name, given)
        self._open.add(asked)
        asked.add_done_callback(self._open.discard)
        return asked

    @contextmanager
    def batch(self) -> Iterator[None]:
        """An error in the block, Ctrl-C among them, gives up whatever is not built yet: else this process would go on
        with it, unasked, before it ends."""
        try:
            yield
        except BaseException:
            for asked in [*self._open]:
                asked.cancel()
            for process in self.processes:
                process.give_up()
            raise

    def end(self) -> None:
        """What was not begun is not built; the processes end."""
        self._threads.shutdown(cancel_futures=True)
        for process in self.processes:
            process.end()

    def _built(self, name: str, given: Mapping[str, Any]) -> Built | Failure:
        process = self._free.get()
        try:
            return self._asked(process, name, given)
        finally:
            self._free.put(process)

    def _asked(self, process: Process, name: str, given: Mapping[str, Any]) -> Built | Failure:
        self.counts[name] += 1
        try:
            answer = process.ask({"build": name, "given": dict(given)}, self._limit)
        except Ended:
            return self._failed("crashes", f"{name} ends the process that does it, perhaps out of memory")
        except Late:
            return self._failed("hangs", f"{name} takes more than {self._limit:g} s")
        if isinstance(answer.get("built"), dict):
            built: Built = answer["built"]
            return built
        return self._failed(
            "errors", f"{name}: {answer.get('error', 'no answer')}", lasting=bool(answer.get("lasting"))
        )

    def _failed(self, how: str, reason: str, *, lasting: bool = False) -> Failure:
        self.counts[how] += 1
        return Failure(reason, lasting)
