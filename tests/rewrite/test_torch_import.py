"""Torch modules as programs: they compute what the module computes, run by torch and as exported ONNX."""

from typing import Any

import numpy as np
import pytest
import torch
from onnx_models import exported, gap, run
from test_onnx_nodes import ops
from torch import Tensor, nn

from graphopt.errors import UserError
from graphopt.readers.pytorch.capture import capture, fake_mode
from graphopt.rewrite.equivalence import check_equivalence
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.io.torch_import import import_torch
from graphopt.rewrite.ir.execution import Executor

TOLERANCE = 1e-5


class ConvNet(nn.Module):
    """Convolution, batch norm, poolings, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.grouped, self.dense = nn.Conv2d(8, 8, 3, groups=4, bias=False), nn.Linear(8, 5)
        self.pool, self.mean = nn.MaxPool2d(3, 2, ceil_mode=True), nn.AvgPool2d(2, 1)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.running_mean, -1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        x = self.mean(torch.tanh(self.grouped(x)))
        return self.dense(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


class Block(nn.Module):
    """A transformer block by hand: layer norms, softmax attention, gelu."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Pieces(nn.Module):
    """Splits, concatenations, slices, embeddings, comparisons, several results."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 6)

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        a, b = torch.split(x, [2, 4], dim=1)
        both = torch.cat([b, torch.sigmoid(a)], 1) * self.table(index)
        kept = torch.where(both > 0, both, both * 0.1).clamp(-1, 1)
        return kept[:, 1:5:2], {"sum": kept.sum(1), "max": kept.amax(1, keepdim=True), "one": kept[:, 0] - 2}


class Windows(nn.Module):
    """Convolutions and poolings outside the vocabulary: dilated, transposed, padding that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated, self.up = nn.Conv2d(3, 4, 3, dilation=2), nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(self.up(self.dilated(x)), (1, 0, 2, -1), value=0.5)
        return nn.functional.avg_pool2d(x, (3, 2), stride=2, padding=1, ceil_mode=False)


MODULES: list[tuple[type[nn.Module], tuple[Any, ...]]] = [
    (ConvNet, (torch.randn(2, 3, 21, 21),)),
    (Block, (torch.randn(2, 5, 16),)),
    (Pieces, (torch.randn(3, 6), torch.tensor([0, 3, 1]))),
    (Windows, (torch.randn(2, 3, 9, 8),)),
    (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (torch.randn(2, 5, 16),)),  # type: ignore[list-item]
]


@pytest.mark.parametrize(
    ("make", "inputs"), MODULES, ids=["conv net", "block", "pieces", "windows", "torch's own layer"]
)
def test_computes_what_the_module_computes(make: Any, inputs: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    module = make().eval()
    with torch.no_grad():
        known = [t.numpy() for t in torch.utils._pytree.tree_leaves(module(*inputs))]
    program = import_torch(module, inputs)
    arrays = [t.numpy() for t in inputs]
    assert gap(known, Executor(program)(arrays)) < TOLERANCE
    assert gap(known, run(exported(program), *arrays)) < TOLERANCE
    assert check_equivalence(program, program).worst == 0


def test_layers_become_ops_of_the_vocabulary() -> None:
    program = import_torch(ConvNet(), (torch.randn(1, 3, 21, 21),))
    assert ops(program) == ["conv", "mul", "add", "relu", "pool_max", "conv", "tanh", "pool_avg", "pool_avg", "reshape",
                            "matmul", "add"]  # fmt: skip
    names = ops(import_torch(Block(), (torch.randn(1, 5, 16),)))
    assert names.count("matmul") == 6 and names.count("split") == 1
    assert {n for n in names if n.startswith("aten")} <= {
        f"aten.{n}" for n in ("mean", "sub", "rsqrt", "div", "amax", "exp", "sum", "erf", "expand", "slice", "_softmax")
    }


def test_graphs_of_modules_carry_programs_with_their_weights() -> None:
    torch.manual_seed(1)
    module = ConvNet().eval()
    x = torch.randn(1, 3, 21, 21)
    graph = capture(module, (x,), name="net", family="net", backward=False, keep_program=True)
    program = program_of(graph)
    with torch.no_grad():
        assert gap([module(x).numpy()], Executor(program)([x.numpy()])) < TOLERANCE
    again = graph_of(program, name="net")
    assert again.flops.sum() == pytest.approx(graph.flops.sum(), rel=0.05)


def test_modules_without_memory_get_random_weights() -> None:
    with fake_mode():
        module, x = ConvNet(), torch.empty(1, 3, 21, 21)
    graph = capture(module, (x,), name="net", family="net", backward=False, keep_program=True)
    (y,) = Executor(program_of(graph))([np.random.default_rng(0).standard_normal((1, 3, 21, 21))])
    assert np.isfinite(y).all() and np.abs(y).max() > 1e-3


def test_gradients_are_programs_too() -> None:
    torch.manual_seed(2)
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4)
    graph = capture(module, (x,), name="net", family="net", backward=True, keep_program=True)
    outputs = Executor(program_of(graph))([x.numpy(), np.ones((2, 3))])
    module(x).sum().backward()
    known = [module(x).detach().numpy(), *(p.grad.numpy() for p in module.parameters() if p.grad is not None)]
    assert gap(known, outputs) < TOLERANCE


def test_what_onnx_lacks_says_so_and_runs_all_the_same() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.sort(x)[0])

    program = import_torch(Sorted(), (torch.randn(3),))
    assert ops(program) == ["aten.sort", "relu"]
    (y,) = Executor(program)([np.array([2.0, -1.0, 1.0], np.float32)])
    assert y.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match=r"operator aten\.sort has no ONNX form here"):
        exported(program)
