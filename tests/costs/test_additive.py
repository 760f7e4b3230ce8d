"""Costs that are sums over ops: by hand, and measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hardware.quick import alone as quick

from graphopt.core.errors import Unmeasured, UserError
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.hardware.costs.whole_program import Profiled, signature_of
from graphopt.hardware.measure.environment import environment_here
from graphopt.hardware.measure.pool import LocalPool
from graphopt.hardware.measure.rounds import alone
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.ir.vocabulary import Operation, TensorType
from graphopt.rewrite.program_cost import Flops, flop

# --- Costs that are sums over ops, against numbers worked out by hand.

LAUNCH, PEAK, VECTOR, BANDWIDTH = 1e-6, 1e12, 1e11, 1e9


COST = Flops(name="flops", machine=Machine(name="m", devices=(
    Device(launch=LAUNCH, contraction_flops=PEAK, vector_flops=VECTOR, bandwidth=BANDWIDTH),)))  # fmt: skip


def plans_of(program: Program, count: int = 1) -> Plans:
    """Everything stored on one device."""
    graph = graph_of(program, name="g")
    shape = (count, graph.num_ops)
    return Plans(graph, np.zeros(shape, np.int16), np.zeros(shape), np.zeros(shape, bool))


def price(program: Program) -> float:
    return float(COST.price(plans_of(program)).cost[0])


def test_an_op_takes_its_launch_and_the_longer_of_arithmetic_and_traffic() -> None:
    """Weights and views are free, and shared terms are paid once."""
    b = ProgramBuilder()
    program = b.build(b.matmul(b.input((100, 200)), b.input((200, 300))))
    traffic = 4 * (100 * 200 + 200 * 300 + 100 * 300) / BANDWIDTH
    assert price(program) == pytest.approx(LAUNCH + max(2 * 100 * 200 * 300 / PEAK, traffic))
    b = ProgramBuilder()
    product = b.matmul(b.input((2, 8)), b.op("concat", 1, inputs=(b.weight(8, 3), b.weight(8, 5))))
    alone, more = b.build(product), b.build(b.op("reshape", (16,), inputs=(product,)))
    assert price(alone) == price(more) == pytest.approx(LAUNCH + 4 * (16 + 64 + 16) / BANDWIDTH)
    b = ProgramBuilder()
    shared = b.op("relu", inputs=(b.input((1000,)),))
    once, twice = b.build(shared), b.build(b.op("add", inputs=(shared, shared)))
    assert price(twice) == pytest.approx(price(once) + LAUNCH + 4 * 3000 / BANDWIDTH)


def test_arithmetic_is_counted_as_in_graphs() -> None:
    b = ProgramBuilder()
    x = b.conv(b.input((1, 4, 8, 8)), 8, 3, activation="relu", bias=True)
    program = b.build(b.op("tanh", inputs=(b.op("pool_max", (2, 2), (2, 2), (0, 0, 0, 0), inputs=(x,)),)))
    terms = program.terms
    ran = [t for t in program.live() if terms.operation[t].name not in ("input", "weight")]
    found = [flop(terms.operation[t], [terms.types[i][0] for i in terms.inputs[t]], terms.types[t]) for t in ran]
    assert found == [8 * 64 * (2 * 4 * 9 + 1 + 1), 8 * 16 * 4, 8 * 16 * 16]
    assert found == graph_of(program, name="g").flops.tolist()


# --- Measured ops: a table on disk, a worker of its own, sums over programs.

MATMUL = Operation("matmul", ("none",))


def model(table: Path, environment: str | None = None) -> Profiled:
    return Profiled(name="profiled", runtime="torch", table=str(table), environment=environment, measuring=quick())


def square(n: int) -> tuple[TensorType, TensorType]:
    return TensorType((n, n)), TensorType((n, n))


def write(table: Path, lines: list[Mapping[str, Any]]) -> None:
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring anything is an error."""
    monkeypatch.setattr(LocalPool, "ask", lambda *_: pytest.fail("something is measured"))


def test_more_work_takes_longer_and_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t" / "ops.jsonl"
    measures = model(table)
    small, large = (measures.op_seconds(MATMUL, square(n), ()) for n in (16, 256))
    assert 0 < small < large / 10
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    assert [line["op"] for line in lines] == [signature_of(MATMUL, square(16)), signature_of(MATMUL, square(256))]
    assert all(line["blocks"] >= 3 and line["spread"] >= 0 for line in lines)
    monkeypatch.setattr(LocalPool, "ask", lambda *_: pytest.fail("something is measured"))
    assert model(table).op_seconds(MATMUL, square(16), ()) == small


def test_a_transpose_moves_its_data(tmp_path: Path) -> None:
    measures, x = model(tmp_path / "ops.jsonl"), TensorType((512, 512))
    moved, kept = (measures.op_seconds(Operation("transpose", (axes,)), (x,), ()) for axes in ((1, 0), (0, 1)))
    assert moved > 10 * kept


def test_a_program_costs_the_sum_of_what_runs(tmp_path: Path, no_process: None) -> None:
    b = ProgramBuilder()
    x = b.input((1, 4, 8, 8))
    y = b.op("relu", inputs=(b.conv(x, 4, 3),))
    program = b.build(b.op("reshape", (1, 256), inputs=(y,)))
    seconds = {
        "conv [1,1] [1,1,1,1] none | float32 [1,4,8,8] | float32 [4,4,3,3]": 3.0,
        "relu | float32 [1,4,8,8]": 0.5,
    }
    table = tmp_path / "ops.jsonl"
    write(table, [{"op": op, "environment": "elsewhere", "seconds": s, "spread": 0.0} for op, s in seconds.items()])
    assert model(table, "elsewhere").price(plans_of(program)).cost[0] == pytest.approx(3.5)


def test_of_another_environment_nothing_is_measured(tmp_path: Path, no_process: None) -> None:
    table, op = tmp_path / "ops.jsonl", signature_of(MATMUL, square(8))
    here = {"op": op, "environment": environment_here("cpu", 1), "seconds": 1.0}
    write(table, [here, {**here, "environment": "elsewhere", "seconds": 2.0}])
    assert model(table).op_seconds(MATMUL, square(8), ()) == 1.0
    assert model(table, "elsewhere").op_seconds(MATMUL, square(8), ()) == 2.0
    with pytest.raises(UserError, match=r"no line of the op .* in the environment 'elsewhere': it has those of"):
        model(table, "elsewhere").op_seconds(MATMUL, square(9), ())
    with pytest.raises(UserError, match=r"empty or missing.*environment=null to measure here"):
        model(tmp_path / "none.jsonl", "elsewhere").op_seconds(MATMUL, square(8), ())


def test_what_others_measure_meanwhile_counts(tmp_path: Path, no_process: None) -> None:
    table = tmp_path / "ops.jsonl"
    late = model(table)
    line = {"op": signature_of(MATMUL, square(8)), "environment": late.service.environment, "seconds": 1.0}
    write(table, [line, {**line, "seconds": 2.0}])  # the first line counts
    assert late.op_seconds(MATMUL, square(8), ()) == 1.0


def test_lines_cut_short_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "ops.jsonl"
    model(table).op_seconds(MATMUL, square(8), ())
    table.write_text(table.read_text()[:-20])
    model(table)  # the rest of the line may be on its way
    with pytest.warns(UserWarning, match="1 lines cannot be read"):
        seconds = model(table).op_seconds(MATMUL, square(8), ())
    assert seconds > 0
    monkeypatch.setattr(LocalPool, "ask", lambda *_: pytest.fail("something is measured"))
    with pytest.warns(UserWarning, match="1 lines cannot be read"):
        assert model(table).op_seconds(MATMUL, square(8), ()) == seconds


def test_what_cannot_be_measured_is_one_sentence(tmp_path: Path) -> None:
    name = r"matmul none \| float32 \[2,3\] \| float32 \[2,3\] cannot be measured: "
    with pytest.raises(Unmeasured, match=name):
        model(tmp_path / "ops.jsonl").op_seconds(MATMUL, (TensorType((2, 3)), TensorType((2, 3))), ())


def test_a_process_that_never_begins_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.hardware.measure.pool.WORKER", "platform")  # prints a line and ends
    with pytest.raises(UserError, match="ends before it has begun") as caught:
        model(tmp_path / "ops.jsonl").op_seconds(MATMUL, square(8), ())
    assert not isinstance(caught.value, Unmeasured)


def test_noisy_blocks_are_followed_by_more() -> None:
    noise, spoken = iter([1.0, 1.0, 1.0, 1.0, 2.0, 3.0, *[1.0] * 90]), list[int]()

    def column(runs: int) -> float:
        spoken.append(runs)
        return next(noise)

    settings = {"block_seconds": 0.5, "blocks": 3, "spread": 0.05, "op_seconds": 60.0}
    answer = alone(column, settings)
    assert answer["seconds"] == 1.0
    assert answer["spread"] <= 0.05
    assert 3 < answer["blocks"] == len(spoken) - 3  # three to warm up and count
    late = alone(lambda runs: 1.0 + len(spoken), {**settings, "op_seconds": 0.0})
    assert late["blocks"] == 3


def test_the_noise_of_a_program_is_that_of_its_measured_ops(tmp_path: Path, no_process: None) -> None:
    """Two products of one shape share an error, since the op was measured once; that of another op is independent."""
    b = ProgramBuilder()
    x = b.input((4, 4))
    y = b.op("relu", inputs=(b.linear(b.linear(x, 4), 4),))
    product = signature_of(MATMUL, (TensorType((4, 4)), TensorType((4, 4))))
    lines = [
        {"op": product, "environment": "e", "seconds": 3.0, "spread": 0.02 * 1.349 / 1.253, "blocks": 4},  # 1 %
        {"op": "relu | float32 [4,4]", "environment": "e", "seconds": 4.0, "spread": 0.03 * 1.349 / 1.253, "blocks": 9},
    ]
    write(tmp_path / "ops.jsonl", lines)
    price = model(tmp_path / "ops.jsonl", "e").price(plans_of(b.build(y), 3)).of(2)
    assert price.cost == pytest.approx(10.0)
    assert price.noise == pytest.approx((0.06**2 + 0.04**2) ** 0.5 / 10.0)
    assert price.measurements == 13
