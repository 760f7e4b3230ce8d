"""Measured ops: a table on disk, a worker of its own, sums over programs."""

import json
from pathlib import Path

import numpy as np
import pytest

from graphopt.costs.profiled import Measuring, Profiled, signature_of
from graphopt.errors import UserError
from graphopt.plan import Plans
from graphopt.rewrite.as_graph import graph_of
from graphopt.rewrite.program_builder import ProgramBuilder
from graphopt.rewrite.vocabulary import Operation, TensorType

QUICK = Measuring(device="cpu", threads=1, blocks=3, block_seconds=0.001)
MATMUL = Operation("matmul", ("none",))


def model(table: Path) -> Profiled:
    return Profiled(name="profiled", table=str(table), measuring=QUICK)


def square(n: int) -> tuple[TensorType, TensorType]:
    return TensorType((n, n)), TensorType((n, n))


def test_more_work_takes_longer_and_is_measured_once(tmp_path: Path) -> None:
    table = tmp_path / "t" / "ops.jsonl"
    small, large = (model(table).op_seconds(MATMUL, square(n), ()) for n in (16, 256))
    assert 0 < small < large / 10
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    assert [line["op"] for line in lines] == [signature_of(MATMUL, square(16)), signature_of(MATMUL, square(256))]
    again = model(table)
    assert again.op_seconds(MATMUL, square(16), ()) == small
    assert again._worker is None
    assert len(table.read_text().splitlines()) == 2


def test_a_program_costs_the_sum_of_what_runs(tmp_path: Path) -> None:
    b = ProgramBuilder()
    x = b.input((1, 4, 8, 8))
    y = b.op("relu", inputs=(b.conv(x, 4, 3),))
    program = b.build(b.op("reshape", (1, 256), inputs=(y,)))
    seconds = {
        "conv [1,1] [1,1,1,1] none | float32 [1,4,8,8] | float32 [4,4,3,3]": 3.0,
        "relu | float32 [1,4,8,8]": 0.5,
    }
    table = tmp_path / "elsewhere.jsonl"
    lines = [{"op": op, "environment": "another machine", "seconds": s, "spread": 0.0} for op, s in seconds.items()]
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    graph = graph_of(program, name="g")
    inline = [[False] * graph.num_ops]

    plans = Plans(graph, np.zeros((1, graph.num_ops), np.int16), np.zeros((1, graph.num_ops)), np.array(inline))
    assert model(table).price(plans).cost[0] == pytest.approx(3.5)


def test_lines_cut_short_are_measured_again(tmp_path: Path) -> None:
    table = tmp_path / "ops.jsonl"
    model(table).op_seconds(MATMUL, square(8), ())
    table.write_text(table.read_text()[:-20])
    with pytest.warns(UserWarning, match="1 lines cannot be read"):
        assert model(table).op_seconds(MATMUL, square(8), ()) > 0


def test_what_cannot_be_measured_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot measure matmul none \| float32 \[2,3\] \| float32 \[2,3\]"):
        model(tmp_path / "ops.jsonl").op_seconds(MATMUL, (TensorType((2, 3)), TensorType((2, 3))), ())
