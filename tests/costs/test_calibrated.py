"""Loops of programs by hand: what is stored, what shares a nest, what it costs. No compiler runs here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphopt.core.errors import UserError
from graphopt.costs.loops import preset as presets
from graphopt.costs.loops.estimate import Estimate, LoopPlan, Rules
from graphopt.costs.loops.loop_bodies import Buffer, Hint, Index, LibraryCall, Loop, LoopProgram, Read
from graphopt.costs.loops.preset import Preset, derived, load, read, save, shipped
from graphopt.hardware.costs.calibrated import Calibrated, preset_named

ROWS, COLUMNS = 512, 64
SIZE = ROWS * COLUMNS
FLAT: Index = ("add", ("mul", ("number", COLUMNS), ("loop", 0)), ("loop", 1))
ROW: Index = ("loop", 0)
COLUMN: Index = ("loop", 1)
COMMAND = "graphopt measure calibrate"
TABLE = {"exp": 2.0, "mul": 0.5, "inner.sum": 0.25, "read": 0.0, "write": 0.0, "uneven": 0.0, "unknown": 1.0}
NEAR = ((1e12, 0.0),)
BARE = Preset(TABLE, {name: 8 * cost for name, cost in TABLE.items()}, NEAR, NEAR, 0.0, 0.0, 0.0, part=0.0, lanes=4)


def loop(buffer: int, op: str, work: str, *reads: Read, shape: tuple[int, ...] = (ROWS, COLUMNS), **of: Any) -> Loop:
    steps = {0: (), 1: (1,), 2: (COLUMNS, 1)}[len(shape)]
    return Loop(buffer, op, shape, of.get("reduced", ()), steps, reads, {work: 1.0})


def estimate(*steps: Loop | LibraryCall, kept: tuple[int, ...], small: dict[int, int] | None = None) -> Estimate:
    """Buffers are numbered; 0 is an input."""
    count = 1 + max(max([s.buffer] if isinstance(s, Loop) else s.makes) for s in steps)
    buffers = tuple(Buffer(f"b{i}", (small or {}).get(i, SIZE), 4, kept=i in kept) for i in range(count))
    hints = tuple(Hint(s.op, "made") for s in steps if isinstance(s, Loop) and s.op)
    return Estimate(LoopProgram(buffers, steps, hints))


def made(of: Estimate, asked: dict[str, bool] | None = None, cut: str = "") -> LoopPlan:
    return of.made(asked or {}, frozenset(cut), Rules())


def nanoseconds(of: Estimate, plan: LoopPlan, preset: Preset = BARE) -> float:
    return of.seconds(plan, preset) * 1e9


def chain() -> Estimate:
    """exp, then two products of which the last is kept."""
    return estimate(loop(1, "a", "exp", Read(0, FLAT)), loop(2, "b", "mul", Read(1, FLAT)),
                    loop(3, "", "mul", Read(2, FLAT)), kept=(3,))  # fmt: skip


def test_storing_ends_nothing_and_what_is_cut_is_a_nest_of_its_own() -> None:
    of = chain()
    for asked in ({}, {"b": True}, {"a": True, "b": True}):
        plan = made(of, asked)
        assert plan.stored == frozenset(asked) and len(plan.nests) == plan.kernels == 1
        assert nanoseconds(of, plan) == pytest.approx(SIZE * (2.0 + 0.5 + 0.5))
    apart = made(of, cut="a")
    assert apart.stored == {"a"} and [len(group.leaves) for group, _ in apart.nests] == [1, 1]


def test_two_results_share_a_nest_and_what_they_read() -> None:
    of = estimate(loop(1, "a", "exp", Read(0, FLAT)), loop(2, "", "mul", Read(1, FLAT)),
                  loop(3, "", "mul", Read(1, FLAT)), kept=(2, 3))  # fmt: skip
    for asked in ({}, {"a": True}):
        plan = made(of, asked)
        assert len(plan.nests) == 1 and nanoseconds(of, plan) == pytest.approx(SIZE * (2.0 + 0.5 + 0.5))


def test_what_has_fewer_elements_is_evaluated_for_each_of_its_readers() -> None:
    """A value per column is evaluated in every row; one per row is computed before the inner loop."""
    for index, length, times in ((COLUMN, COLUMNS, SIZE), (ROW, ROWS, ROWS)):
        of = estimate(loop(1, "v", "exp", Read(0, ROW), shape=(length,)),
                      loop(2, "", "mul", Read(1, index), Read(3, FLAT)), loop(3, "", "mul", Read(0, FLAT)),
                      kept=(2, 3), small={1: length})  # fmt: skip
        assert nanoseconds(of, made(of)) == pytest.approx(2.0 * times + 0.5 * 2 * SIZE)
        stored = made(of, {"v": True})
        assert len(stored.nests) == 2
        assert nanoseconds(of, stored) == pytest.approx(2.0 * length + 0.5 * 2 * SIZE)


def test_a_reduction_shares_its_outer_loop_with_what_reads_it() -> None:
    """A value, its sums along rows, and products of the two."""
    of = estimate(loop(1, "v", "exp", Read(0, FLAT)),
                  loop(2, "", "reduction.sum", Read(1, FLAT), shape=(ROWS,), reduced=(COLUMNS,)),
                  loop(3, "", "mul", Read(1, FLAT), Read(2, ROW)), kept=(3,), small={2: ROWS})  # fmt: skip
    inlined, stored = made(of), made(of, {"v": True})
    assert len(inlined.nests) == 1 and len(inlined.nests[0][1]) == 2  # one nest of two inner loops
    assert nanoseconds(of, inlined) == pytest.approx(SIZE * (2.0 + 0.25 + 2.0 + 0.5))
    assert nanoseconds(of, stored) == pytest.approx(SIZE * (2.0 + 0.25 + 0.5))


def test_a_call_between_ends_a_kernel_and_far_data_costs_more() -> None:
    call = LibraryCall((1,), (2,))
    of = estimate(loop(1, "", "exp", Read(0, FLAT)), call, loop(3, "", "mul", Read(2, FLAT)), kept=(3,))
    assert (len(made(of).nests), made(of).kernels) == (2, 2)
    of = estimate(loop(1, "", "exp", Read(0, FLAT)), kept=(1,))
    far = replace(BARE, read=((1e6, 0.0), (1e12, 0.25)))
    assert nanoseconds(of, made(of), far) == pytest.approx(SIZE * 2.0 + SIZE * 4 * 0.25)


def test_a_single_number_is_computed_again_for_every_vector() -> None:
    of = estimate(loop(1, "v", "exp", Read(0, ("number", 0)), shape=()),
                  loop(2, "", "mul", Read(1, ("number", 0)), Read(3, FLAT)), loop(3, "", "mul", Read(0, FLAT)),
                  kept=(2, 3), small={1: 1})  # fmt: skip
    assert nanoseconds(of, made(of)) == pytest.approx((16.0 / BARE.lanes + 0.5 * 2) * SIZE)
    assert nanoseconds(of, made(of, {"v": True})) == pytest.approx(0.5 * 2 * SIZE, rel=1e-3)


def test_truth_values_and_vectors_that_are_not_full_have_costs_of_their_own() -> None:
    of, table = chain(), {**TABLE, "truth_write": 3.0, "truth_read": 1.0, "missed_read": 8.0, "write": 0.25}
    assert nanoseconds(of, made(of), replace(BARE, vector=table)) == pytest.approx(SIZE * (3.0 + 0.25))
    assert nanoseconds(of, made(of), replace(BARE, part=10.0, lanes=7)) == pytest.approx(SIZE * 3.0 + 10.0)
    for missed in (0.0, 0.25):
        buffers = tuple(replace(b, missed=missed if b.name in ("b0", "b3") else None) for b in of.program.buffers)
        masks = Estimate(replace(of.program, buffers=buffers))
        read = 1.0 + 8.0 * missed
        assert nanoseconds(masks, made(masks), replace(BARE, vector=table)) == pytest.approx(SIZE * (3.0 + 3.0 + read))


def test_inductors_own_rules_decide_where_nothing_is_asked() -> None:
    of = chain()
    program = of.program
    read_twice = LoopProgram(program.buffers, program.steps, (Hint("a", "reuse"), Hint("a", "made"), Hint("b", "made")))
    for asked, stored in (({}, {"a"}), ({"a": False}, set()), ({"b": True}, {"a", "b"})):
        assert made(Estimate(read_twice), asked).stored == stored
    assert of.made({}, frozenset(), Rules(size=0)).stored == set()  # large values too are stored when they are shared


def test_presets_are_read_as_they_were_written(tmp_path: Path) -> None:
    save(tmp_path / "p.json", BARE, "some machine", "2026-01-01")
    assert read(tmp_path / "p.json") == BARE
    for name in shipped():
        assert load(name).vector["tanh"] > load(name).vector["mul"] > 0


@pytest.mark.parametrize("change", [
    {"format": 2}, {"vector": {"mul": 1.0}}, {"vector": {**TABLE, "mul": -1.0}}, {"vector": {**TABLE, "mul": "1"}},
    {"scalar": None}, {"read": []}, {"read": [[2, 1], [1, 1]]}, {"write": [[1]]}, {"result": float("nan")},
    {"kernel": True}, {"flop": 1e300},
])  # fmt: skip
def test_a_damaged_preset_is_one_sentence(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    save(file, BARE, "some machine", "2026-01-01")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=COMMAND):
        read(file)


def test_a_preset_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=COMMAND):
        Calibrated(name="calibrated", preset=None)
    with pytest.raises(UserError, match=shipped()[0]):
        Calibrated(name="calibrated", preset="../../etc/passwd")
    assert preset_named("here") == preset_named("shipped")
    save(tmp_path / presets.FILE, BARE, "some machine", "2026-01-01")
    assert Calibrated(name="calibrated", preset=None).preset == BARE == preset_named("here")


def test_a_preset_is_what_probes_differ_by() -> None:
    sizes = {"terms": 8, "elements": 1000, "rows": 10, "columns": 100, "width": 10, "chosen": 100, "side": 10}
    sizes |= {"parts": 50, "lanes": 8, "truths": 1000}
    sums = {"plain": 2e-6, "add": 10e-6, "mul": 6e-6, "exp": 18e-6}
    seconds = {f"vector {name}": value for name, value in sums.items()}
    seconds |= {f"scalar {name}": 4 * value for name, value in sums.items()}
    seconds |= {"nests 1": 1e-6, "nests 9": 9e-6, "products": 3e-6, "inner welford_reduce": 2e-6}
    seconds |= {f"{way} {name}": 2e-6 for way in ("inner", "outer") for name in ("sum", "max", "min")}
    seconds |= {"fill 1000": 2e-6, "copy 1000": 3e-6, "fill 4000": 9e-6, "copy 4000": 25e-6}
    seconds |= {"gathered plain": 2e-6, "gathered rows": 3e-6, "gathered elements": 4e-6, "gathered added": 5e-6}
    for mode, times in (("vector", 1), ("scalar", 4)):
        seconds |= {f"{mode}_whole plain": 4e-6 * times, f"{mode}_whole wide": 20e-6 * times}
        seconds |= {f"{mode}_truths {name}": ns * 1e-6 for name, ns in (("plain", 2), ("write", 5), ("read", 3))}
        seconds |= {f"{mode}_missed {name}": ns * 1e-6 for name, ns in (("write", 9), ("read", 2))}
    seconds |= {"rows whole": 2e-6, "rows short": 3e-6}
    found = derived(seconds, sizes)
    assert (found.part, found.lanes) == (pytest.approx(10.0), 8)
    assert found.vector["wide"] == pytest.approx(2.0) and found.scalar["wide"] == pytest.approx(8.0)
    assert found.vector["truth_write"] - found.vector["write"] == pytest.approx(3.0)
    assert found.vector["truth_read"] - found.vector["read"] == pytest.approx(1.0)
    assert (found.vector["missed_write"], found.vector["missed_read"]) == (pytest.approx(8.0), 0.0)
    assert found.vector["exp"] == pytest.approx(2.0) and found.scalar["exp"] == pytest.approx(8.0)
    assert (found.result, found.kernel, found.flop) == pytest.approx((1000.0, 1000.0, 1.0))
    assert [cost for _, cost in found.read] == pytest.approx([0.0, 3.0])  # 1 and 4 ns of a byte
    assert [cost for _, cost in found.write] == pytest.approx([0.0, 1.0])  # 1 and 2
    assert found.vector["uneven"] == pytest.approx(4.0 + 2.0)
