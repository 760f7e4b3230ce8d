"""What a user hears when nothing fits into memory: how much is lacking where, what to do, exit code 1, and no nan."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import command

from graphopt.core.fusible import view_inline
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.datasets.layered import layered_graph
from graphopt.problems.capacity import amount, lack_of_memory
from graphopt.run.sweep import cell_line

SMALL = ["dataset=synthetic", "dataset.families=[layered]", "dataset.ops=30", "dataset.test=1", "budget.evals=5"]
TIGHT = [*SMALL, "algo=local", "logger=none"]


def test_nothing_fits_is_a_sentence_and_exit_code_1(tmp_path: Path) -> None:
    words = [*TIGHT, "machine.devices.gpu.capacity=1000"]
    answer = command(tmp_path, *words)
    assert answer.code == 1
    (row,) = answer.rows
    assert row["status"] == "infeasible" and row["reason"] in answer.err
    assert re.search(r"gpu0 needs [\d.]+ [kM]B, [\d.]+ [kM]B more than its 1 kB", answer.err)
    assert "machine.devices.NAME.capacity=BYTES" in answer.err and "task=placement" in answer.err
    assert not re.search(r"\b(nan|inf)\b", answer.out + answer.err)
    again = command(tmp_path, *words)  # nothing is solved twice, and nothing is forgotten
    assert again.code == 1 and row["reason"] in again.err and again.rows == [row]


def test_some_fit(tmp_path: Path) -> None:
    """A default over capacity and a search that finds what fits are a result without a ratio."""
    words = [*TIGHT, "task=placement", "machine.devices.gpu.capacity=%d"]
    needed = command(tmp_path / "free", *TIGHT, "task=placement", "cost.objective=peak_memory",
                     "judge.objective=peak_memory").rows[0]["initial"]  # fmt: skip
    words = [*TIGHT, "task=placement", "budget.evals=400", "compare=[default]",
             f"machine.devices.gpu.capacity={int(0.97 * needed)}"]  # fmt: skip
    answer = command(tmp_path, *words)
    found = {row["algo"]: row["status"] for row in answer.rows if row["cell"] != "free"}
    assert answer.code == 0, answer.err
    assert found["default"] == "infeasible" and not re.search(r"\b(nan|inf)\b", answer.out + answer.err)


def test_a_sweep_goes_on_and_counts(tmp_path: Path) -> None:
    answer = command(tmp_path, *TIGHT, "machine.devices.gpu.capacity=1000,1e12", sweep=True)
    assert answer.code == 0 and {row["status"] for row in answer.rows} == {"infeasible", "ok"}
    assert cell_line(answer.rows).endswith(", 1 infeasible")


def test_what_is_lacking_by_hand() -> None:
    graph = layered_graph(30, np.random.default_rng(0), "g")
    machine = Machine(name="two", devices=(Device(name="a", capacity=10.0), Device(name="b")))
    cost = Simulator(name="s", machine=machine, objective="runtime", threads=1)
    plan = Plans(graph, np.zeros((1, graph.num_ops), np.int16), np.zeros((1, graph.num_ops)), view_inline(graph)[None])
    held = cost.peak_bytes(plan)
    peak = Simulator(name="m", machine=Machine(name="free", devices=(Device(), Device())), objective="peak_memory",
                     threads=1).price(plan).cost[0]  # fmt: skip
    assert held is not None and held.tolist() == [peak, 0]
    said = lack_of_memory(plan, cost, machine)
    assert f"a needs {amount(peak)}, {amount(peak - 10)} more than its 10 B" in said and " b " not in said
    free = Machine(name="free", devices=(Device(),))
    assert lack_of_memory(plan, Simulator(name="s", machine=free, objective="runtime", threads=1), free) == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (1e6, "1 MB"), (4.953e6, "4.95 MB"), (3.2e18, "3.2e+03 PB")],
)
def test_amounts(size: float, text: str) -> None:
    assert amount(size) == text
