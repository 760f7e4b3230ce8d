"""Fusion decisions in the user's own program: generated code is otherwise where that is asked, outputs are equal."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

import graphopt
from graphopt.core.compiler import Numerics
from graphopt.core.errors import UserError
from graphopt.graphs.readers.pytorch.capture import sources
from graphopt.graphs.readers.pytorch.program_file import (
    FxProgram,
    key_of,
    packed_program,
    save_program,
    unpacked_program,
)
from graphopt.hardware.apply import allocator as allocating
from graphopt.hardware.code_time import CodeTime
from graphopt.hardware.costs.inductor import NOTHING, CompilerRequest
from graphopt.hardware.inductor.captured import as_graph, capture_compiled
from graphopt.hardware.inductor.lowering import digest_of
from graphopt.hardware.measure.builds import Builds, Built
from graphopt.hardware.measure.kinds import torch_kinds
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Failure
from graphopt.report.apply import compile_backend
from graphopt.report.apply.compile_backend import alike_of, decided
from graphopt.report.apply.optimized import TOLERANCE, Check, Optimized, _kept
from graphopt.run.records.answer_file import graph_inside, load, write


class Tiny(nn.Module):
    """`sin` has one reader forward, so that Inductor inlines it; backward `cos` has one."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, 48))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.sin(x * self.w) * 2.0).sum(-1)


X = torch.linspace(-3.0, 3.0, 64 * 48).reshape(64, 48)


@pytest.fixture(scope="module")
def programs() -> dict[str, FxProgram]:
    return capture_compiled(Tiny(), X)


def named(program: FxProgram, target: str) -> str:
    (name,) = (node.name for node in program.gm.graph.nodes if str(node.target) == target)
    return str(name)


def step(backend: str | Callable[..., Any]) -> tuple[list[Tensor], list[str]]:
    """(output and gradient, sources of forward and backward)."""
    torch._dynamo.reset()
    module = Tiny()

    def run() -> list[Tensor]:
        out = torch.compile(module, backend=backend)(X)
        out.backward(torch.linspace(1.0, 2.0, 64))
        assert module.w.grad is not None
        return [out.detach(), module.w.grad]

    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        return run_and_get_code(run)


def buffers(source: str) -> int:
    return source.count("= empty_strided_cpu(")


def test_a_key_is_that_of_the_file(programs: dict[str, FxProgram]) -> None:
    assert set(programs) == {"forward", "backward"}
    keys = [key_of(program.gm, program.phase) for program in programs.values()]
    read = [unpacked_program(packed_program(program), "here") for program in programs.values()]
    assert [key_of(program.gm, program.phase) for program in read] == keys and len(set(keys)) == 2


@pytest.mark.parametrize(("phase", "target"), [("forward", "aten.sin.default"), ("backward", "aten.cos.default")])
def test_ops_name_their_line_in_the_model(programs: dict[str, FxProgram], phase: str, target: str) -> None:
    graph = as_graph(programs[phase], name=phase, family="tiny")
    line = Tiny.forward.__code__.co_firstlineno + 1
    assert sources(graph)[named(programs[phase], target)].line.endswith(f"test_inductor.py:{line}")


def test_what_is_decided_is_carried_out_forward_and_backward(programs: dict[str, FxProgram]) -> None:
    forward, backward = programs["forward"], programs["backward"]
    cut = CompilerRequest({named(forward, "aten.sin.default"): "cut"}, {"reads_threshold": 1})
    stored = CompilerRequest({named(backward, "aten.cos.default"): "store"}, {})
    asked = {key_of(forward.gm, "forward"): cut, key_of(backward.gm, "backward"): stored}
    carried = set[str]()
    usual, sources = step("inductor")
    made, changed = step(decided(asked, carried))
    assert carried == set(asked)
    assert [buffers(c) - buffers(s) for c, s in zip(changed, sources, strict=True)] == [1, 1]
    assert all(torch.equal(a, b) for a, b in zip(usual, made, strict=True))


def test_without_a_decision_the_code_is_inductors() -> None:
    others = decided({"other": CompilerRequest({"sin": "store"}, {})})
    made, usual = (step(backend)[1] for backend in (others, "inductor"))
    assert [digest_of(source) for source in made] == [digest_of(source) for source in usual]


def test_a_graph_without_a_choice_is_left_to_inductor() -> None:
    product = torch.compile(torch.mm, backend="graphopt", mode="reduce-overhead")
    assert torch.equal(product(X.T, X), torch.mm(X.T, X))


@pytest.fixture(scope="module")
def best() -> Optimized:
    """Two evaluations of a tiny graph, judged by the process that searched: the parts together, not good times."""
    short = [f"{which}.measuring.{what}" for which in ("cost", "judge") for what in ("seconds=0.05", "rounds=3")]
    return graphopt.optimize(
        Tiny(), X, cost="inductor", algo="auto", budget=2, settings=["judge.fresh_processes=0", *short]
    )


def test_optimize_gives_a_module_and_a_report(best: Optimized) -> None:
    (answer,) = best.answers.values()
    with torch.no_grad():
        assert torch.equal(best(X), torch.compile(best.module)(X))
    report, prices = str(best), answer.prices
    assert list(best.answers) == ["inference"] and answer.facts["evals"] == 2
    assert f"default {1e3 * prices['initial']:.4g} ms" in report and "2 evaluations" in report
    assert f"noise {100 * prices['noise']:.2g} %" in report
    assert list(best.state_dict()) == ["module.w"]
    assert "test_inductor.py:" in answer.decided.source("sin")


def stored_sin(best: Optimized, folder: Path) -> Path:
    """A folder with the answer's file, in which `sin` is stored otherwise than before."""
    told = load(best.save(folder) / "inference.npz")
    op = told.op("sin")
    told.choices[:] = told.default
    told.choices[op, 0] = 1 - told.default[op, 0]
    write(folder / "inference.npz", told, graph_inside(folder / "inference.npz") or b"")
    return folder


def test_the_backend_takes_a_folder(best: Optimized, tmp_path: Path) -> None:
    options = {"decisions": stored_sin(best, tmp_path)}
    ((_, asked),) = compile_backend.decisions_in(tmp_path)
    assert asked == CompilerRequest({"sin": "store"}, {})
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(Tiny(), backend=compile_backend.backend, options=options)(X), best(X))
    with pytest.raises(UserError, match="no decision files"):
        compile_backend.decisions_in(tmp_path / "none")


def test_a_decision_is_kept_on_other_shapes_unless_a_loss_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        program = capture_compiled(Tiny(), X)["inference"]
    cut = dict([alike_of(program, CompilerRequest({named(program, "aten.sin.default"): "cut"}, {}))])
    for ratio, dynamic, more in ((0.9, False, 1), (1.1, False, 0), (1.1, True, 1)):
        torch._dynamo.reset()
        monkeypatch.setattr(CodeTime, "ratio", lambda self, features, default, told=ratio: told)
        with torch.no_grad(), pytest.warns(UserWarning, match="what was decided for"):
            run = torch.compile(Tiny(), backend=decided({}, alike=cut), dynamic=dynamic)
            made, (source,) = run_and_get_code(lambda run=run: run(X[:32]))
            assert torch.equal(made, torch.compile(Tiny(), dynamic=dynamic)(X[:32]))
        assert buffers(source) == 1 + more


def corrected(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """As in optimisers: Inductor computes the powers, of one number each, for every element."""
    return x / (1 - 0.9**t) / ((y / (1 - 0.999**t)).sqrt() + 1e-8)


def test_without_decisions_the_policy_decides_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "compare", lambda *_: pytest.fail("nothing is searched for"))
    x, y, t = torch.rand(256, 512), torch.rand(256, 512), torch.tensor(7.0)
    torch._dynamo.reset()
    made, (source,) = run_and_get_code(lambda: torch.compile(corrected, backend=compile_backend.backend)(x, y, t))
    torch._dynamo.reset()
    usual, (default,) = run_and_get_code(lambda: torch.compile(corrected)(x, y, t))
    assert torch.equal(made, usual) and buffers(source) > buffers(default)
    without_loops = torch.compile(lambda x: x.t(), backend=compile_backend.backend)
    assert torch.equal(without_loops(x), x.t())


COMPARED: list[tuple[Numerics, Built | Failure, bool]] = [
    ("equal", {"equal": True, "ratio": 0.9}, True),
    ("equal", {"equal": True, "ratio": 1.02}, False),
    ("equal", {"equal": False, "ratio": 0.9}, False),
    ("close", {"equal": False, "ratio": 0.9}, True),
    ("close", Failure("does not compile"), False),
]


@pytest.mark.parametrize(("numerics", "found", "kept"), COMPARED)
def test_what_is_decided_by_prediction_is_kept_where_it_is_faster_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, numerics: Numerics, found: Built | Failure, kept: bool
) -> None:
    torch._dynamo.reset()
    program = capture_compiled(corrected, (torch.rand(64, 512), torch.rand(64, 512), torch.tensor(7.0)))["inference"]
    wanted, ask, answer = CompilerRequest({}, {"reads_threshold": 1}), Builds.ask, Future[Built | Failure]()
    answer.set_result(found)
    monkeypatch.setattr(compile_backend, "request_of", lambda *_: wanted)
    monkeypatch.setattr(Builds, "ask", lambda *of: answer if of[1] == "compare" else ask(*of))
    assert compile_backend.unmeasured(program, numerics) == (wanted if kept else NOTHING)


def test_a_cache_that_cannot_be_written_leaves_a_graph_as_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "file" / "cache"))
    program = capture_compiled(torch.sin, (torch.rand(3, 5),))["inference"]
    with pytest.warns(match="nothing is decided about a graph .inference.: cannot write .* variable GRAPHOPT_CACHE"):
        assert compile_backend.unmeasured(program, "equal") == NOTHING
    monkeypatch.delenv("GRAPHOPT_CACHE")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # a user without a home
    assert graphopt.cache_dir() == Path("/.cache/graphopt")


def saturated(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """Probabilities of large numbers are 0 and 1, whatever the order of their sum. The bias has no unit stride, so that
    storing the sum with it lets the rest be vectorised."""
    return torch.softmax(torch.bmm(x * 3e4, y) + bias, -1)


def test_saturated_softmaxes_do_not_hide_other_bits(tmp_path: Path) -> None:
    inputs = torch.randn(4, 32, 66), torch.randn(4, 66, 96), torch.randn(32, 96, 4).permute(2, 0, 1)
    captured = capture_compiled(saturated, inputs)["inference"]
    save_program(tmp_path / "drawn.json.gz", compile_backend._program(captured.gm, captured.phase))
    asked = {"program": str(tmp_path / "drawn.json.gz"), "requests": {named(captured, "aten.add.Tensor"): "store"}}
    default, stored = (
        torch_kinds.payload_of({**asked, "requests": one, "knobs": {}}) for one in ({}, asked["requests"])
    )
    assert torch_kinds._bits(default, 1.0) == torch_kinds._bits(stored, 1.0)
    assert not torch_kinds.compare_request({**asked, "knobs": {}})["equal"]


def test_equal_is_to_the_bit_and_close_within_the_tolerance() -> None:
    one, near, far = (torch.tensor([1.0, 1.0 + delta]) for delta in (0.0, TOLERANCE / 2, TOLERANCE * 2))
    assert Check("equal", [one]).holds([one.clone()]) and not Check("equal", [one]).holds([near])
    assert Check("close", [one]).holds([near]) and not Check("close", [one]).holds([far])
    assert not Check("close", [one]).holds([])


def test_decisions_that_change_outputs_are_undone() -> None:
    """The one of `backward` does, alone or not; the other one stays."""

    def outcome(names: list[str]) -> list[Tensor]:
        return [torch.tensor([1.0 + ("backward" in names)])]

    assert _kept(["forward", "backward"], outcome, "equal") == ["forward"]
    assert _kept(["backward"], outcome, "equal") == [] and _kept(["forward"], outcome, "equal") == ["forward"]


FAULTS = """
import resource, torch
from graphopt.hardware.apply.allocator import keep_memory

def faults(x=torch.zeros(2**24)):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        x + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first, took, later = faults(), keep_memory(), [faults() for _ in range(6)]
assert took and 100 * later[-1] < first, (first, later)
"""


FORKS = """
import resource, numpy as np
from graphopt.hardware.measure.timing_worker import Fork

def faults(runs):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(runs):
        blocks = [np.ones(1 << 18) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def frees_more(runs):
    np.ones(1 << 21)
    return 0.0

faults.bits = frees_more.bits = ""
one, other = Fork(lambda: faults), Fork(lambda: frees_more)
alone, beside = (one(9), other(9)), (one(9), other(9))
frees_more(1), faults(1)
assert min(alone[0], beside[0]) > 9000 and faults(9) < 100, (alone, beside)
"""


LAYOUTS = """
import numpy as np
from graphopt.hardware.measure.timing_worker import Fork

def place(runs):
    return float(np.ones(1 << 15).ctypes.data)

place.bits = ""
places = [Fork(lambda: place, layout)(1) for layout in (0, 0, 1, 1, 2)]
assert places[0] == places[1] != places[2] == places[3] != places[4] != places[0], places
"""


@pytest.mark.parametrize("program", [FAULTS, FORKS, LAYOUTS], ids=["kept", "forks", "layouts"])
def test_pages_fault_by_what_a_process_frees_and_keeps(program: str) -> None:
    """None where memory is kept, or a larger block was freed; as ever in a fork beside another that frees one. Blocks
    lie elsewhere in each layout."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_backend_asks_malloc_only_where_told(
    best: Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[bool]()
    monkeypatch.setattr(allocating, "keep_memory", lambda: asked.append(True))
    folder, x = best.save(tmp_path), torch.randn(2, 2)
    for allocator, calls in (("user", 0), ("kep", 0), ("keep", 1)):
        torch._dynamo.reset()
        options = {"decisions": folder, "allocator": allocator}
        with nullcontext() if allocator == "user" else pytest.raises(Exception, match=r"another|available"):
            torch.compile(torch.sin, backend=compile_backend.backend, options=options)(x)
        assert len(asked) == calls
