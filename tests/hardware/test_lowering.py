"""Lowering under decisions: every hook still acts, results stay equal, and without decisions it is Inductor's own."""

import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch._inductor import config
from torch._inductor.exc import CppCompileError
from torch._inductor.graph import GraphLowering
from torch.fx.experimental.proxy_tensor import make_fx

from graphopt.core.compiler import Knob, knobs
from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.program_file import FxProgram, describe, load_program, save_program
from graphopt.hardware.inductor import lowering
from graphopt.hardware.inductor.captured import capture_compiled, capture_step
from graphopt.hardware.inductor.lowering import LARGEST_TREE, Request, _complete, compile_source, digest_of, replaced
from tests.check_data import check_data
from tests.hardware.programs import (
    adam,
    assert_close,
    assert_same,
    eager,
    lowered,
    only,
    results,
    steep,
    two_reader_program,
    two_readers,
)

STORE, INLINE, CUT = Request.STORE, Request.INLINE, Request.CUT


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def program() -> FxProgram:
    return two_reader_program()


def own_sources(run: Callable[[], Any]) -> list[str]:
    """Digests of what Inductor itself writes; in place of that the operators run one by one."""
    written: list[str] = []

    class Uncompiled:
        __file__ = None

        def __init__(self, graph: GraphLowering) -> None:
            written.append(digest_of(_complete(graph.codegen()[0].value, {}, {})))
            self.program = graph.orig_gm

        def call(self, inputs: list[Any]) -> Any:
            made = self.program(*inputs)
            inputs.clear()
            return made

    with (
        config.patch(fx_graph_cache=False, compile_threads=1, benchmark_harness=False),
        functorch_config.patch(enable_autograd_cache=False),
        replaced(GraphLowering, "compile_to_module", lambda graph: Uncompiled(graph)),
    ):
        run()
    return written


def test_what_is_stored_is_observed(program: FxProgram) -> None:
    made = lowered(program)
    assert only(program, "aten.exp.default") in made.stored
    assert only(program, "aten.add.Tensor") not in made.stored
    assert lowered(program).digest == made.digest  # nothing is left behind in the program
    assert_close(results(program, made), eager(program))


def test_requests_change_what_is_stored_evaluated_and_fused(program: FxProgram) -> None:
    """And no bit of the results."""
    add, exp, plain = only(program, "aten.add.Tensor"), only(program, "aten.exp.default"), lowered(program)
    store, inline, cut = (lowered(program, {op: asked}) for op, asked in ((add, STORE), (exp, INLINE), (exp, CUT)))
    assert store.stored == plain.stored | {add} and store.digest != plain.digest
    assert store.features["steps"] == plain.features["steps"] + 1
    assert inline.stored == plain.stored - {exp}
    assert inline.features["ops.exp"] == 2 * plain.features["ops.exp"] == 2 * 64 * 48
    assert cut.stored == plain.stored
    assert (plain.features["nests"], cut.features["nests"]) == (1, 2)
    for made in (store, inline, cut):
        assert_same(results(program, made), results(program, plain))


def test_knobs_reach_the_code_and_its_compiler(program: FxProgram) -> None:
    plain = lowered(program)
    assert "Vectorized<float>" in plain.source and lowered(program, simdlen=0).digest == plain.digest
    made = lowered(program, simdlen=1)
    assert made.digest != plain.digest and "'cpp.simdlen': 256" in made.source
    assert_close(results(program, made), eager(program))
    assert lowered(program, opcount_threshold=2).digest == plain.digest
    assert lowered(program, contract=1).digest != plain.digest  # the same text, otherwise compiled


def many_readers(*given: torch.Tensor) -> list[torch.Tensor]:
    """A long expression with two readers, a short one with three, one that reads many values, and sums of all."""
    a, b, c, d, e, f = given
    long, short = a, torch.sigmoid(b) * c
    for _ in range(10):
        long = torch.sin(long) * b + c
    wide = a * b + c * d + e * f + (a - d) * torch.relu(b - c)
    made = [long.softmax(-1), long.cos().sum(0), (short + a).sum(-1), short.exp() * d, torch.tanh(short), wide.abs()]
    return [*made, *(x.mean(-1) for x in (wide, made[0] * short))]


@pytest.mark.parametrize("knob", knobs("equal"), ids=lambda knob: knob.name)
def test_knobs_called_equal_leave_every_bit(knob: Knob) -> None:
    program = capture_step(many_readers, [torch.randn(48, 96) for _ in range(6)])
    plain = lowered(program)
    others = [lowered(program, **{knob.name: choice}) for choice in range(1, len(knob.values))]
    changed = {made.digest: made for made in others if made.digest != plain.digest}
    assert changed
    expected = results(program, plain)
    for made in changed.values():
        assert_same(results(program, made), expected)


def test_options_end_where_compiling_fails(program: FxProgram) -> None:
    made = lowered(program, simdlen=1)
    broken = replace(made, source=made.source.replace("#include <torch", "#error here\n#include <torch"))
    with config.patch(compile_threads=2):  # 1 by itself, where there is one processor
        with pytest.raises(CppCompileError):
            compile_source(broken)
        assert config.cpp.simdlen is None and config.compile_threads == 2


def test_inlining_everything_ends() -> None:
    program = capture_step(steep, [torch.randn(100)])
    names = [node.name for node in program.gm.graph.nodes if node.op == "call_function"]
    everything = lowered(program, dict.fromkeys(names, INLINE))
    by_thresholds = lowered(program, reads_threshold=3, opcount_threshold=2)
    for made in (everything, by_thresholds):
        assert 2 <= len(made.stored) < len(names)  # else an expression of 2 ** 40 nodes
        assert made.features["ops.mul"] / 100 < LARGEST_TREE * len(made.stored)


def test_updates_in_place_arrive() -> None:
    inputs = [torch.randn(50) for _ in range(3)]
    before = [tensor.clone() for tensor in inputs]
    program = capture_step(adam, inputs)
    assert_same(inputs, before)
    names = [node.name for node in program.gm.graph.nodes if str(node.target) == "aten.mul.Tensor"]
    for made in (lowered(program), lowered(program, {names[0]: STORE})):
        assert_close(results(program, made), eager(program))


def test_constants_come_with_the_source() -> None:
    table, x = torch.randn(40).reshape(4, 10).t(), torch.randn(3, 10)
    traced = make_fx(lambda x: [x @ table, x * table[:, 0]])(x)
    program = FxProgram(traced, (describe(x),))
    assert lowered(program).digest != lowered(capture_step(traced, [x])).digest  # where it is an input
    assert_close(results(program, lowered(program)), eager(program))


def test_what_a_step_closes_over_is_an_input() -> None:
    rows = torch.tensor([2, 0, 1])
    program = capture_step(lambda x: [x[rows].exp()], [torch.randn(3, 10)])
    assert sorted(spec.dtype for spec in program.inputs) == ["float32", "int64"]
    assert_close(results(program, lowered(program)), eager(program))


def test_without_decisions_it_is_inductors_own() -> None:
    inputs = [torch.randn(64, 48), torch.randn(48)]
    own = own_sources(lambda: inductor.compile_fx(make_fx(two_readers)(*inputs), inputs))
    assert own == [lowered(capture_step(two_readers, inputs)).digest]


def layers() -> dict[str, tuple[nn.Module, Tensor]]:
    """Forward graphs that keep values for the backward graph; convolutions, which Inductor lays out otherwise."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU())
    images = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU(), nn.Conv2d(12, 12, 3))
    return {"dense": (dense, torch.randn(8, 16)), "images": (images, torch.randn(2, 4, 16, 16))}


@pytest.mark.parametrize("name", ["dense", "images"])
def test_forward_and_backward_are_inductors_own(name: str, tmp_path: Path) -> None:
    layer, x = layers()[name]
    made = capture_compiled(layer, x)
    assert list(made) == ["forward", "backward"] and made["backward"].donated
    read = {}
    for phase, program in made.items():
        save_program(tmp_path / f"{phase}.program.json.gz", program)
        read[phase] = lowered(load_program(tmp_path / f"{phase}.program.json.gz")).digest
    torch._dynamo.reset()
    assert own_sources(lambda: torch.compile(layer)(x).sum().backward()) == list(read.values())


@pytest.mark.parametrize("name", ["swiglu_bwd", "rmsnorm_rotary"])
def test_of_real_programs_as_well(name: str, tmp_path: Path) -> None:
    fn, inputs = runpy.run_path(str(check_data("programs/programs.py")))["P"][name]()
    save_program(tmp_path / "p.program.json.gz", capture_step(fn, inputs))
    own = own_sources(lambda: inductor.compile_fx(make_fx(fn)(*inputs), inputs))
    assert own == [lowered(load_program(tmp_path / "p.program.json.gz")).digest]


def test_other_versions_and_what_it_cannot_lower_are_one_error(
    program: FxProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = FxProgram(program.gm, program.inputs)
    with replaced(GraphLowering, "codegen", None), pytest.raises(GraphError, match="cannot lower it"):
        lowered(broken)
    monkeypatch.setattr(lowering, "KNOWN", ("1.0",))
    with pytest.raises(UserError, match=r"install `torch==1\.0\.\*`"):
        lowered(program)
