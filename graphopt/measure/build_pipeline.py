"""From requests to times: a batch flows lower -> one of each digest -> filter -> compile -> timer.

Lowering and compiling go on in build processes while subjects that are ready are timed.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from graphopt.measure.builds import Builds, Built
from graphopt.measure.service import Service
from graphopt.measure.subject import Failure, Measured, Subject

Keep = Callable[[Sequence[Built]], Sequence[bool]]
"""Which of what was lowered is worth compiling, by its features."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A filter left it out before it was compiled."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """lowered: what lowering said, which holds `digest`; None where it failed."""

    lowered: Built | None
    measured: Measured | Skipped


@dataclass(frozen=True)
class BuildPipeline:
    """subject_of: what is timed, of what was lowered; its digest is that of the generated code, so that requests that
    lead to the same code are compiled and timed once."""

    builds: Builds
    service: Service
    subject_of: Callable[[Built], Subject]
    keep: Keep | None = None

    def lower(self, requests: Sequence[Mapping[str, Any]]) -> list[Built | Failure]:
        """All of them, in their order."""
        with self.builds.batch():
            return [lowering.result() for lowering in [self.builds.ask("lower", request) for request in requests]]

    def evaluate(self, default: Subject, requests: Sequence[Mapping[str, Any]]) -> list[Evaluated]:
        """One for each request, against a default that is compiled."""
        lowered = self.lower(requests)
        distinct = {built["digest"]: built for built in lowered if not isinstance(built, Failure)}
        measured = self._measured(default, distinct)
        return [Evaluated(None, one) if isinstance(one, Failure) else Evaluated(one, measured[one["digest"]])
                for one in lowered]  # fmt: skip

    def _measured(self, default: Subject, distinct: Mapping[str, Built]) -> dict[str, Measured | Skipped]:
        """By digest. What is known is neither filtered nor compiled."""
        subjects = {digest: self.subject_of(built) for digest, built in distinct.items()}
        known = {digest: self.service.known(default, subject) for digest, subject in subjects.items()}
        fresh = [digest for digest, answer in known.items() if answer is None]
        kept = self.keep([distinct[digest] for digest in fresh]) if self.keep and fresh else [True] * len(fresh)
        found: dict[str, Measured | Skipped] = {d: answer for d, answer in known.items() if answer is not None}
        found |= {digest: Skipped() for digest, worth in zip(fresh, kept, strict=True) if not worth}
        with self.builds.batch():
            compiling = {self.builds.ask("compile", distinct[digest]): subjects[digest]
                         for digest, worth in zip(fresh, kept, strict=True) if worth}  # fmt: skip
            return found | self._timed(default, compiling)

    def _timed(self, default: Subject, compiling: dict[Future[Built | Failure], Subject]) -> dict[str, Measured]:
        """Times whatever is compiled while the rest is being compiled."""
        found = dict[str, Measured]()
        while compiling:
            done, _ = wait(compiling, return_when=FIRST_COMPLETED)
            compiled = [(future.result(), compiling.pop(future)) for future in done]
            for answer, subject in compiled:
                if isinstance(answer, Failure):
                    found[subject.digest] = self.service.refuse(default, subject, answer)
            ready = [subject for answer, subject in compiled if not isinstance(answer, Failure)]
            found |= (
                {s.digest: m for s, m in zip(ready, self.service.compare(default, ready), strict=True)} if ready else {}
            )
        return found
