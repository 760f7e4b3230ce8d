"""`Service`: measured prices of targets, alone or against a default, remembered on disk; and races.

A race runs a default and others by turns in several fresh processes, for what is to be reported. What a process does to
one target (memory, caches, neighbours) it does to all. Processes differ by more than the rounds within one; a race's
interval shows this.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import Unmeasured, UserError
from graphopt.measure.environment import KEEPS_MEMORY, environment_here
from graphopt.measure.pool import Answer, LocalPool, Lost, Pool
from graphopt.measure.price_table import Line, PriceTable
from graphopt.measure.rounds import Rounds, raced, rounds_in, timings_of, timings_of_race
from graphopt.measure.target import Comparing, Failure, Measured, Measuring, Raced, Target, Timing
from graphopt.utils.channel import is_measurement


def race(default: Target, others: Sequence[Target], how: Comparing, processes: int = 3) -> list[Raced | Failure]:
    """One for each of the others, each against the default in processes of its own, so that one that fails takes no
    other along; nothing is remembered. Raises Unmeasured where the default fails."""
    taken = [fresh_rounds(default, [other], how, processes) for other in others]
    return [one if isinstance(one, Failure) else raced(one)[0] for one in taken]


def fresh_rounds(default: Target, others: Sequence[Target], how: Comparing, processes: int) -> Rounds | Failure:
    """What so many processes measure, one after another, or why one of the others cannot be measured.

    Raises Unmeasured where the default cannot."""
    taken = Rounds()
    request = {"targets": [target.asked() for target in (default, *others)], "how": how.asked()}
    for _ in range(processes):
        pool = LocalPool(how.device, how.threads)
        (answer,) = pool.ask([request], [how.limit_seconds])
        pool.end()
        rounds = _answered(answer, default)
        if isinstance(rounds, Failure):
            return rounds
        taken.append(rounds)
    return taken


def _answered(answer: Answer, default: Target) -> NDArray[np.float64] | Failure:
    if isinstance(answer, Lost):
        if answer.at == 0:
            raise Unmeasured(f"{default.digest} cannot be measured{answer.reason}")
        return Failure(f"it cannot be measured{answer.reason}")
    if "error" in answer:
        raise Unmeasured(f"{default.digest} cannot be measured: {answer['error']}")
    if answer["errors"]:
        return Failure(*next(iter(answer["errors"].values())))
    return rounds_in(answer["rounds"])


MOST_TOGETHER = 8  # targets that run by turns beside their default: all of them are in memory at once


class Service:
    """table: the file of the memo. environment: None: this machine's, and what the table lacks is measured here; else
    only the table's lines of that environment count, and nothing is measured. libraries: beside torch, whose versions
    belong to the environment. name: of the cost model, for messages.

    processes: 0: a process that stays measures; else every comparison is a race in so many fresh processes, of which
    the median counts, and the noise is how they differ.

    A target that cannot be measured costs itself only; it is not tried again by this object. counts: `replayed` from
    the table, `measured`, `failed`; those of the processes are `pool.counts`.
    """

    def __init__(self, how: Measuring | Comparing, *, table: Path, environment: str | None, name: str,
                 libraries: tuple[str, ...] = (), processes: int = 0) -> None:  # fmt: skip
        self.how, self.name, self.processes, self.counts = how, name, processes, Counter[str]()
        self.measures = environment is None
        fresh = f", {processes} fresh processes" if processes else ""
        self.environment = environment or _environment(how, libraries) + fresh
        self.memo = PriceTable(table)
        self.pool = pool_of(how)
        self._failed: dict[tuple[str, str], Failure] = {}

    def alone(self, target: Target) -> Line:
        """The table's line of a target by itself: seconds, spread (relative), blocks.

        Raises Unmeasured where it cannot be measured, and UserError where nothing can, or where nothing may be and the
        table lacks it."""
        known = self.memo.find(target.digest, self.environment)
        if known is None:
            self._may_measure(target)
            with self.memo.turn():
                known = self.memo.find(target.digest, self.environment)  # by another process meanwhile
                if known is None:
                    known = {"op": target.digest, "environment": self.environment, **self._alone(target)}
                    self.memo.add(known)
                    self.counts["measured"] += 1
        return known

    def reference(self, default: Target) -> Timing:
        """The default's own: its seconds, by which the ratios of others become seconds, and how its copy differs."""
        self._missing(default, [default])
        return self._timing(default, default)

    def compare(self, default: Target, others: Sequence[Target]) -> list[Measured]:
        """One for each of the others, in their order. Raises Unmeasured where the default itself cannot be run."""
        self._missing(default, [default, *others])
        found = (self.known(default, other) for other in others)
        return [answer for answer in found if answer is not None]

    def known(self, default: Target, target: Target) -> Measured | None:
        """What is known without measuring."""
        failed = self._failed.get((default.digest, target.digest))
        return failed or (self._stored(default, target) if self._has(default, target) else None)

    def refuse(self, default: Target, target: Target, failure: Failure) -> Failure:
        """A target that was found out elsewhere not to run; remembered if that lasts."""
        with self.memo.turn():
            self._fail(default, target, failure)
        return failure

    def _missing(self, default: Target, wanted: Iterable[Target]) -> None:
        """Measures what is not known yet, each digest once."""
        itself = self._failed.get((default.digest, default.digest))
        if itself is not None:
            raise Unmeasured(itself.reason)
        if not (lacking := self._lacking(default, wanted)):
            return
        self._may_measure(lacking[-1])
        with self.memo.turn():
            lacking = [s for s in self._lacking(default, lacking) if s.digest != default.digest]  # by others meanwhile
            if isinstance(self.how, Comparing) and self.processes:
                self._race(default, lacking, self.how)
            else:
                self._measure(default, lacking)

    def _lacking(self, default: Target, wanted: Iterable[Target]) -> list[Target]:
        found = {s.digest: s for s in wanted}
        lacking = [s for s in found.values() if self.known(default, s) is None]
        self.counts["replayed"] += len(found) - len(lacking)
        return lacking

    def _measure(self, default: Target, others: list[Target]) -> None:
        """By as many requests as the pool answers at once; those that lose a target are made again without it."""
        size = min(MOST_TOGETHER, math.ceil(len(others) / self.pool.width) or 1)
        queue = [others[i : i + size] for i in range(0, len(others), size)] or [[]]
        while queue:
            requests = [{"targets": [s.asked() for s in (default, *batch)], "how": self.how.asked()} for batch in queue]
            answers = self.pool.ask(requests, [self.how.limit_seconds] * len(queue))
            queue = [left for batch, answer in zip(queue, answers, strict=True)
                     for left in self._settled(default, batch, answer)]  # fmt: skip

    def _settled(self, default: Target, batch: list[Target], answer: Answer) -> list[list[Target]]:
        """Keeps what an answer says; what is to be asked again."""
        if isinstance(answer, Lost):
            return self._without_lost(default, batch, answer)
        if "error" in answer:
            raise self._failing(default, _why(answer))
        errors = {int(at): why for at, why in answer["errors"].items()}
        for at, (reason, lasting) in errors.items():
            self._fail(default, batch[at - 1], Failure(reason, bool(lasting)))
        ran = [target for at, target in enumerate(batch, 1) if at not in errors]
        self._keep_all(default, ran, timings_of(rounds_in(answer["rounds"])))
        return []

    def _race(self, default: Target, others: list[Target], how: Comparing) -> None:
        """All in the same processes; where one fails, each in processes of its own."""
        queue = [others]
        while queue:
            batch = queue.pop()
            try:
                taken = fresh_rounds(default, batch, how, self.processes)
            except Unmeasured as error:
                self._failed[default.digest, default.digest] = Failure(str(error))
                raise
            if not isinstance(taken, Failure):
                self._keep_all(default, batch, timings_of_race(taken))
            elif len(batch) > 1:
                queue += [[other] for other in batch]
            else:
                self._fail(default, batch[0], taken)

    def _keep_all(self, default: Target, ran: list[Target], timings: list[Timing]) -> None:
        """timings: of the default, then of what ran."""
        if not self._has(default, default):
            self._keep(default, default, timings[0])
        seconds = self._timing(default, default).seconds
        for target, timing in zip(ran, timings[1:], strict=True):
            self._keep(default, target, replace(timing, seconds=timing.ratio * seconds))

    def _without_lost(self, default: Target, batch: list[Target], lost: Lost) -> list[list[Target]]:
        """Where the process ended or hung in the rounds of several, each is asked alone."""
        if lost.at == 0 or not batch:
            raise self._failing(default, lost.reason)
        if lost.at is None and len(batch) > 1:
            return [[target] for target in batch]
        gone = batch[(lost.at or 1) - 1]
        self._fail(default, gone, Failure(f"it cannot be measured{lost.reason}"))
        rest = [target for target in batch if target is not gone]
        return [rest] if rest or not self._has(default, default) else []

    def _failing(self, default: Target, why: str) -> Unmeasured:
        """A default that cannot be run: nothing has a price against it."""
        self._failed[default.digest, default.digest] = Failure(f"{default.digest} cannot be measured{why}")
        self.counts["failed"] += 1
        return Unmeasured(self._failed[default.digest, default.digest].reason)

    def _has(self, default: Target, target: Target) -> bool:
        return self.memo.find(target.digest, self.environment, default.digest) is not None

    def _keep(self, default: Target, target: Target, timing: Timing) -> None:
        self.counts["measured"] += 1
        self.memo.add(self._line(default, target) | asdict(timing))

    def _fail(self, default: Target, target: Target, failure: Failure) -> None:
        self.counts["failed"] += 1
        self._failed[default.digest, target.digest] = failure
        if failure.lasting:
            self.memo.add(self._line(default, target) | {"failure": failure.reason})

    def _line(self, default: Target, target: Target) -> dict[str, Any]:
        return {"digest": target.digest, "default": default.digest, "environment": self.environment}

    def _timing(self, default: Target, target: Target) -> Timing:
        found = self._stored(default, target)
        assert isinstance(found, Timing)
        return found

    def _stored(self, default: Target, target: Target) -> Measured:
        line = self.memo.find(target.digest, self.environment, default.digest)
        assert line is not None
        if "failure" in line:
            return Failure(line["failure"], lasting=True)
        return Timing(**{key: line[key] for key in ("seconds", "ratio", "noise", "rounds", "aa")})

    def _alone(self, target: Target) -> dict[str, Any]:
        key = ("", target.digest)
        if key not in self._failed:
            request = {"alone": True, "targets": [target.asked()], "how": self.how.asked()}
            (answer,) = self.pool.ask([request], [self.how.limit_seconds])
            if not isinstance(answer, Lost) and is_measurement(answer):
                return {k: answer[k] for k in ("seconds", "spread", "blocks") if k in answer}
            self._failed[key] = Failure(_why(answer))
            self.counts["failed"] += 1
        raise Unmeasured(f"{target.digest} cannot be measured{self._failed[key].reason}")

    def _may_measure(self, target: Target) -> None:
        if self.measures:
            return
        there = self.memo.environments()
        holds = f"it has those of {'; '.join(there)}" if there else "it is empty or missing"
        raise UserError(
            f"{self.memo.path} has no line of the {target.kind} {target.digest!r} in the environment "
            f"{self.environment!r}: {holds}. Run where the table lies, bring it there, or set {self.name}'s "
            "environment=null to measure here"
        )


def pool_of(how: Measuring | Comparing) -> Pool:
    """The processes that settings ask for."""
    if isinstance(how, Comparing) and how.pool == "ray":
        from graphopt.measure.pool import RayPool

        return RayPool(how.device, how.threads, how.workers, how.address)
    if isinstance(how, Comparing) and how.workers > 1:
        warnings.warn("measuring.workers counts with measuring.pool=ray only: one process measures", stacklevel=2)
    return LocalPool(how.device, how.threads)


def _environment(how: Measuring | Comparing, libraries: tuple[str, ...]) -> str:
    plain = environment_here(how.device, how.threads, libraries)
    return plain if isinstance(how, Measuring) else f"{plain}, {KEEPS_MEMORY}"


def _why(answer: Answer) -> str:
    if isinstance(answer, Lost):
        return answer.reason
    return (
        f": {answer['error']}" if isinstance(answer.get("error"), str) else f": {str(answer)[:200]} is no measurement"
    )
