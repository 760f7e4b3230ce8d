"""Gradients under decisions in the user's own program, against those of eager mode in float64."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch._inductor.compile_fx import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.program_file import key_of
from graphopt.hardware.apply.recompute import SETTINGS, BudgetSolver, Partitioner, eager_backend
from graphopt.hardware.inductor.captured import capture_compiled
from graphopt.hardware.inductor.strided_reads import fix_strided_reads
from graphopt.hardware.requests import CompilerRequest
from graphopt.report.apply.compile_backend import decided

# --- Five small networks of five families, whose result is a loss, without random numbers.

MODELS: dict[str, Callable[[], tuple[nn.Module, list[Tensor]]]] = {}


class Loss(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.inner(x).square().mean()
        return loss


def model(*shape: int) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enters a class under its name, with an input of a shape."""

    def enter(made: type[nn.Module]) -> type[nn.Module]:
        def build() -> tuple[nn.Module, list[Tensor]]:
            torch.manual_seed(0)
            return Loss(made()), [torch.randn(shape)]

        MODELS[made.__name__] = build
        return made

    return enter


def mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def normed(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(4, made), nn.SiLU())


class Residual(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        sum: Tensor = x + self.inner(x)
        return sum


@model(4, 3, 32, 32)
class UNet(nn.Module):
    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.first, self.down, self.up = normed(3, c), normed(c, 2 * c), normed(3 * c, c)
        self.last = nn.Conv2d(c, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = F.interpolate(self.down(F.avg_pool2d(a, 2)), scale_factor=2)
        out: Tensor = torch.tanh(self.last(self.up(torch.cat((b, a), 1)))) + x
        return out


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, w = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w))
        return mixed


@model(2, 3, 16, 16)
class ViT(nn.Module):
    def __init__(self, w: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, w, 4, 4)
        self.blocks = nn.Sequential(Residual(nn.LayerNorm(w), Attention(w)), Residual(nn.LayerNorm(w), mlp(w, 2 * w)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1)
        return out


class Gated(nn.Module):
    def __init__(self, c: int, dilation: int) -> None:
        super().__init__()
        self.dilation, self.both, self.out = dilation, nn.Conv1d(c, 2 * c, 2, dilation=dilation), nn.Conv1d(c, c, 1)
        self.norm = nn.GroupNorm(2, c)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        sum: Tensor = x + self.norm(self.out(torch.tanh(a) * torch.sigmoid(b)))
        return sum


@model(2, 1, 32)
class WaveNet(nn.Sequential):
    def __init__(self, c: int = 8) -> None:
        super().__init__(nn.Conv1d(1, c, 1), Gated(c, 1), Gated(c, 2), Gated(c, 4), nn.ReLU(), nn.Conv1d(c, 4, 1))


@model(3, 5, 8)
class GRU(nn.Module):
    def __init__(self, w: int = 8) -> None:
        super().__init__()
        self.given, self.state = nn.Linear(w, 3 * w), nn.Linear(w, 3 * w)

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, 0] * 0
        for step in self.given(x).unbind(1):
            (r, z, n), (hr, hz, hn) = step.chunk(3, 1), self.state(h).chunk(3, 1)
            gate = torch.sigmoid(z + hz)
            h = (1 - gate) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + gate * h
        return h


@model(12, 8)
class MoE(nn.Module):
    """The best two of four experts, each on all rows."""

    def __init__(self, w: int = 8) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(w, 4), nn.ModuleList(mlp(w, 2 * w) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.gate(x).softmax(-1).topk(2)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = every.gather(1, which.unsqueeze(-1).expand(-1, -1, x.shape[1]))
        out: Tensor = x + (chosen * (best / best.sum(-1, keepdim=True)).unsqueeze(-1)).sum(1)
        return out


# --- Their gradients under decisions.

FAST = replace(SETTINGS, evals=300)
BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05)
LIMIT = 1e-4  # of the largest entry of a tensor; float32 itself is off by some 1e-6


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    torch._dynamo.reset()
    with functorch.patch(enable_autograd_cache=False), torch._inductor.config.patch(fx_graph_cache=False):
        yield
    torch._dynamo.reset()


def gradients(module: nn.Module, call: Any, inputs: list[Tensor]) -> list[Tensor]:
    module.zero_grad()
    call(*inputs).backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def error(module: nn.Module, inputs: list[Tensor], backend: Any) -> float:
    """The largest difference of an entry, in shares of its tensor's largest."""
    own, exact = deepcopy(module), deepcopy(module).double()
    wanted = gradients(exact, exact, [x.double() for x in inputs])
    found = gradients(own, torch.compile(own, backend=backend, dynamic=False, fullgraph=True), inputs)
    pairs = zip(found, wanted, strict=True)
    return max(float((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in pairs)


def split(module: nn.Module, inputs: list[Tensor], budget: float, which: str) -> float:
    ours = Partitioner(FAST)
    patches: Any = {"custom_partitioner_fn": ours if which == "partitioner" else None}
    asked: Any = BudgetSolver(FAST) if which == "solver" else "dp"
    backend = (
        eager_backend(ours) if which == "eager" else lambda gm, given: compile_fx(gm, given, config_patches=patches)
    )
    with functorch.patch(activation_memory_budget=budget, activation_memory_budget_solver=asked):
        found = error(module, inputs, backend)
    assert which == "solver" or (ours.found is None) == (budget >= 1)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_right_whatever_is_computed_again(name: str) -> None:
    assert split(*MODELS[name](), 0.1, "eager") < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("which", ["partitioner", "solver"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_right_when_compiled(name: str, which: str, budget: float) -> None:
    assert split(*MODELS[name](), budget, which) < LIMIT


@pytest.mark.slow
def test_a_compiled_u_net_computes_group_norms_again() -> None:
    assert split(*MODELS["UNet"](), 0.2, "partitioner") < LIMIT


class Strided(nn.Module):
    """Reads a convolution's storage in every way: as another shape, overlapping windows, through a view, in a permuted
    order; and writes to a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x) * 2
        written = z * 3
        written.as_strided((2, 4, 8), (512, 64, 1), 64).mul_(z[:, :4, 0].detach().cos())
        reads = (
            z.as_strided((2, 512), (512, 1)),
            z.as_strided((2, 63, 16), (512, 8, 1)),
            (z + 1)[:, 1:].as_strided((2, 100), (512, 1), 3),
            (z.permute(0, 2, 1, 3) * 3).as_strided((2, 512), (512, 1)),
            written,
        )
        weighted = [(read.sin() * torch.linspace(-1, 1, read.shape[-1], dtype=x.dtype)).sum() for read in reads]
        return torch.stack(weighted).sum()


def strided() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    return Strided(), [torch.randn(2, 3, 8, 8)]


LEFT_OUT = pytest.mark.xfail(torch.__version__.startswith("2.11"), raises=UnboundLocalError, strict=False,
                             reason="TorchInductor of torch 2.11 reads a buffer that it does not make")  # fmt: skip


@LEFT_OUT
@pytest.mark.parametrize(("which", "budget"), [("partitioner", 1.0), ("partitioner", 0.3), ("solver", 0.3)])
def test_what_reads_a_storage_finds_the_same_elements_in_every_layout(which: str, budget: float) -> None:
    assert split(*strided(), budget, which) < LIMIT


@LEFT_OUT
def test_the_backend_of_decisions_has_these_gradients_too() -> None:
    assert error(*strided(), decided({})) < LIMIT


def test_decisions_are_carried_out_where_a_group_norm_is_read_by_strides() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(0)), torch.randn(1, 3, 8, 8)
    module.append(nn.Linear(288, 1))
    programs = capture_compiled(deepcopy(module), x).values()
    assert any("as_strided" in str(node.target) for program in programs for node in program.gm.graph.nodes)
    keys, carried = {key_of(program.gm, program.phase) for program in programs}, set[str]()
    backend = decided({key: CompilerRequest({}, {"reads_threshold": 1}) for key in keys}, carried)
    assert error(module, [x], backend) < LIMIT
    assert carried == keys and len(keys) == 2


def test_a_read_that_no_layout_can_be_given_is_refused() -> None:
    traced = make_fx(lambda x: torch.as_strided_copy(x * 2, (4, 2), (1, 2)), tracing_mode="fake")(torch.ones(2, 4))
    with pytest.raises(GraphError, match="how TorchInductor lays out mul, which as_strided reads; compile this module"):
        fix_strided_reads(traced.graph)
