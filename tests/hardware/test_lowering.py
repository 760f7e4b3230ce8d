"""Lowering under decisions: every hook still acts, results stay equal, and without decisions it is Inductor's own;
programs as graphs; what is counted in generated source.
"""

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

from graphopt.core.compiler import Knob, compiler_choice, knobs
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.readers.pytorch.program_file import FxProgram, describe, load_program, save_program
from graphopt.graphs.readers.pytorch.program_inputs import for_eager
from graphopt.hardware.inductor import lowering
from graphopt.hardware.inductor.captured import as_graph, capture_compiled, capture_step
from graphopt.hardware.inductor.code_features import source_work
from graphopt.hardware.inductor.lowering import LARGEST_TREE, Request, _complete, compile_source, digest_of, replaced
from graphopt.hardware.inductor.truth_values import missed_shares
from graphopt.hardware.program_run import Session
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
            self.program = for_eager(graph.orig_gm)

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
    assert inline.stored == plain.stored - {exp}
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
        assert made.source.count(" * ") < LARGEST_TREE * len(made.stored)


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


class Apart(nn.Module):
    """Rows against all others; TorchInductor's `eye` counts so many in a type of which eager torch has no `arange`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return ((y @ y.T).exp() * (1 - torch.eye(len(x)))).sum(1)


def layers() -> dict[str, tuple[nn.Module, Tensor]]:
    """Forward graphs that keep values for the backward graph; convolutions, which Inductor lays out otherwise."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU())
    images = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU(), nn.Conv2d(12, 12, 3))
    return {"dense": (dense, torch.randn(8, 16)), "images": (images, torch.randn(2, 4, 16, 16)),
            "apart": (Apart(), torch.randn(300, 4))}  # fmt: skip


@pytest.mark.parametrize("name", ["dense", "images", "apart"])
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


def test_what_counts_in_unsigned_integers_runs_op_by_op(tmp_path: Path) -> None:
    x = torch.randn(300, 4)
    module = Apart().requires_grad_(False)
    program = capture_compiled(module, x)["inference"]
    save_program(tmp_path / "p.program.json.gz", program)
    read = load_program(tmp_path / "p.program.json.gz").gm
    with pytest.raises(NotImplementedError, match="UInt16"):
        read(*module.parameters(), x)
    plain = for_eager(read)
    assert torch.allclose(plain(*module.parameters(), x)[0], module(x)) and for_eager(plain) is plain
    assert missed_shares(program)  # found by a run op by op
    assert Session(as_graph(program, name="apart", family="own"), "cpu", 1).own_peak > 0


@pytest.mark.slow
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


# --- Programs as graphs, with what Inductor decides by itself; what `torch.compile` makes of functions and modules.


def graph_of(program: FxProgram) -> Graph:
    return as_graph(program, name="g", family="f")


def said(graph: Graph) -> dict[str, bool]:
    return {name: of["stored"] for name, of in zip(graph.op_names, graph.attributes) if "stored" in of}


def test_ops_with_a_choice_say_what_the_compiler_does() -> None:
    program = two_reader_program()
    exp, add = only(program, "aten.exp.default"), only(program, "aten.add.Tensor")
    graph = graph_of(program)
    assert said(graph) == {exp: True, add: False, only(program, "aten.sub.Tensor"): False}  # no output, nor the sum
    asked = compiler_choice(graph)
    assert asked is not None and asked.inline.sum() == 2 and graph.program is program


def test_a_choice_is_one() -> None:
    """Whatever has the attribute can be stored and can be inlined, and nothing else can be inlined."""
    norm = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU())
    program = capture_compiled(norm, torch.randn(4, 8))["backward"]
    free = set(said(graph_of(program)))
    calls = [node.name for node in program.gm.graph.nodes if node.op == "call_function"]
    assert 5 < len(free) < len(calls)
    assert not free & lowered(program, dict.fromkeys(calls, Request.INLINE)).stored
    assert free <= lowered(program, dict.fromkeys(free, Request.STORE)).stored


def test_updates_in_place_are_ops() -> None:
    graph = graph_of(capture_step(adam, [torch.randn(50) for _ in range(3)]))
    assert sum(name.startswith("copy_") for name in graph.op_names) == 2
    assert graph.is_output.sum() == 2 and not graph.is_weight.any()


def test_a_step_takes_its_own_gradients() -> None:
    def step(x: Tensor, w: Tensor) -> list[Tensor]:
        w = w.detach().requires_grad_(True)
        return list(torch.autograd.grad((x @ w).tanh().sum(), w))

    graph = graph_of(capture_step(step, [torch.randn(4, 8), torch.randn(8, 3)]))
    assert graph.is_output.sum() == 1 and len(graph.op_names) > 4


def test_a_function_without_gradients_is_one_graph_and_later_parts_are_numbered() -> None:
    def broken(x: Tensor) -> Tensor:
        x = x.exp()
        torch._dynamo.graph_break()
        return x.sum()

    made = capture_compiled(lambda x: [x.exp().sum(-1)], [torch.randn(4, 8)])
    assert list(made) == ["inference"]
    assert [spec.shape for spec in made["inference"].inputs] == [(4, 8)]
    assert list(capture_compiled(broken, [torch.randn(4, 8)])) == ["inference", "inference.1"]


def test_what_cannot_be_captured_is_one_sentence() -> None:
    with pytest.raises(GraphError) as error:
        capture_step(lambda x: [x[x > 0]], [torch.randn(4)])
    assert "\n" not in str(error.value)
    with pytest.raises(GraphError, match="no graph"):
        capture_compiled(lambda x: 3, [torch.randn(4)])


# --- What is counted in generated source, against counts by hand.


KERNEL = """x = async_compile.cpp_pybinding(['float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0)
{
    {
        #pragma GCC ivdep
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(10L); x0+=static_cast<int64_t>(1L))
        {
            for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(40L); x1+=static_cast<int64_t>(16L))
            {
                {
                    if(C10_LIKELY(x1 >= static_cast<int64_t>(0) && x1 < static_cast<int64_t>(32L)))
                    {
                        auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x1 + 40L*x0), static_cast<int64_t>(16));
                        auto tmp1 = in_ptr0[static_cast<int64_t>(x0)];
                        auto tmp2 = static_cast<float>(64.0);
                        auto tmp3 = tmp1 / tmp2;
                        auto tmp4 = at::vec::Vectorized<float>(tmp3);
                        auto tmp5 = tmp0 * tmp4;
                        auto tmp6 = decltype(tmp5)(1)/(decltype(tmp5)(1) + tmp5.neg().exp());
                        tmp6.store(out_ptr0 + static_cast<int64_t>(x1 + 40L*x0));
                    }
                    if(C10_UNLIKELY(x1 >= static_cast<int64_t>(32L) && x1 < static_cast<int64_t>(40L)))
                    {
                        for (int64_t x1_tail = static_cast<int64_t>(32L);x1_tail < static_cast<int64_t>(40L); x1_tail++)
                        {
                            auto tmp0 = in_ptr0[static_cast<int64_t>(x1_tail + 40L*x0)];
                            auto tmp1 = std::tanh(tmp0);
                            out_ptr0[static_cast<int64_t>(x1_tail + 40L*x0)] = tmp1;
                        }
                    }
                }
            }
        }
    }
}
''')"""  # noqa: E501


def test_instructions_run_as_often_as_their_loops() -> None:
    """10 rows of two whole vectors, and of 8 numbers one by one."""
    work = source_work(KERNEL)
    assert work == {
        "v.load": 20, "v.store": 20, "v.exp": 20, "v.div": 20,
        "v.simple": 20 * 3,  # a product, a sum and a change of sign
        "s.load": 20 + 80, "s.div": 20, "s.tanh": 80, "s.store": 80,
    }  # fmt: skip


def test_what_makes_vectors_slow_counts_beside() -> None:
    whole, parts = source_work(KERNEL), KERNEL.replace("static_cast<int64_t>(16));", "static_cast<int64_t>(5L));")
    parts = parts.replace("(x1 + 40L*x0));", "(x1 + 40L*x0), static_cast<int64_t>(5L));")
    assert source_work(parts) - whole == {"v.part_load": 20, "v.part_store": 20}
    pairs = KERNEL.replace("tmp0 * tmp4", "at::vec::VecMask<int64_t,2>(tmp0 * tmp4)")
    assert source_work(pairs) - whole == {"v.wide": 20}
    aside = KERNEL.replace("(x1 + 40L*x0)", "(x0 + 40L*x1)")
    assert source_work(aside) - whole == {"v.strided": 40}
    truth = KERNEL.replace("float* out_ptr0", "bool* out_ptr0")
    assert source_work(truth) - whole == {"v.mask_store": 20, "s.mask_store": 80}
    missed = source_work(truth, [0.0, 0.25]) - source_work(truth)
    assert missed == {"v.missed_store": 20 * 16 // 4, "s.missed_store": 80 // 4}
