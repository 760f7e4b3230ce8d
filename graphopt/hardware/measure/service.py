"""`Service`: measured prices of targets, alone or against a default, remembered on disk; and races.

A race runs a default and others by turns in several fresh processes, for a report. The state of a process (memory,
caches, neighbours) affects all targets. Processes differ by more than the rounds within one; a race's interval shows
this. In each of them blocks of memory lie otherwise (`timing_worker.Fork`).
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from graphopt.core.errors import ConfigError, Unmeasured, UserError
from graphopt.core.utils.plain_json import is_measurement
from graphopt.hardware.measure.environment import KEEPS_MEMORY, USERS_MALLOC, environment_here, has_gpu
from graphopt.hardware.measure.pool import Answer, FailedRequest, LocalPool, Pool, RayPool
from graphopt.hardware.measure.price_table import Line, PriceTable
from graphopt.hardware.measure.rounds import Rounds, rounds_in, timings_of, timings_of_race
from graphopt.hardware.measure.target import Comparing, Failure, Measured, Measuring, Target, Timing

FRESH = "fresh processes of different layouts"
MOST_READY = 4  # processes that start together: all are in memory at once
MOST_TOGETHER = 8  # targets that run by turns beside their default: all of them are in memory at once


def fresh_rounds(default: Target, others: Sequence[Target], how: Comparing, processes: int, *,
                 keeps_memory: bool = False) -> Rounds | Failure:  # fmt: skip
    """The rounds of so many processes, one after another, or why one of the others cannot be measured. They allocate as
    a user's process does, page faults counted, unless keeps_memory. Some start together, and none while one measures.

    Raises Unmeasured where the default cannot."""
    taken = Rounds()
    request = {"targets": [target.request() for target in (default, *others)], "how": asdict(how)}
    ready = list[LocalPool]()
    for left in range(processes, 0, -1):
        if not ready:
            ready = [LocalPool(how.device, how.threads, kind=default.kind, layout=i, keeps_memory=keeps_memory)
                     for i in range(left)[-MOST_READY:]]  # fmt: skip
            for step in (LocalPool.begin, LocalPool.await_start):
                for pool in ready:
                    step(pool)
        pool = ready.pop()
        (answer,) = pool.ask([request], [how.limit_seconds])
        pool.end()
        if isinstance(answer, FailedRequest):
            if answer.at == 0:
                raise Unmeasured(f"{default.digest} cannot be measured{answer.reason}")
            return Failure(f"it cannot be measured{answer.reason}")
        if "error" in answer:
            raise Unmeasured(f"{default.digest} cannot be measured: {answer['error']}")
        if answer["errors"]:
            return Failure(*next(iter(answer["errors"].values())))
        taken.append(rounds_in(answer["rounds"]))
        taken.unequal.update(answer["unequal"])
    return taken


class Service:
    """table: the file of the prices. environment: None: this machine's, and prices that the table lacks are measured
    here; else only the table's lines of that environment count, and nothing is measured. libraries: beside torch, whose
    versions belong to the environment. name: of the cost model, for messages. kind: of the targets, for a process that
    stays.

    processes: 0: a process that stays measures; else every comparison is a race in so many fresh processes, of which
    the median counts, and the noise is how they differ. keeps_memory: whether malloc keeps freed memory in measuring
    processes; None: in a process that stays, and else as a user's does.

    A failed measurement affects no other target; it is not tried again by this object. counts: `replayed` from
    the table, `measured`, `failed`; those of the processes are `pool.counts`.
    """

    def __init__(self, how: Measuring | Comparing, *, table: Path, environment: str | None, name: str,
                 libraries: tuple[str, ...] = (), kind: str | None = None, processes: int = 0,
                 keeps_memory: bool | None = None) -> None:  # fmt: skip
        self.how, self.name, self.processes, self.counts = how, name, processes, Counter[str]()
        self.measures = environment is None
        if how.device == "cuda" and self.measures and not has_gpu():
            raise ConfigError(f"cost={name} with measuring.device=cuda needs a GPU that torch can use, and there is "
                              "none here; set measuring.device=cpu")  # fmt: skip
        self.keeps_memory = not processes if keeps_memory is None else keeps_memory
        malloc = f", {KEEPS_MEMORY if self.keeps_memory else USERS_MALLOC}" if isinstance(how, Comparing) else ""
        fresh = f", {processes} {FRESH}" if processes else ""
        self.environment = environment or environment_here(how.device, how.threads, libraries) + malloc + fresh
        self.table = PriceTable(table)
        self.pool: Pool = LocalPool(how.device, how.threads, kind=kind, keeps_memory=self.keeps_memory)
        if isinstance(how, Comparing) and how.pool == "ray":
            keeps = self.keeps_memory
            self.pool = RayPool(how.device, how.threads, how.workers, how.address, keeps_memory=keeps)
        elif isinstance(how, Comparing) and how.workers > 1:
            warnings.warn("measuring.workers counts with measuring.pool=ray only: one process measures", stacklevel=2)
        self._failed: dict[tuple[str, str], Failure] = {}

    def alone(self, target: Target) -> Line:
        """The table's line of a target by itself: seconds, spread (relative), blocks.

        Raises Unmeasured where it cannot be measured, and UserError where nothing can, or where nothing may be and the
        table lacks it."""
        known = self.table.find(target.digest, self.environment)
        if known is None:
            self._may_measure(target)
            with self.table.turn():
                known = self.table.find(target.digest, self.environment)  # by another process meanwhile
                if known is None:
                    known = {"op": target.digest, "environment": self.environment, **self._measured_alone(target)}
                    self.table.add(known)
                    self.counts["measured"] += 1
        return known

    def _measured_alone(self, target: Target) -> dict[str, Any]:
        key = ("", target.digest)
        if key not in self._failed:
            request = {"alone": True, "targets": [target.request()], "how": asdict(self.how)}
            (answer,) = self.pool.ask([request], [self.how.limit_seconds])
            if not isinstance(answer, FailedRequest) and is_measurement(answer):
                return {k: answer[k] for k in ("seconds", "spread", "blocks") if k in answer}
            self._failed[key] = Failure(_reason(answer))
            self.counts["failed"] += 1
        raise Unmeasured(f"{target.digest} cannot be measured{self._failed[key].reason}")

    def reference(self, default: Target) -> Timing:
        """The default's own: its seconds, by which the ratios of others become seconds, and how its copy differs."""
        self._measure_missing(default, [default])
        found = self.known(default, default)
        assert isinstance(found, Timing)
        return found

    def compare(self, default: Target, others: Sequence[Target]) -> list[Measured]:
        """One for each of the others, in their order. Raises Unmeasured where the default itself cannot be run."""
        self._measure_missing(default, [default, *others])
        found = (self.known(default, other) for other in others)
        return [answer for answer in found if answer is not None]

    def known(self, default: Target, target: Target) -> Measured | None:
        """The result without measuring; None where there is none yet."""
        if failed := self._failed.get((default.digest, target.digest)):
            return failed
        line = self.table.find(target.digest, self.environment, default.digest)
        if line is None:
            return None
        if "failure" in line:
            return Failure(line["failure"], lasting=True)
        return Timing(**{field.name: line[field.name] for field in fields(Timing) if field.name in line})

    def refuse(self, default: Target, target: Target, failure: Failure) -> Failure:
        """A target that does not run, as found elsewhere; remembered if that lasts."""
        with self.table.turn():
            self._fail(default, target, failure)
        return failure

    def _measure_missing(self, default: Target, wanted: Iterable[Target]) -> None:
        """Each digest once."""
        if itself := self._failed.get((default.digest, default.digest)):
            raise Unmeasured(itself.reason)
        if not (lacking := self._lacking(default, wanted)):
            return
        self._may_measure(lacking[-1])
        with self.table.turn():
            lacking = [t for t in self._lacking(default, lacking) if t.digest != default.digest]  # by others meanwhile
            if isinstance(self.how, Comparing) and self.processes:
                self._race(default, lacking, self.how)
            else:
                self._measure(default, lacking)

    def _lacking(self, default: Target, wanted: Iterable[Target]) -> list[Target]:
        found = {t.digest: t for t in wanted}
        lacking = [t for t in found.values() if self.known(default, t) is None]
        self.counts["replayed"] += len(found) - len(lacking)
        return lacking

    def _measure(self, default: Target, others: list[Target]) -> None:
        """By as many requests as the pool answers at once. Requests that lose a target are made again without it."""
        size = min(MOST_TOGETHER, math.ceil(len(others) / self.pool.width) or 1)
        queue = [others[i : i + size] for i in range(0, len(others), size)] or [[]]
        while queue:
            requests = [
                {"targets": [t.request() for t in (default, *batch)], "how": asdict(self.how)} for batch in queue
            ]
            answers = self.pool.ask(requests, [self.how.limit_seconds] * len(queue))
            queue = [left for batch, answer in zip(queue, answers, strict=True)
                     for left in self._left(default, batch, answer)]  # fmt: skip

    def _left(self, default: Target, batch: list[Target], answer: Answer) -> list[list[Target]]:
        """Stores the times of an answer; the batches that are to be asked again. A default that cannot be run ends
        this: nothing has a price against it."""
        lost_default = answer.at == 0 or not batch if isinstance(answer, FailedRequest) else "error" in answer
        if lost_default:
            reason = f"{default.digest} cannot be measured{_reason(answer)}"
            self._failed[default.digest, default.digest] = Failure(reason)
            self.counts["failed"] += 1
            raise Unmeasured(reason)
        if isinstance(answer, dict):
            errors = {int(at): why for at, why in answer["errors"].items()}
            for at, (reason, lasting) in errors.items():
                self._fail(default, batch[at - 1], Failure(reason, bool(lasting)))
            ran = [target for at, target in enumerate(batch, 1) if at not in errors]
            unequal = {batch[at - 1].digest for at in answer["unequal"]}
            self._keep(default, ran, timings_of(rounds_in(answer["rounds"])), unequal)
            return []
        if answer.at is None and len(batch) > 1:  # the process ended or hung in the rounds of several
            return [[target] for target in batch]
        lost = batch[(answer.at or 1) - 1]
        self._fail(default, lost, Failure(f"it cannot be measured{answer.reason}"))
        rest = [target for target in batch if target is not lost]
        return [rest] if rest or self.known(default, default) is None else []

    def _race(self, default: Target, others: list[Target], how: Comparing) -> None:
        """All in the same processes; where one fails, each in processes of its own."""
        queue = [others]
        while queue:
            batch = queue.pop()
            try:
                taken = fresh_rounds(default, batch, how, self.processes, keeps_memory=self.keeps_memory)
            except Unmeasured as error:
                self._failed[default.digest, default.digest] = Failure(str(error))
                raise
            if not isinstance(taken, Failure):
                self._keep(default, batch, timings_of_race(taken), {batch[at - 1].digest for at in taken.unequal})
            elif len(batch) > 1:
                queue += [[other] for other in batch]
            else:
                self._fail(default, batch[0], taken)

    def _keep(self, default: Target, ran: list[Target], timings: list[Timing], unequal: set[str]) -> None:
        """timings: of the default, then of `ran`. Their seconds are by the first time of the default. unequal: digests
        of targets that give other bits than the default."""
        first = self.known(default, default)
        seconds = first.seconds if isinstance(first, Timing) else timings[0].seconds
        new = list(zip(ran, timings[1:], strict=True))
        for target, timing in new if first else [(default, timings[0]), *new]:
            timing = replace(timing, seconds=timing.ratio * seconds, equal=target.digest not in unequal)
            self.counts["measured"] += 1
            self.table.add(self._line(default, target) | asdict(timing))

    def _fail(self, default: Target, target: Target, failure: Failure) -> None:
        self.counts["failed"] += 1
        self._failed[default.digest, target.digest] = failure
        if failure.lasting:
            self.table.add(self._line(default, target) | {"failure": failure.reason})

    def _line(self, default: Target, target: Target) -> dict[str, Any]:
        return {"digest": target.digest, "default": default.digest, "environment": self.environment}

    def _may_measure(self, target: Target) -> None:
        if self.measures:
            return
        there = self.table.environments()
        holds = f"it has those of {'; '.join(there)}" if there else "it is empty or missing"
        raise UserError(
            f"{self.table.path} has no line of the {target.kind} {target.digest!r} in the environment "
            f"{self.environment!r}: {holds}. Run where the table lies, bring it there, or set {self.name}'s "
            "environment=null to measure here"
        )


def _reason(answer: Answer) -> str:
    if isinstance(answer, FailedRequest):
        return answer.reason
    error = answer.get("error")
    return f": {error}" if isinstance(error, str) else f": {str(answer)[:200]} is no measurement"
