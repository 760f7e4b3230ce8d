"""The build processes, and batches that flow through them to the timer."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from quick import turns

from graphopt.hardware.measure.builds import BuildPipeline, Builds, Built, Evaluation
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Failure, Target, Timing


def test_a_crash_a_hang_or_an_error_costs_one_request(log: Path) -> None:
    builds = Builds(1, limit_seconds=3.0)
    given = [{"spin": 1}, *({"spin": 2, "does": does} for does in ("crash", "hang", "fail")), {"spin": 3}]
    asked = [builds.ask("lower", one) for one in given]
    good, crash, hang, fail, last = [one.result() for one in asked]
    assert isinstance(good, dict) and good["digest"] == "code 1" and isinstance(last, dict)
    assert isinstance(crash, Failure) and "ends the process" in crash.reason and not crash.lasting
    assert hang == Failure("lower takes more than 3 s")
    assert fail == Failure("lower: cannot be lowered", lasting=True)
    assert builds.counts == {"lower": 5, "crashes": 1, "hangs": 1, "errors": 1}
    builds.end()


def test_requests_go_on_in_several_processes_while_others_wait(log: Path) -> None:
    builds = Builds(2, limit_seconds=60.0)
    slow = builds.ask("lower", {"spin": 1, "does": "hang"})
    assert isinstance(builds.ask("lower", {"spin": 2}).result(), dict)
    assert isinstance(builds.ask("lower", {"spin": 3}).result(), dict)
    while "lower 1\n" not in log.read_text():
        time.sleep(0.01)
    assert not slow.done()
    for process in builds.processes:
        assert process.number is not None
        os.kill(process.number, signal.SIGKILL)
    assert isinstance(slow.result(), Failure)
    builds.end()


def ended(pids: list[int]) -> bool:
    """Within ten seconds."""
    for _ in range(1000):
        if not any(map(runs, pids)):
            return True
        time.sleep(0.01)
    return False


def test_a_compiler_that_hangs_ends_with_the_process_that_started_it(log: Path) -> None:
    builds = Builds(1, limit_seconds=3.0)
    assert isinstance(builds.ask("lower", {"spin": 1, "does": "compiler"}).result(), Failure)
    assert ended([int(log.read_text().split("started ")[1])])


def test_what_is_lowered_is_lowered_once_while_its_source_is_there(log: Path, tmp_path: Path) -> None:
    builds, source = Builds(1, limit_seconds=600.0), tmp_path / "source.py"
    asked = {"spin": 1, "source": str(source)}

    def lowered() -> int:
        assert isinstance(builds.ask("lower", dict(asked)).result(), dict)
        return log.read_text().count("lower 1\n")

    source.touch()
    assert (lowered(), lowered()) == (1, 1)
    source.unlink()
    assert lowered() == 2
    builds.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_compiler_ends_with_the_run_however_that_ends(log: Path, number: int) -> None:
    """The process that asked is killed while a compiler runs: nothing that it started, however deep, outlives it."""
    run = subprocess.Popen([sys.executable, "-c", RUN])
    while "started " not in (log.read_text() if log.exists() else ""):
        time.sleep(0.01)
        assert run.poll() is None
    compiler = int(log.read_text().split("started ")[1])
    group = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and of_group(int(pid), os.getpgid(compiler))]
    assert len(group) >= 3  # the worker, its compiler, the shell that waits
    run.send_signal(number)
    run.wait()
    assert ended(group)


RUN = """
from graphopt.hardware.measure import builds
builds.BUILDER = "strange"
builds.Builds(1, limit_seconds=600.0).ask("lower", {"spin": 1, "does": "compiler"}).result()
"""


def runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def of_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def test_an_error_gives_up_what_is_not_built(log: Path) -> None:
    builds, begun = Builds(1, limit_seconds=600.0), time.monotonic()
    with pytest.raises(OSError, match="disk full"), builds.batch():
        asked = [builds.ask("lower", {"spin": spin, "does": "hang" if spin else ""}) for spin in range(4)]
        assert isinstance(asked[0].result(), dict)
        while "lower 1\n" not in log.read_text():
            time.sleep(0.01)
        raise OSError("disk full")
    assert isinstance(asked[1].result(), Failure) and asked[2].cancelled() and asked[3].cancelled()
    assert time.monotonic() - begun < 120.0
    assert isinstance(builds.ask("lower", {"spin": 5}).result(), dict)  # in a process that is begun anew
    builds.end()


@pytest.fixture
def pipeline(tmp_path: Path, log: Path) -> Any:
    def make() -> BuildPipeline:
        service = Service(turns(), table=tmp_path / "t.jsonl", environment=None, name="strange")
        return BuildPipeline(Builds(1, 60.0), service, target_of)

    return make


def target_of(built: Built) -> Target:
    return Target("strange", str(built["digest"]), {"spin": built["spin"]})


DEFAULT = Target("strange", "code 500", {"spin": 500})


def test_equal_code_is_compiled_and_timed_once(pipeline: Any, log: Path) -> None:
    line = pipeline()
    found = line.evaluate(DEFAULT, [{"spin": n} for n in (100, 200, 100, 500)] + [{"spin": 9, "does": "fail"}])
    assert found[0] == found[2] and all(isinstance(one.measured, Timing) for one in found[:4])
    assert found[4] == Evaluation(None, Failure("lower: cannot be lowered", lasting=True))
    said = log.read_text().splitlines()
    assert (said.count("lower 100"), said.count("compile 100")) == (2, 1)
    again = pipeline().evaluate(DEFAULT, [{"spin": 200}, {"spin": 300}])
    assert again[0] == found[1] and isinstance(again[1].measured, Timing)
    assert log.read_text().splitlines().count("compile 200") == 1  # known without compiling


def test_what_does_not_compile_is_known_next_time(pipeline: Any, log: Path) -> None:
    first = pipeline()
    bad, good = first.evaluate(DEFAULT, [{"spin": 200, "compiles": False}, {"spin": 300}])
    assert bad.measured == Failure("compile: g++ refuses it", lasting=True) and isinstance(good.measured, Timing)
    assert first.service.counts["failed"] == 1
    (again,) = pipeline().evaluate(DEFAULT, [{"spin": 200, "compiles": False}])
    assert again.measured == bad.measured and log.read_text().splitlines().count("compile 200") == 1
