"""Targets of measurements, and their results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from graphopt.core.compiler import Device
from graphopt.core.utils.marks import Between, Few, NotNegative, Own, Positive, Workers


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be run. kind: a key of `timing_worker.KINDS`; payload: the arguments of that kind's file, as
    JSON; digest: equal for what runs equally, so that it is measured once."""

    kind: str
    digest: str
    payload: Mapping[str, Any]

    def request(self) -> dict[str, Any]:
        """As a request holds it."""
        return {"kind": self.kind, "digest": self.digest, "payload": dict(self.payload)}


@dataclass(frozen=True, slots=True)
class Timing:
    """A target against its default, in interleaved rounds.

    ratio: median over rounds of its time over the default's in the same round. seconds: ratio x the default's first
    measured seconds. noise: relative standard error of the ratio, at least the deviation of `aa`. aa: the ratio of the
    default's copy, which would be 1 without noise. equal: whether it gives the default's bits, if this was asked.
    """

    seconds: float
    ratio: float
    noise: float
    rounds: int
    aa: float
    equal: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a target has no time. lasting: it will not have one next time either (it does not compile, say)."""

    reason: str
    lasting: bool = False


Measured = Timing | Failure


@dataclass(frozen=True, slots=True)
class Ratio:
    """Over processes: the median, and the extremes, of each one's median ratio."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How a target is measured alone: the median of blocks of runs. A block lasts `block_seconds` or is one run; after
    `blocks` of them, more follow until their relative interquartile range is at most `spread`, or they have taken
    `op_seconds`.

    threads: of the library, on a CPU. limit_seconds: for one target to be answered; then its process is ended.
    """

    device: Device
    threads: Workers
    block_seconds: Positive
    blocks: Few
    spread: NotNegative
    op_seconds: Positive
    limit_seconds: Positive


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """How targets are measured against their default: in rounds, in each of which every target and a copy of the
    default runs a block of `block_seconds`, or once. After `rounds` of them, more follow until the relative standard
    error of every ratio is at most `noise`, or the rounds have taken `seconds` per target.

    limit_seconds: for one target to become ready, and on top of `seconds` for the rounds. pool: local, one process
    here; ray: `workers` of them in a Ray cluster, the one at `address`, or one that is begun here.
    """

    device: Device
    threads: Annotated[int, Between(1, 256)]
    block_seconds: Positive
    rounds: Few
    noise: NotNegative
    seconds: Positive
    limit_seconds: Positive
    pool: Annotated[Literal["local", "ray"], Own(instead="local")]
    workers: Annotated[int, Between(1, 512)]
    address: Annotated[str | None, Own()]
