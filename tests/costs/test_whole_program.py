"""Whole programs run: prices against the original, what is remembered, and what replays."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import command
from hardware.quick import turns
from torch.fx.experimental.proxy_tensor import make_fx

from graphopt.core.errors import ConfigError, Unmeasured, UserError
from graphopt.core.utils.registry import option
from graphopt.hardware.costs.whole_program import OnnxRuntime, TorchEager, WholeProgram
from graphopt.hardware.measure.pool import LocalPool
from graphopt.report.command import main as report
from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.io.torch_import import import_fx
from graphopt.rewrite.ir.digests import portable
from graphopt.rewrite.ir.program_builder import ProgramBuilder, with_random_weights
from graphopt.rewrite.ir.terms import Program
from graphopt.run.config.construct import construct

pytest.importorskip("onnxruntime")

QUICK = {"block_seconds": 0.001, "noise": 0.05, "seconds": 0.3, "limit_seconds": 120.0}
Make = Callable[..., WholeProgram]


def onnx(table: Path, environment: str | None = None, *, optimised: bool = True, **changed: Any) -> WholeProgram:
    return OnnxRuntime(name="onnxruntime", optimisations="default" if optimised else "off", table=str(table),
                       environment=environment, fresh_processes=0, measuring=turns(**QUICK | changed))  # fmt: skip


def eager(table: Path, environment: str | None = None, **changed: Any) -> WholeProgram:
    return TorchEager(name="torch", table=str(table), environment=environment, fresh_processes=0,
                      measuring=turns(**QUICK | changed))  # fmt: skip


def chain() -> tuple[Program, Program]:
    """A program of eight products, and one of the first two alone: that is no rewrite, but it is shorter."""
    b = ProgramBuilder()
    x, made = b.input((96, 96)), []
    for _ in range(8):
        x = b.op("tanh", inputs=(b.linear(x, 96),))
        made.append(x)
    program = with_random_weights(b.build(made[-1]), 0)
    return program, program.with_outputs((made[1],))


def products(first: str, second: str) -> Program:
    b = ProgramBuilder()
    x = b.input((2, 4))
    made = [b.op("relu", inputs=(x,)), b.op("tanh", inputs=(x,))]
    return b.build(*(made if first < second else made[::-1]))


def test_equal_programs_have_equal_digests_in_any_store() -> None:
    program = products("a", "b")
    assert portable(program) != portable(products("b", "a"))  # other outputs
    b = ProgramBuilder()
    x = b.input((2, 4))
    tanh = b.op("tanh", inputs=(x,))
    assert portable(b.build(b.op("relu", inputs=(x,)), tanh)) == portable(program)


@pytest.mark.parametrize("make", [onnx, eager])
def test_a_shorter_program_is_faster_and_measured_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = make(tmp_path / "t.jsonl")
    long, short = chain()
    assert short.original.outputs == long.outputs
    price = cost.price_program(short)
    assert price < 0.6 * cost.price_program(long)
    noise, rounds = cost.noise_of(short)
    assert noise > 0 and rounds >= 3
    monkeypatch.setattr(LocalPool, "ask", lambda *_: pytest.fail("something is measured"))
    assert make(tmp_path / "t.jsonl").price_program(short) == price
    assert make(tmp_path / "t.jsonl", cost.service.environment).price_programs([long, short])[1] == price
    with pytest.raises(UserError, match=r"set .*'s environment=null to measure here"):
        make(tmp_path / "none.jsonl", cost.service.environment).price_program(long)


def test_optimisations_of_onnx_runtime_are_another_price(tmp_path: Path) -> None:
    long, _ = chain()
    cost, other = (onnx(tmp_path / "t.jsonl", optimised=optimised) for optimised in (True, False))
    assert cost.price_program(long) > 0 and other.price_program(long) > 0
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [line["digest"].split()[:2] for line in lines] == [["onnxruntime", "default"], ["onnxruntime", "off"]]
    assert all("onnxruntime " in line["environment"] and "malloc" in line["environment"] for line in lines)


def test_a_program_that_cannot_be_written_costs_its_row(tmp_path: Path) -> None:
    gm = make_fx(torch.erfinv)(torch.rand(4, 4))
    with pytest.raises(Unmeasured, match="cannot be written as ONNX, by which it is measured"):
        onnx(tmp_path / "t.jsonl").price_program(import_fx(gm, "erfinv"))


def test_settings_that_cannot_be_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one thread of a CPU"):
        onnx(tmp_path / "t.jsonl", threads=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_gpus_prices_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a GPU that torch can use, and there is none here"):
        eager(tmp_path / "t.jsonl", device="cuda")
    with pytest.raises(ConfigError, match="needs a GPU that torch can use"):
        construct({**option("cost", "inductor"), "measuring": {**option("cost", "gpu")["measuring"]}}, "cost")
    stored = option("cost", "gpu") | {"table": str(tmp_path / "t.jsonl"), "environment": "torch 2.13, some GPU"}
    assert construct(stored, "cost").name == "gpu"  # stored prices replay anywhere


@pytest.mark.parametrize("cost", ["onnxruntime", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_search_by_whole_programs_is_stored_and_replays(
    cost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    b = ProgramBuilder()
    x = b.input((64, 128))
    save_onnx(b.build(b.linear(x, 64), b.op("relu", inputs=(b.linear(x, 64),))), tmp_path / "model.onnx")
    quick = ["rounds=3", "noise=0.5", "seconds=0.2", "block_seconds=0.0005"]
    words = [f"{model}.measuring.{word}" for model in ("cost", "judge") for word in quick]
    tables = [f"{model}.table={tmp_path / 'programs.jsonl'}" for model in ("cost", "judge")]
    answer = command(tmp_path / "out", "task=rewrite", "algo=rewrite_greedy", f"cost={cost}", f"cost@judge={cost}",
                     "judge.fresh_processes=2", "budget.evals=[12]", "logger=none", "dataset=onnx",
                     f"dataset.path={tmp_path / 'model.onnx'}", *words, *tables)  # fmt: skip
    assert answer.code == 0, answer.err
    (row,) = answer.rows
    assert row["status"] == "ok" and row["measurements"] >= 3 and row["noise"] > 0
    assert row["judged"] <= row["initial"] * 1.2
    lines = [json.loads(line) for line in (tmp_path / "programs.jsonl").read_text().splitlines()]
    assert {"2 fresh processes" in line["environment"] for line in lines} == {True, False}
    monkeypatch.setattr(LocalPool, "ask", lambda *_: pytest.fail("something is measured"))
    assert report([str(answer.folder), "--replay"]) == 0
    assert "1 of 1 decisions replay" in capsys.readouterr().out


def test_an_original_that_cannot_be_run_is_unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = chain()
    place = "graphopt.hardware.costs.whole_program.save_onnx"
    monkeypatch.setattr(place, lambda program, file: file.write_bytes(b"no model"))
    with pytest.raises(Unmeasured, match="cannot be measured: "):
        onnx(tmp_path / "t.jsonl").price_program(short)
    monkeypatch.undo()

    def only_the_long(program: Program, file: Path) -> None:
        save_onnx(program, file) if program.outputs == long.outputs else file.write_bytes(b"no model")

    monkeypatch.setattr("graphopt.hardware.costs.whole_program.save_onnx", only_the_long)
    cost = onnx(tmp_path / "t.jsonl")
    found = cost.price_programs([long, short])
    assert np.isfinite(found[0]) and found[1] == float("inf") and cost.noise_of(short) == (0.0, 0)
