"""Times of generated code by what a preset says of operations, reads, writes and loops."""

from dataclasses import replace

import pytest

from graphopt.costs.loops.preset import load, shipped
from graphopt.hardware.code_time import FUNCTION, PART_STORES, CodeTime
from graphopt.hardware.costs.calibrated import preset_named
from graphopt.hardware.inductor.probes import PLAIN, TERM
from graphopt.hardware.measure import environment

PRESET = load("epyc_zen5_avx512_torch213")
TIME = CodeTime.of_preset(PRESET)


@pytest.mark.parametrize(("flags", "maker", "preset"), [
    ("avx2 avx512f", "AMD", "epyc_zen5_avx512_torch213"), ("avx2 avx512f", "Intel(R)", "xeon_avx512_torch213"),
    ("avx2", "Intel(R)", "epyc_zen5_avx2_torch213"),
])  # fmt: skip
def test_what_is_shipped_is_for_the_processor(
    flags: str, maker: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_facts", lambda: (("model name", maker), ("flags", flags)))
    assert environment.processor() == (f"{maker}, AVX512" if "512" in flags else maker)
    assert preset_named("shipped") == load(preset) and sum(load(preset) == load(name) for name in shipped()) == 1


@pytest.mark.parametrize("name", shipped())
def test_every_probed_function_has_a_cost_of_its_own(name: str) -> None:
    known = CodeTime.of_preset(load(name)).nanoseconds
    assert known["v.lgamma"] > known["v.exp"] > 0 < known["s.calc_digamma"] and known["s.mod"] > 1
    assert {f"{kind}.{term}" for kind in "vs" for term in TERM if term != PLAIN} <= known.keys()


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
    assert TIME.of({"v.i0": 2.0, "s.i0": 1.0}) == pytest.approx(3 * FUNCTION * 1e-9)
    assert TIME.of({"bytes": 1e9, "trips": 1e9, "vectors": 1.0}) == 0.0
    work = {"v.simple": 100.0, "nests": 1.0}
    assert TIME.ratio(work | {"nests": 2.0}, work) == pytest.approx(1 + PRESET.result / (TIME.of(work) * 1e9))
