"""What runs on a GPU, where torch can use one: programs captured there, Triton kernels under decisions, prices by
events, bytes of CUDA's allocator, training. Programs of a GPU are read, and refused in words, everywhere.
"""

import gzip
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import command
from hardware.quick import turns
from hardware.small_programs import plans
from torch import Tensor, nn
from torch._dynamo.device_interface import CudaInterface

import graphopt
from graphopt.core.compiler import knobs
from graphopt.core.errors import ConfigError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.registry import option
from graphopt.graphs.readers.pytorch.program_file import (
    FxProgram,
    load_program,
    make_inputs,
    packed_program,
    save_program,
    unpacked_program,
)
from graphopt.hardware.costs.inductor import Inductor
from graphopt.hardware.costs.live_bytes import LiveBytes
from graphopt.hardware.costs.whole_program import TorchEager
from graphopt.hardware.inductor.captured import as_graph, capture_compiled, capture_step
from graphopt.hardware.inductor.lowering import Request, digest_of, own_choices
from graphopt.hardware.requests import CompilerRequest, check_device, plans_of
from graphopt.report.apply.compile_backend import unmeasured
from graphopt.rewrite.ir.program_builder import ProgramBuilder, with_random_weights
from graphopt.run.config.construct import construct
from tests.hardware.programs import adam, lowered, only, results, two_reader_program, two_readers
from tests.hardware.test_live_bytes import captured

HAS = torch.cuda.is_available()
gpu = pytest.mark.skipif(not HAS, reason="torch can use no GPU here")
CHOICES = {"add": False, "exp": True}


def said_to_be_on_a_gpu(choices: dict[str, bool] | None = CHOICES) -> FxProgram:
    return replace(two_reader_program(), device="cuda", choices=choices)


def test_a_program_of_a_gpu_is_read_anywhere() -> None:
    """With its devices and the compiler's own choices, of which the default plan is made."""
    read = unpacked_program(packed_program(said_to_be_on_a_gpu()), "it")
    values = [node.meta["val"] for node in read.gm.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert read.device == "cuda" and all(str(value.device) == "cuda:0" for value in values)
    graph = as_graph(read, name="it", family="it")
    said = {op: of["stored"] for op, of in zip(graph.op_names, graph.attributes) if "stored" in of}
    assert said == CHOICES


@pytest.mark.parametrize("changed, said", [({"device": "tpu"}, "'tpu' is no device"), ({"choices": 3}, "no program")])
def test_a_damaged_device_is_refused(changed: dict[str, Any], said: str) -> None:
    stored = json.loads(gzip.decompress(packed_program(said_to_be_on_a_gpu()))) | changed
    with pytest.raises(GraphError, match=said):
        unpacked_program(gzip.compress(json.dumps(stored).encode()), "it")


def test_costs_of_one_device_refuse_programs_of_another() -> None:
    content = packed_program(said_to_be_on_a_gpu())
    graph = replace(as_graph(unpacked_program(content, "it"), name="it", family="it"), program=content)
    with pytest.raises(ConfigError, match="it runs on cuda, and inductor prices code for cpu; do so, or capture"):
        check_device(graph, "cpu", "inductor", "do so")
    with pytest.raises(ConfigError, match="generated_code prices code for cpu; take cost=inductor and"):
        construct(option("cost", "generated_code"), "cost").price(plans_of(graph, [CompilerRequest({}, {})]))
    check_device(graph, "cuda", "inductor", "")


def test_the_backend_leaves_graphs_on_a_gpu_alone() -> None:
    with pytest.warns(UserWarning, match=r"a graph \(inference\) on a GPU"):
        assert unmeasured(said_to_be_on_a_gpu(), "equal") == CompilerRequest({}, {})


def test_knobs_are_of_a_device() -> None:
    names = {device: {knob.name for knob in knobs("close", device)} for device in ("cpu", "cuda")}
    assert names["cpu"] & names["cuda"] == {"reads_threshold", "opcount_threshold", "acc_reads_threshold"}
    assert "simdlen" in names["cpu"] and "combo_kernels" in names["cuda"]


@pytest.mark.skipif(HAS, reason="there is a GPU")
def test_without_a_gpu_nothing_is_captured_for_one(tmp_path: Path) -> None:
    dataset = construct(option("dataset", "lowered") | {"device": "cuda", "only": ["norm_residual"]}, "dataset")
    with pytest.raises(GraphError, match=r"dataset\.device=cuda needs a GPU"):
        dataset.graphs("test")


# ---- Triton's source, which needs no GPU to be written


@pytest.fixture(scope="module")
def content() -> bytes:
    return packed_program(said_to_be_on_a_gpu(None))


@pytest.fixture
def said_to_be_there(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100, to whoever asks before a kernel is compiled."""
    hints = pytest.importorskip("torch._inductor.runtime.hints")
    facts = {"multi_processor_count": 132, "cc": 90, "major": 9, "regs_per_multiprocessor": 65536, "warp_size": 32,
             "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024}  # fmt: skip
    fields = set(hints.DeviceProperties._fields)
    known = hints.DeviceProperties(type="cuda", index=0, **{k: v for k, v in facts.items() if k in fields})
    asked = SimpleNamespace(name="H100", minor=0, total_memory=80 << 30, gcnArchName="", **facts)
    monkeypatch.setattr(hints.DeviceProperties, "create", classmethod(lambda cls, device: known))
    monkeypatch.setattr("torch.utils._triton.triton_hash_with_backend", lambda: "none")
    monkeypatch.setattr("torch._inductor.scheduler.has_triton", lambda: True)  # which may have been asked before
    monkeypatch.setattr("torch.cuda._get_device_properties", lambda *_: asked, raising=False)
    for name, value in {"get_device_properties": asked, "get_device_capability": (9, 0), "is_available": True,
                        "current_device": 0, "device_count": 1, "_lazy_init": None}.items():  # fmt: skip
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, value=value: value)
    monkeypatch.setattr(CudaInterface.Worker, "get_device_properties", staticmethod(lambda *_: asked))
    monkeypatch.setattr(CudaInterface, "get_compute_capability", staticmethod(lambda *_: 90))
    monkeypatch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None)


@pytest.mark.skipif(HAS or find_spec("triton") is None, reason="there is a GPU, or no Triton")
def test_requests_and_knobs_reach_triton_source(said_to_be_there: None, content: bytes) -> None:
    """On a GPU exp is fused with both of its readers by default."""
    read = unpacked_program(content, "it")
    add, exp = only(read, "aten.add.Tensor"), only(read, "aten.exp.default")
    assert own_choices(read) == dict.fromkeys([add, exp, only(read, "aten.sub.Tensor")], False)
    plain, store, cut, tiled = (lowered(read, *asked, **knob) for asked, knob in [
        ((), {}), (({add: Request.STORE},), {}), (({exp: Request.CUT},), {}), ((), {"nd_tiling": 1})])  # fmt: skip
    assert "def triton(self" in plain.source and store.stored == plain.stored | {add}
    assert (plain.features["kernels"], cut.features["kernels"]) == (1, 2) and exp in cut.stored
    assert len({made.digest for made in (plain, store, cut, tiled)}) == 4
    assert digest_of(plain.source.replace("_fused_add", "_fused_sub")) == plain.digest  # names do not count


# ---- on a GPU


def on_gpu(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda") for shape in shapes]


@pytest.fixture(scope="module")
def program() -> FxProgram:
    return capture_step(two_readers, on_gpu((64, 48), (48,)))


def cuda_results(program: FxProgram, **requests: Request) -> list[Tensor]:
    return results(program, lowered(program, {only(program, f"aten.{op}"): word for op, word in requests.items()}))


@gpu
def test_requests_change_triton_kernels_and_not_what_they_compute(program: FxProgram) -> None:
    add, exp = only(program, "aten.add.Tensor"), only(program, "aten.exp.default")
    plain, store, cut = (lowered(program, of) for of in ({}, {add: Request.STORE}, {exp: Request.CUT}))
    assert "async_compile.triton(" in plain.source and store.stored == plain.stored | {add}
    assert cut.features["kernels"] == plain.features["kernels"] + 1
    exact = program.gm(*[value.double() for value in make_inputs(program.inputs, 0, "cuda")])
    for made in (plain, store, cut):
        for found, true in zip(results(program, made), exact):
            assert torch.allclose(found.double(), true, rtol=1e-5, atol=1e-5)


@gpu
@pytest.mark.parametrize("knob", [knob.name for knob in knobs("close", "cuda")])
def test_knobs_leave_results_close(program: FxProgram, knob: str) -> None:
    plain, turned = results(program, lowered(program)), results(program, lowered(program, **{knob: 1}))
    for a, b in zip(plain, turned):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)


@gpu
def test_updates_in_place_arrive() -> None:
    program = capture_step(adam, on_gpu((300,), (300,), (300,)))
    inputs = make_inputs(program.inputs, 0, "cuda")
    program.gm(*inputs)
    for found, true in zip(results(program, lowered(program)), inputs):
        assert torch.allclose(found, true, rtol=1e-5, atol=1e-6)


@gpu
def test_forward_and_backward_keep_their_device_in_files(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Tanh()).cuda()
    programs = capture_compiled(module, on_gpu((4, 16)))
    assert sorted(programs) == ["backward", "forward"]
    for name, made in programs.items():
        save_program(tmp_path / f"{name}.program.json.gz", made)
        read = load_program(tmp_path / f"{name}.program.json.gz")
        assert read.device == made.device == "cuda"
        assert lowered(read).digest == lowered(made).digest


def graph_of(program: FxProgram) -> Graph:
    return replace(as_graph(program, name="it", family="it"), program=packed_program(program))


def inductor(folder: Path, **changes: Any) -> Inductor:
    how = turns(device="cuda", limit_seconds=120.0, seconds=0.2, block_seconds=0.001)
    return Inductor(name="inductor", table=str(folder / "t.jsonl"), builders=2, build_seconds=120, allocator="user",
                    measuring=how, **{"environment": None, "fresh_processes": 0} | changes)  # fmt: skip


@gpu
def test_a_plan_is_priced_by_events_and_replays(tmp_path: Path) -> None:
    program = capture_step(two_readers, on_gpu((4096, 1024), (1024,)))
    graph, exp = graph_of(program), only(program, "aten.exp.default")
    asked = plans_of(graph, [CompilerRequest({}, {}), CompilerRequest({exp: "cut"}, {})])
    cost = inductor(tmp_path)
    prices = cost.price(asked).cost
    assert 1e-6 < prices[0] < 1e-3 and prices[1] > 1.2 * prices[0]  # exp goes to memory and comes back
    assert torch.cuda.get_device_name(0) in cost.service.environment
    again = inductor(tmp_path, environment=cost.service.environment)
    assert np.array_equal(again.price(asked).cost, prices)
    raced = inductor(tmp_path, fresh_processes=2).price(asked).cost
    assert raced[1] > 1.2 * raced[0]


@gpu
def test_a_step_that_writes_into_its_inputs_is_priced(tmp_path: Path) -> None:
    graph = graph_of(capture_step(adam, on_gpu((1000, 1000), (1000, 1000), (1000, 1000))))
    (price,) = inductor(tmp_path).price(plans_of(graph, [CompilerRequest({}, {})])).cost
    assert 1e-6 < price < 1e-3


@gpu
def test_a_rewritten_program_is_priced_as_one_cuda_graph(tmp_path: Path) -> None:
    b, made = ProgramBuilder(), list[int]()
    x = b.input((96, 96))
    for _ in range(8):
        x = b.op("tanh", inputs=(b.linear(x, 96),))
        made.append(x)
    whole = with_random_weights(b.build(made[-1]), 0)
    short = whole.with_outputs((made[1],))
    how = turns(device="cuda", limit_seconds=120.0, seconds=0.3, block_seconds=0.001)
    cost = TorchEager(name="gpu", table=str(tmp_path / "t.jsonl"), environment=None, fresh_processes=0, measuring=how)
    full, part = cost.price_programs([whole, short])
    assert part < 0.6 * full < 1e-3


@gpu
@pytest.mark.parametrize("backward", [False, True])
def test_bytes_of_cuda_by_the_table_are_those_of_a_run(backward: bool) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.second(torch.relu(y) + torch.tanh(y) * torch.arange(256)).exp().sum()

    graph = captured(Layers(), torch.randn(32, 64), backward)
    asked = plans(graph, np.random.default_rng(0).random((5, graph.num_ops)))
    told, run = (LiveBytes(name="b", device="cuda", execute=execute, threads=1).price(asked).cost
                 for execute in (False, True))  # fmt: skip
    assert np.array_equal(told, run)


@gpu
def test_a_module_on_a_gpu_is_optimised(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.LayerNorm(256)).cuda()
    x = torch.randn(512, 256, device="cuda")
    with torch.no_grad():
        made = graphopt.optimize(module, [x], cost="inductor", budget=3, backward=False, numerics="close",
                                 progress=False)  # fmt: skip
        assert torch.allclose(made(x), module(x), atol=1e-4)


@gpu
def test_a_policy_trains_on_a_gpu(tmp_path: Path) -> None:
    words = ["task=fusion", "algo=go", "dataset=synthetic", "trainer.accelerator=gpu", "trainer.steps=2"]
    done = command(tmp_path, *words, "budget.evals=[4]")
    assert done.code == 0, done.err
