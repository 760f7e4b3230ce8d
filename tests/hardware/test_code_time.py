"""Times of generated code by what a preset says of operations, reads, writes and loops."""

from dataclasses import replace

import pytest

from graphopt.costs.loops.preset import load, shipped
from graphopt.hardware.code_time import FUNCTION, PART_STORES, CodeTime
from graphopt.hardware.costs.calibrated import preset_named
from graphopt.hardware.measure import environment

PRESET = load("epyc_zen5_avx512_torch213")
TIME = CodeTime.of_preset(PRESET)


@pytest.mark.parametrize(("flags", "processor"), [("avx2 avx512f", "Some, AVX512"), ("avx2", "Some")])
def test_what_is_shipped_is_for_vectors_as_wide_as_the_processors(
    flags: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_facts", lambda: (("model name", "Some"), ("flags", flags)))
    assert environment.processor() == processor
    assert (preset_named("shipped") == PRESET) == ("AVX512" in processor)
    assert all(preset_named(name) == load(name) for name in shipped())


def test_a_vector_costs_what_its_numbers_do_and_a_mispredicted_branch_costs_alike() -> None:
    ns = {name: TIME.of({name: 1.0}) * 1e9 for name in ("v.tanh", "s.tanh", "v.load", "v.mask_store", "v.missed_load")}
    assert ns == pytest.approx({
        "v.tanh": 16 * PRESET.vector["tanh"], "s.tanh": PRESET.scalar["tanh"], "v.load": 16 * PRESET.vector["read"],
        "v.mask_store": 16 * PRESET.vector["truth_write"], "v.missed_load": PRESET.vector["missed_read"],
    })  # fmt: skip
    assert TIME.of({"v.part_store": 1.0}) == pytest.approx(PART_STORES * PRESET.part * 1e-9)


def test_bytes_from_further_away_cost_more() -> None:
    near, middle, far = (TIME.of({f"bytes.{cache}": 1e6}) for cache in ("near", "middle", "far"))
    assert 0 < near < middle < far
    flat = CodeTime.of_preset(replace(PRESET, read=((131072.0, 0.5),), write=((65536.0, 0.1),)))
    assert flat.of({"bytes.far": 1.0}) == pytest.approx(0.3e-9) == flat.of({"bytes.near": 1.0})


def test_calls_that_no_probe_knows_cost_the_same_and_other_counts_nothing() -> None:
    assert TIME.of({"v.erfinv": 2.0, "s.erfinv": 1.0}) == pytest.approx(3 * FUNCTION * 1e-9)
    assert TIME.of({"bytes": 1e9, "trips": 1e9, "vectors": 1.0}) == 0.0
    work = {"v.simple": 100.0, "nests": 1.0}
    assert TIME.ratio(work | {"nests": 2.0}, work) == pytest.approx(1 + PRESET.result / (TIME.of(work) * 1e9))
