"""Two workers of a Ray cluster on this machine, behind the same service."""

from pathlib import Path

import pytest
from quick import turns
from test_compare import DEFAULT, spin

from graphopt.core.errors import ConfigError
from graphopt.hardware.measure import pool
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Failure, Timing


def test_without_ray_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"measuring\.pool=ray needs Ray, which is not installed; pip install"):
        Service(turns(pool="ray"), table=tmp_path / "t", environment=None, name="strange")


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
