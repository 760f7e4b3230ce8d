"""The backend for GraphNet's harness, compilers raced against eager execution, and S(t), ES(t) of the rows."""

import json
from math import inf, log
from pathlib import Path

import pytest
import torch
from torch import nn

import graphopt
from graphopt.backends.against_eager import main as measure
from graphopt.backends.eager_worker import closeness_of
from graphopt.backends.graphnet import GraphoptBackend
from graphopt.core.errors import UsageError, UserError
from graphopt.report.command import main as report
from graphopt.report.error_aware import FAILED, TOLERANCES, BackendRow, by_backend, read_rows, score_tables, scores


class Small(nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        y = torch.sigmoid(x) * torch.exp(-x)
        return ((y @ w) + y.sum(-1, keepdim=True),)


@pytest.mark.slow
def test_the_harness_calls_it_as_it_calls_others(tmp_path: Path) -> None:
    """Arguments by keyword; decisions are found once, saved, and carried out from files."""
    given = {"x": torch.randn(32, 16), "w": torch.randn(16, 16)}
    backend, model = GraphoptBackend({"evals": 2}), Small()
    with torch.no_grad():
        compiled = backend(model)
        (found,) = compiled(**given)
        backend.synchronize()
        (wanted,) = torch.compile(Small())(**given)
        assert torch.equal(found, wanted) and torch.equal(compiled(**given)[0], wanted)
        compiled.found.save(tmp_path)
        (again,) = GraphoptBackend({"decisions": tmp_path})(Small())(**given)
    assert torch.equal(again, wanted) and backend.version() == graphopt.__version__
    with pytest.raises(UsageError, match="takes decisions, evals, numerics, not evaluations"):
        GraphoptBackend({"evaluations": 3})


def test_closeness_is_the_lowest_tolerance_that_holds() -> None:
    ones = torch.ones(3)
    assert closeness_of([ones], [ones]) == -10
    # |a - b| <= 10^t + 10^(t 5.886 / 5): for t = -3 0.0010 + 0.0003
    assert closeness_of([ones], [ones + 1.2e-3]) == -3 and closeness_of([ones], [ones + 1.4e-3]) == -2
    assert closeness_of([ones.double()], [ones.double() + 1e-7]) == -5
    assert closeness_of([ones], [ones + 5]) is None and closeness_of([ones], [ones.double()]) is None
    whole = torch.tensor([1, 2])
    assert closeness_of([whole], [whole]) == -10 and closeness_of([whole], [whole + 1]) is None
    assert closeness_of([ones], [ones, ones]) is None


ROWS = [
    BackendRow("a", "inductor", 2.0, -10), BackendRow("b", "inductor", 0.5, -3),
    BackendRow("c", "inductor", None, None), BackendRow("d", "inductor", 3.0, None),
    BackendRow("b", "graphopt", 1.0, -3), BackendRow("a", "graphopt", 2.0, -10), BackendRow("c", "graphopt", 1.5, 0),
    BackendRow("d", "graphopt", 3.0, -1),
]  # fmt: skip


def test_scores_are_those_of_the_definition() -> None:
    by = by_backend(ROWS)
    wanted = {  # geometric means, by hand
        -10: (2 * FAILED**3, 2 * FAILED**3), -3: (2 * 0.5 * FAILED**2,) * 2, 0: (2 * 0.5 * FAILED**2,) * 2,
        1: (2 * 0.5 * FAILED, 2 * 0.5 * FAILED**2), 3: (1.0, 2 * 0.5 * FAILED**2),
    }  # fmt: skip
    for t, (aware, plain) in wanted.items():
        assert scores(by["inductor"], t, error_aware=True).mean == pytest.approx(aware**0.25)
        assert scores(by["inductor"], t, error_aware=False).mean == pytest.approx(plain**0.25)
    assert scores(by["graphopt"], 4, error_aware=True).mean == pytest.approx((2 * 1.5 * 3) ** 0.25)
    (table,) = score_tables(ROWS)
    assert [int(row[0]) for row in table.rows] == list(TOLERANCES)
    ratio = float(table.rows[-1][-1].split()[0])
    assert log(ratio) == pytest.approx(log(9**0.25), abs=1e-3)
    with pytest.raises(UserError, match="graphopt has no row of c"):
        by_backend([row for row in ROWS if (row.sample, row.backend) != ("c", "graphopt")])


@pytest.mark.parametrize(
    "line", ["", "[]", '{"sample": "a"}', '{"sample": "a", "backend": "b", "speedup": -1}', "[" * 100_000,
             '{"sample": "a", "backend": "b", "speedup": 1.0, "closeness": "x"}']
)  # fmt: skip
def test_what_is_no_row_is_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{line}\n")
    with pytest.raises(UserError, match=r"line 1 of|no rows"):
        read_rows(tmp_path / "rows.jsonl")


MODEL = """
import torch

class GraphModule(torch.nn.Module):
    def forward(self, L_x_: torch.Tensor):
        y = torch.sigmoid(L_x_)
        z = y * L_x_
        return (z, y.sum(-1))
"""
WEIGHTS = """
class Program_weight_tensor_meta_L_x_:
    name = "L_x_"
    shape = [64, 64]
    dtype = "torch.float32"
    device = "cpu"
    mean = 0.0
    std = 1.0
    data = None
"""


@pytest.mark.slow
def test_programs_are_raced_and_a_second_call_goes_on(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (folder := tmp_path / "samples" / "own" / name).mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
        (folder / "weight_meta.py").write_text(WEIGHTS)
    (tmp_path / "samples" / "own" / "two" / "model.py").write_text(MODEL.replace("sigmoid", "nothing_of_torch"))
    place, rows = str(tmp_path / "samples"), tmp_path / "out" / "rows.jsonl"
    few = ["--evals", "2", "--processes", "1"]
    assert measure([place, str(rows), *few, "--only", "own/one"]) == 0
    first = rows.read_text()
    assert measure([place, str(rows), *few]) == 0
    assert rows.read_text().startswith(first) and len(rows.read_text().splitlines()) == 4
    inductor, ours, *failed = map(json.loads, rows.read_text().splitlines())
    assert inductor["closeness"] <= -5 and 0 < inductor["speedup"] < inf and ours["closeness"] <= -5
    assert {row["status"] for row in failed} == {"failed"} and "nothing_of_torch" in failed[0]["reason"]
    assert report([str(rows), "--es", "--plots"]) == 0
    assert (rows.parent / "scores.png").stat().st_size > 5_000
    assert "ES, graphopt" in (rows.parent / "scores.md").read_text()
    with pytest.raises(UserError, match=r"no sample of .* matches nothing"):
        measure([place, str(rows), "--only", "nothing"])
