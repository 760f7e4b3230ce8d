"""Targets against a default by turns: their prices, and that a crash, a hang or a refusal costs one of them."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import turns

from graphopt.core.errors import ConfigError, Unmeasured, UserError
from graphopt.hardware.measure import pool
from graphopt.hardware.measure.pool import LocalPool
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.hardware.measure.rounds import timings_of, timings_of_race
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Failure, Target, Timing


def spin(work: int, does: str = "", **more: Any) -> Target:
    """work: of a run; equal work and doing are equal code."""
    return Target("strange", f"spin {work} {does}", {"spin": work, "does": does, **more})


def service(tmp_path: Path, environment: str | None = None, processes: int = 0, **changed: Any) -> Service:
    table = tmp_path / "t" / "programs.jsonl"
    return Service(turns(**changed), table=table, environment=environment, name="strange", processes=processes)


DEFAULT = spin(500)


def test_a_price_is_the_ratio_times_the_seconds_of_the_default(tmp_path: Path, log: Path) -> None:
    measures = service(tmp_path, rounds=9, noise=0.02, block_seconds=0.003)
    half, twice, same = measures.compare(DEFAULT, [spin(250), spin(1000), DEFAULT])
    assert isinstance(half, Timing) and isinstance(twice, Timing)
    assert 0.3 < half.ratio < 0.75 and 1.4 < twice.ratio < 2.8
    default = measures.reference(DEFAULT)
    assert same == default and default.ratio == 1.0
    assert half.seconds == pytest.approx(half.ratio * default.seconds)
    assert half.noise >= abs(half.aa - 1.0) and half.rounds >= 3
    assert measures.counts["measured"] == 3 and measures.pool.counts["starts"] == 1


def test_what_was_measured_is_known_everywhere(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measures = service(tmp_path)
    found = measures.compare(DEFAULT, [spin(100), spin(200), spin(100)])
    assert found[0] == found[2] and log.read_text().count("\n") == 5  # once before all forks; default, copy, two others
    monkeypatch.setattr(LocalPool, "ask", lambda *_: pytest.fail("something is measured"))
    again = service(tmp_path, measures.environment)
    assert again.compare(DEFAULT, [spin(100), spin(200)]) == found[:2]
    assert again.counts == {"replayed": 3}
    with pytest.raises(UserError, match=r"no line of the strange 'spin 300 '.*environment=null to measure here"):
        again.compare(DEFAULT, [spin(300)])
    with pytest.raises(UserError, match="no line of the strange"):  # another default is another price
        again.compare(spin(100), [DEFAULT])


@pytest.mark.parametrize("when", ["load", "run"])
def test_a_crash_or_a_hang_costs_one_subject(tmp_path: Path, log: Path, when: str) -> None:
    measures = service(tmp_path)
    good, bad, also = measures.compare(DEFAULT, [spin(100), spin(200, f"crash at {when}"), spin(300)])
    assert isinstance(good, Timing) and isinstance(also, Timing)
    assert isinstance(bad, Failure) and "it ends the process" in bad.reason and not bad.lasting
    assert measures.counts["failed"] == 1 and measures.pool.counts["crashes"] >= 2
    crashes = measures.pool.counts["crashes"]
    assert measures.compare(DEFAULT, [bad_one := spin(200, f"crash at {when}")]) == [bad]
    assert measures.pool.counts["crashes"] == crashes  # not tried again
    assert PriceTable(measures.table.path).find(bad_one.digest, measures.environment, DEFAULT.digest) is None
    impatient = service(tmp_path, limit_seconds=1.0)
    good, bad = impatient.compare(DEFAULT, [spin(150), spin(200, f"hang at {when}")])
    assert isinstance(good, Timing)
    assert isinstance(bad, Failure) and "measuring.limit_seconds=1" in bad.reason
    assert impatient.counts["failed"] == 1 and impatient.pool.counts["hangs"] >= 1


def test_what_does_not_compile_is_remembered_and_want_of_memory_is_not(tmp_path: Path, log: Path) -> None:
    measures = service(tmp_path)
    refused, short = spin(100, "fail at load"), spin(100, "no memory at load")
    found = measures.compare(DEFAULT, [refused, short, spin(200)])
    assert found[:2] == [Failure("it does not compile", lasting=True), Failure("cannot allocate")]
    assert isinstance(found[2], Timing) and measures.counts["failed"] == 2
    again = service(tmp_path, measures.environment)
    assert again.compare(DEFAULT, [refused]) == found[:1]
    with pytest.raises(UserError, match="no line of"):
        again.compare(DEFAULT, [short])


def test_what_is_killed_once_is_not_to_blame(tmp_path: Path, log: Path) -> None:
    measures = service(tmp_path)
    (found,) = measures.compare(DEFAULT, [spin(100, "killed once at run", flag=str(tmp_path / "flag"))])
    assert isinstance(found, Timing) and measures.counts["failed"] == 0
    assert measures.pool.counts["crashes"] == 1 and measures.pool.counts["starts"] == 2


def test_a_default_that_cannot_be_run_is_an_error_and_not_run_again(tmp_path: Path, log: Path) -> None:
    measures = service(tmp_path)
    for does, why in (("fail at load", "it does not compile"), ("crash at load", "it ends the process")):
        for _ in range(2):
            with pytest.raises(Unmeasured, match=f"spin 500 {does} cannot be measured: {why}"):
                measures.compare(spin(500, does), [spin(100)])
    assert measures.counts["failed"] == 2 and measures.pool.counts["crashes"] == 2
    assert isinstance(measures.compare(DEFAULT, [spin(100)])[0], Timing)


def test_a_full_disk_ends_the_run_with_one_sentence_and_loses_nothing(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures = service(tmp_path)
    (first,) = measures.compare(DEFAULT, [spin(100)])
    size = measures.table.path.stat().st_size
    open_as = Path.open

    def full(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if path == measures.table.path and mode == "a" and size_of(path) > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_as(path, mode, *rest, **more)

    def size_of(path: Path) -> int:
        return path.stat().st_size + (1 if measures.pool.counts["requests"] > 1 else 0)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match=r"cannot write .*programs.jsonl: No space left on device; make room"):
        measures.compare(DEFAULT, [spin(200)])
    monkeypatch.undo()
    assert measures.table.path.stat().st_size == size
    again = service(tmp_path, measures.environment)
    assert again.compare(DEFAULT, [spin(100)]) == [first]


def test_noise_is_never_below_what_the_copy_shows_and_processes_differ_by_more_than_their_rounds() -> None:
    """By hand: the copy takes 1.1 of the default in every round, another one half, but for one round; three processes
    whose rounds agree, and whose ratios are 0.8, 0.9 and 1.0."""
    default, other = timings_of(np.array([[1.0, 1.1, 0.5]] * 8 + [[2.0, 2.2, 3.0]]))
    assert (default.ratio, other.ratio, other.rounds, other.seconds) == (1.0, 0.5, 9, 0.5)
    assert other.aa == pytest.approx(1.1) and other.noise == pytest.approx(0.1)
    _, other = timings_of_race([np.array([[1.0, 1.0, ratio]] * 4) for ratio in (0.8, 0.9, 1.0)])
    assert other.ratio == 0.9 and other.rounds == 12
    assert other.noise == pytest.approx(1.253 * 0.1 / 3**0.5 / 0.9)


def test_noise_is_the_standard_error_of_the_median_ratio() -> None:
    rng = np.random.default_rng(0)
    said, found = [], []
    for _ in range(2000):
        default = rng.uniform(1.0, 2.0, 15)
        ratio = 0.8 * (1 + rng.normal(0, 0.03, 15))
        rounds = np.stack([default, default, default * ratio], 1)
        (_, other) = timings_of(rounds)
        said.append(other.noise)
        found.append(other.ratio)
    assert np.mean(said) == pytest.approx(np.std(found) / 0.8, rel=0.1)


def test_a_price_by_fresh_processes_is_remembered_beside_that_of_one_that_stays(tmp_path: Path, log: Path) -> None:
    staying, fresh = service(tmp_path), service(tmp_path, processes=2)
    staying.compare(DEFAULT, [spin(1000)])
    begun = len(log.read_text().splitlines())
    slow, refused = fresh.compare(DEFAULT, [spin(1000), spin(500, "fail at load")])
    assert isinstance(slow, Timing) and slow.ratio > 1.3 and slow.rounds >= 10
    assert refused == Failure("it does not compile", lasting=True)
    lines = [line.split()[0] for line in log.read_text().splitlines()[begun:]]
    assert len(set(lines)) == 4  # one with both, which fails; two of the one that runs, one of the other
    assert fresh.environment.endswith(", the user's malloc, a process each, 2 fresh processes of different layouts")
    keeps = Service(turns(), table=tmp_path / "t", environment=None, name="keeps", processes=2, keeps_memory=True)
    assert keeps.environment.endswith(", malloc keeps memory, 2 fresh processes of different layouts")
    assert fresh.compare(DEFAULT, [spin(1000)]) == [slow] and len(log.read_text().splitlines()) == begun + len(lines)


@pytest.mark.parametrize("processes", [0, 2])
def test_what_gives_other_bits_is_told(tmp_path: Path, log: Path, processes: int) -> None:
    default, others = spin(500, bits="a"), [spin(100, bits="a"), spin(200, bits="b"), spin(300, "fail at load")]
    measures = service(tmp_path, processes=processes)
    same, other, _ = measures.compare(default, others)
    assert isinstance(same, Timing) and isinstance(other, Timing) and same.equal and not other.equal
    known = service(tmp_path, measures.environment, processes).compare(default, others[:2])
    assert known == [same, other]


def test_a_default_that_gives_other_bits_each_time_says_nothing_about_others(tmp_path: Path, log: Path) -> None:
    (other,) = service(tmp_path).compare(spin(500, bits="process"), [spin(100, bits="b")])
    assert isinstance(other, Timing) and other.equal


# --- Two workers of a Ray cluster on this machine, behind the same service.


def test_without_ray_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"measuring\.pool=ray needs Ray, which is not installed; pip install"):
        Service(turns(pool="ray"), table=tmp_path / "t", environment=None, name="strange")


@pytest.mark.slow
def test_two_workers_answer_as_one_does(tmp_path: Path, log: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install -e '.[ray]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    how = turns(pool="ray", workers=2)
    try:
        measures = Service(how, table=tmp_path / "t.jsonl", environment=None, name="strange")
        targets = [spin(100), spin(1000), spin(200, "crash at load"), spin(100, "fail at load")]
        fast, slow, crash, refused = measures.compare(DEFAULT, targets)
        assert isinstance(fast, Timing) and isinstance(slow, Timing) and fast.ratio < 0.6 < 1.4 < slow.ratio
        assert isinstance(crash, Failure) and "it ends the process" in crash.reason
        assert refused == Failure("it does not compile", lasting=True)
        assert measures.pool.width == 2 and measures.pool.counts["crashes"] == 2
        assert len({line.split()[0] for line in log.read_text().splitlines()}) >= 3  # both, and one begun again
        measures.pool.end()
    finally:
        ray.shutdown()
