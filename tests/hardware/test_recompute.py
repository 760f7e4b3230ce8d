"""What torch asks while it compiles: our solver and our partitioner, executed; bytes as the allocator reports them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from steps import stack
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.compile_fx import compile_fx
from torch.utils.checkpoint import checkpoint

from graphopt.core.graph import GraphError
from graphopt.core.split import step_of
from graphopt.graphs.readers.pytorch.step_capture import capture_step
from graphopt.hardware.apply.recompute import SETTINGS, BudgetSolver, Partitioner, eager_backend
from graphopt.hardware.program_run import allocated_peak

FAST = replace(SETTINGS, evals=300)
TORCHS = torch._functorch.partitioners.min_cut_rematerialization_partition
BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05)


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=100):
        yield
    torch._dynamo.reset()


@contextmanager
def budget(share: float, solver: Any = "dp") -> Iterator[None]:
    with functorch.patch(activation_memory_budget=share, activation_memory_budget_solver=solver):
        yield


def stepped(module: nn.Module, inputs: list[Tensor], call: Callable[..., Any]) -> tuple[list[Tensor], int]:
    """(gradients, bytes at the worst moment) of one step; the first one compiles."""
    call(*inputs).backward()
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    peak = allocated_peak(lambda: call(*inputs).backward())
    return [p.grad.clone() for p in module.parameters() if p.grad is not None], peak


def split(module: nn.Module, inputs: list[Tensor], share: float, partition: Any) -> tuple[list[Tensor], int]:
    with budget(share):
        return stepped(module, inputs, torch.compile(module, backend=eager_backend(partition), fullgraph=True))


def test_peaks_of_fused_programs_are_known_before_they_are_compiled() -> None:
    layers = [nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)]
    module = nn.Sequential(*layers, nn.Dropout(0.1), *layers, nn.Tanh())
    x, gradient = torch.randn(512, 64), torch.randn(512, 64)
    ours = Partitioner(replace(FAST, fused=2))
    with budget(0.1), inductor.patch(custom_partitioner_fn=ours), functorch.patch(enable_autograd_cache=False):
        call = torch.compile(module)
        torch.manual_seed(1)
        drawn = call(x)
    drawn.backward(gradient)
    assert ours.found is not None
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    assert torch.equal(call(x), drawn)  # lowering on zeros drew nothing from the user's generator
    measured = allocated_peak(lambda: call(x).backward(gradient))
    forward, backward = ours.found.footprint[:2]
    expected = max(forward, backward - gradient.nbytes)
    assert abs(measured - expected) <= 0.01 * measured
    assert ours.found.footprint.peak < ours.found.default.peak


@pytest.mark.slow
def test_executed_bytes_are_the_simulated_ones_and_gradients_the_same() -> None:
    module, inputs = stack(dropout=0.1)
    wanted, plain = split(module, inputs, 1.0, TORCHS)
    peaks = []
    for share in BUDGETS[1:]:
        ours = Partitioner(FAST)
        gradients, peak = split(module, inputs, share, ours)
        assert ours.found is not None
        assert abs(peak - ours.found.footprint.peak) <= 0.02 * peak
        assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))
        peaks.append(peak)
    assert [plain, *peaks] == sorted([plain, *peaks], reverse=True)


def test_random_numbers_are_drawn_once() -> None:
    """torch's own solver draws dropout's masks again in the backward pass: its gradients are of another function."""
    module, inputs = stack(dropout=0.5)
    wanted, _ = split(module, inputs, 1.0, TORCHS)
    ours, _ = split(module, inputs, 0.0, Partitioner(FAST))
    assert all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))


@pytest.mark.slow
def test_inductor_asks_the_partitioner() -> None:
    """With random numbers, which Inductor makes of seeds: these are saved."""
    module, inputs = stack(blocks=3, dropout=0.5)
    ours, found = Partitioner(FAST), []
    for share, partition in ((1.0, None), (0.0, ours)):
        options: Any = {"custom_partitioner_fn": partition}
        torch._dynamo.reset()
        with budget(share), functorch.patch(enable_autograd_cache=False):  # else nobody is asked twice
            backend = partial(compile_fx, config_patches=options)
            found.append(stepped(module, inputs, torch.compile(module, backend=backend, fullgraph=True)))
    (wanted, before), (gradients, after) = found
    assert ours.found is not None and after < before
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(gradients, wanted, strict=True))


def test_torch_asks_the_solver_and_saves_what_it_says() -> None:
    module, inputs = stack(dropout=0.1)
    wanted, peak = split(module, inputs, 0.05, Partitioner(FAST))
    with budget(0.05, BudgetSolver(FAST)):
        call = torch.compile(module, backend=eager_backend(TORCHS), fullgraph=True)
        gradients, asked = stepped(module, inputs, call)
    assert asked == peak
    assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))


class Checkpointed(nn.Module):
    """A region that the user checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, _ = stack(blocks=2)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return loss + x.mean()


def test_steps_with_the_users_own_checkpoints_are_left_to_torch() -> None:
    module, inputs = Checkpointed(), [torch.randn(64, 32)]
    ours = Partitioner(FAST)
    gradients, _ = split(module, inputs, 0.05, ours)
    module.zero_grad(set_to_none=True)
    module(*inputs).backward()
    assert ours.found is None
    for p, g in zip(module.parameters(), gradients, strict=True):
        assert torch.allclose(p.grad, g, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


def test_steps_with_open_shapes_are_left_to_torch() -> None:
    module, inputs = stack(blocks=2)
    ours = Partitioner(FAST)
    torch._dynamo.mark_dynamic(inputs[0], 0)
    with budget(0.05):
        torch.compile(module, backend=eager_backend(ours), fullgraph=True)(*inputs).backward()
    assert ours.found is None


def test_caches_tell_settings_apart() -> None:
    assert BudgetSolver(FAST).uuid() == BudgetSolver(FAST).uuid() != BudgetSolver(SETTINGS).uuid()
    assert Partitioner(FAST).uuid() != Partitioner(SETTINGS).uuid()


def test_a_captured_step_has_what_torch_saves_by_itself() -> None:
    module, inputs = stack(blocks=3)
    graph = capture_step(module, inputs, name="stack", family="stack")
    step = step_of(graph)
    assert step.saved.any() and step.late.any() and not step.late.all()
    gradients = [b for b, who in zip(step.num_bytes, step.returned) if who & 2]
    assert sum(gradients) == sum(p.numel() * 4 for p in module.parameters())


def test_a_module_without_gradients_is_refused() -> None:
    with pytest.raises(Exception, match="it has no gradient; give a module whose result is a loss"):
        capture_step(nn.Identity(), [torch.ones(4)], name="nothing", family="nothing")


class Function(nn.Module):
    """A layer and then a function of its result."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(3, 3), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.layer(x))


@pytest.mark.parametrize("module, why", [
    (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
     r"ValueError: Expected more than 1 value per channel .*\); gradients are .* give inputs of two or more rows"),
    (Function(torch.unique), "NotImplementedError: the derivative for '_unique2' is not implemented."),
    (Function(lambda y: y[y > 0]), "its shapes depend on values; give a module whose shapes follow from its inputs'.*"),
    (Function(lambda y: y if y.sum() > 0 else -y), r"Unsupported: Data-dependent branching: .* \(line \d+ of .*\)"),
    (Function(nn.LSTM(3, 3)), r"Unsupported: .* Set torch._dynamo.config.allow_rnn=True .* \(line \d+ of .*\)"),
])  # fmt: skip
def test_what_torch_compile_refuses_is_one_sentence(module: nn.Module, why: str) -> None:
    with pytest.raises(GraphError, match=f"^net: the module cannot be traced: {why}$"):
        capture_step(module, torch.randn(1, 3), name="net", family="net")


@pytest.mark.parametrize("pool", ["MaxPool2d(2)", "AdaptiveAvgPool2d(3)"])
def test_pooling_is_captured_in_a_process_that_lowered_nothing_before(pool: str) -> None:
    code = f"""
import torch, graphopt

module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.{pool})
print(graphopt.optimize(module, torch.ones(2, 1, 8, 8), task="recompute", budget=5))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "task=recompute" in done.stdout, done.stderr


def test_pooling_is_split_in_a_process_that_lowered_nothing_before() -> None:
    code = """
import torch
from graphopt.hardware.apply import recompute

module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.MaxPool2d(2))
torch._functorch.config.activation_memory_budget = 0.5
torch.compile(module, backend=recompute.eager)(torch.ones(1, 1, 8, 8)).sum().backward()
print(module[0].weight.grad.shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "torch.Size([2, 1, 3, 3])", done.stderr
