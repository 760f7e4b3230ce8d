"""Programs as TorchInductor compiles them: what is asked of it, what is remembered, what fails."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cells import fusion
from hardware.quick import turns
from torch import Tensor

from graphopt.core.compiler import compiler_choice, knobs
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.graphs.readers.pytorch.program_file import packed_program
from graphopt.hardware.costs.inductor import GeneratedCode, Inductor
from graphopt.hardware.inductor.captured import as_graph, capture_step
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.hardware.measure.target import Failure, Timing
from graphopt.hardware.requests import CompilerRequest, graph_key, least_of_other_bits, plans_of, request_of
from graphopt.problems.tasks.fusion import Fusion
from graphopt.report.apply.optimized import Optimized

CORE = Device(name="cpu", launch=1e-6, vector_flops=1e11, contraction_flops=3e11, bandwidth=2e10)
QUICK = turns(block_seconds=0.001, rounds=3, noise=0.5, seconds=0.05, limit_seconds=120)


def scaled_rows(x: Tensor, w: Tensor) -> list[Tensor]:
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return [torch.tanh(x * scale * w) + x * scale]


def captured(rows: int) -> Graph:
    program = capture_step(scaled_rows, [torch.randn(rows, 128), torch.randn(128)])
    return replace(as_graph(program, name="rows", family="rows"), program=packed_program(program))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return captured(64)


def task(numerics: str | None = "close") -> Fusion:
    return fusion(Machine(name="one", devices=(CORE,)), numerics=numerics)


def model(table: Path, environment: str | None = None) -> Inductor:
    return Inductor(name="inductor", table=str(table), environment=environment, fresh_processes=0, allocator="user",
                    builders=1, build_seconds=120, measuring=QUICK)  # fmt: skip


def test_a_plan_asks_only_for_what_differs_from_the_default(graph: Graph) -> None:
    fusion, own = task(), compiler_choice(graph)
    assert own is not None and own.inline.any()
    decision = fusion.initial(graph)
    assert request_of(fusion.realise(graph, decision[None]), 0) == CompilerRequest({}, {})
    op, last = int(np.flatnonzero(own.inline)[0]), len(knobs("close")) - 1
    decision[op, 0] = 0
    decision[0, 2 + last] = 1
    asked = request_of(fusion.realise(graph, decision[None]), 0)
    assert asked == CompilerRequest({graph.op_names[op]: "store"}, {knobs("close")[last].name: 1})
    decision[op, 1] = 1
    asked = request_of(fusion.realise(graph, decision[None]), 0)
    assert asked.requests == {graph.op_names[op]: "cut"}
    assert request_of(plans_of(graph, [CompilerRequest({}, {}), asked]), 1) == asked


@pytest.mark.slow
def test_prices_are_measured_once_and_replay_without_measuring(graph: Graph, tmp_path: Path) -> None:
    fusion, own = task(), compiler_choice(graph)
    assert own is not None
    decisions = np.repeat(fusion.initial(graph)[None], 3, 0)
    decisions[1, np.flatnonzero(own.inline)[0], 0] = 0
    decisions[2] = decisions[1]
    plans = fusion.realise(graph, decisions)
    table = tmp_path / "measured.jsonl"
    first = model(table)
    prices = first.price(plans)
    assert (prices.cost > 0).all() and np.isfinite(prices.cost).all() and (np.asarray(prices.noise) > 0).all()
    assert prices.cost[1] == prices.cost[2] != prices.cost[0]
    assert first.builds.counts["compile"] == 2  # the default and the one that differs
    written, done = table.read_text(), dict(first.builds.counts)  # both models share the processes that build
    replayed = model(table, first.service.environment)
    assert (replayed.price(plans).cost == prices.cost).all()
    assert table.read_text() == written and replayed.builds.counts == done
    decisions[0, 0, [head.name for head in fusion.heads].index("simdlen")] = 1
    with pytest.raises(UserError, match="has no line"):
        replayed.price(fusion.realise(graph, decisions[:1]))
    with pytest.raises(UserError, match="has no line"):
        model(tmp_path / "empty.jsonl", first.service.environment).price(plans)
    assert replayed.builds.counts == done  # refused before anything is lowered
    good, bad = first.measured(graph, [CompilerRequest({}, {}), CompilerRequest({}, {"no_such_knob": 1})])
    assert isinstance(good, Timing) and good.ratio == 1.0 and math.isfinite(good.seconds)
    assert isinstance(bad, Failure) and "no_such_knob" in bad.reason  # what cannot be compiled costs one evaluation
    assert first.builds.counts["errors"] == 1


def test_other_bits_cost_inf_unless_rounding_may_change(graph: Graph, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    found = [Timing(2.0, 1.0, 0.01, 9, 1.0), Timing(1.0, 0.5, 0.01, 9, 1.0, equal=False)]
    monkeypatch.setattr(Inductor, "measured", lambda *_: found)
    cost = model(tmp_path / "measured.jsonl")
    for numerics, second in (("equal", math.inf), (None, math.inf), ("close", 1.0)):
        fusion = task(numerics)
        prices = cost.price(fusion.realise(graph, fusion.initial(graph)[None].repeat(2, 0)))
        assert prices.cost.tolist() == [2.0, second] and prices.excess.tolist() == [0.0, float(math.isinf(second))]


def test_the_report_says_what_other_bits_would_bring(graph: Graph, tmp_path: Path) -> None:
    table, timing = PriceTable(tmp_path / "measured.jsonl"), Timing(1.0, 0.5, 0.01, 9, 1.0)
    told = [("same", replace(timing, ratio=0.4)), ("other", replace(timing, ratio=0.6, equal=False)),
            ("elsewhere", replace(timing, ratio=0.2, equal=False))]  # fmt: skip
    with table.turn():
        for digest, found in told:
            table.add({"digest": digest, "default": "d", "environment": "e", **asdict(found)})
            program = graph_key(graph) if digest != "elsewhere" else "another"
            table.add({"request": digest, "environment": "e", "program": program, "digest": digest, "features": {}})
    others = {"forward": least_of_other_bits(table, graph), "backward": least_of_other_bits(table, captured(32))}
    assert others == {"forward": 0.6, "backward": 1.0}
    said = 'forward: 0.600 with other bits, which numerics="close" allows'
    for numerics, lines in (("equal", 1), ("close", 0)):
        report = Optimized(torch.nn.ReLU(), {}, {}, (), numerics, others=others, flushed={"a": 0.5, "b": 1.0}).report()
        assert report.count("set_flush_denormal") == 1
        assert report.count("other bits") == report.count(said) == lines


@pytest.mark.slow
def test_generated_code_is_priced_from_the_same_table(graph: Graph, tmp_path: Path) -> None:
    """It neither lowers nor compiles again what was measured."""
    fusion, own, table = task(), compiler_choice(graph), tmp_path / "measured.jsonl"
    assert own is not None
    decisions = np.repeat(fusion.initial(graph)[None], 3, 0)
    for row, op in enumerate(np.flatnonzero(own.inline)[:2]):
        decisions[row, op, 0] = 0
    decisions[2, 0, 5] = 1  # tanh decomposed
    cost = model(table)
    assert np.isfinite(cost.price(fusion.realise(graph, decisions)).cost).all()
    code = GeneratedCode(name="code", preset="shipped", table=str(table), environment=cost.service.environment,
                         builders=1, build_seconds=120)  # fmt: skip
    done = dict(code.requests.builds.counts)
    predicted = code.price(fusion.realise(graph, decisions))
    assert np.isfinite(predicted.cost).all() and not predicted.excess.any()
    assert code.requests.builds.counts == done
    decisions[0, 0, 2] = 1
    with pytest.raises(UserError, match="environment=null"):
        code.price(fusion.realise(graph, decisions[:1]))
    cut = CompilerRequest({}, {"no_such_knob": 1})
    assert "failure" in code.requests.lines(graph, [cut], lowers=True)[0]
