"""Captured graphs against hand counts, against PyTorch's own FLOP counter, and against running the module."""

import logging
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from graphopt.core.graph import Graph
from graphopt.core.operators import OPERATORS, Category
from graphopt.graphs.readers.pytorch.capture import capture, fake_mode
from graphopt.graphs.zoo.sequences import Attention, LSTMCell, PreNormLayer


def traced(module: nn.Module, *inputs: object, backward: bool = False) -> Graph:
    return capture(module, inputs, name="m", family="f", backward=backward, keep_program=True)


def kinds(graph: Graph) -> list[str]:
    return [OPERATORS[k].name for k in graph.kind]


def contraction_flops(graph: Graph) -> float:
    return float(graph.flops[graph.category == Category.CONTRACTION].sum())


def run_program(graph: Graph, module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    weights = [*module.parameters(), *module.buffers()]
    return graph.program(*(w.detach() for w in weights), *inputs)  # type: ignore[no-any-return]


class Calls(nn.Module):
    """A module of one function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> object:
        return self.function(*args)  # type: ignore[operator]


def test_mlp_by_hand() -> None:
    graph = traced(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.zeros(8, 16))
    assert kinds(graph) == ["matmul", "add", "relu", "matmul", "add"]
    assert graph.flops.tolist() == [2 * 8 * 16 * 32, 8 * 32, 8 * 32, 2 * 8 * 32 * 4, 8 * 4]
    assert graph.result_bytes.tolist() == [4 * 8 * 32] * 3 + [4 * 8 * 4] * 2
    assert graph.weight_bytes.tolist() == [4 * 16 * 32, 4 * 32, 0, 4 * 32 * 4, 4 * 4]
    assert [graph.tensor_shape(t) for t in graph.operands(0)] == [(8, 16), (16, 32)]
    assert graph.is_output.sum() == 1 and graph.is_output[-1]


def test_mlp_with_gradients_by_hand() -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    graph = traced(module, torch.zeros(8, 16), backward=True)
    # Forward 5; per layer the weight's and the bias's gradient; once the hidden state's gradient and its ReLU mask.
    expected = {"matmul": 5, "add": 2, "relu": 1, "sum": 2, "compare": 1, "select": 1, "transpose": 3, "reshape": 2}
    assert Counter(kinds(graph)) == expected
    outputs = [graph.tensor_shape(t) for t in range(graph.num_tensors) if graph.is_output[t]]
    assert sorted(outputs) == sorted([(8, 4), *(tuple(p.shape) for p in module.parameters())])
    assert graph.is_weight.sum() == 4


def test_conv_norm_relu_folds_the_norm_into_two_ops() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, groups=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    graph = traced(module, torch.zeros(2, 3, 10, 10))
    assert kinds(graph) == ["conv", "mul", "add", "relu"]
    assert graph.flops.tolist() == [2 * (2 * 8 * 10 * 10) * 3 * 9, 1600, 1600, 1600]
    assert graph.weight_bytes.tolist() == [4 * 8 * 3 * 9, 4 * 8, 4 * 8, 0]


def test_softmax_attention_by_hand() -> None:
    graph = traced(Calls(lambda q, k, v: (q @ k.transpose(1, 2)).softmax(-1) @ v), *(torch.zeros(2, 6, 4),) * 3)
    assert kinds(graph) == ["transpose", "matmul", "amax", "sub", "exp", "sum", "div", "matmul"]
    scores = 2 * 6 * 6
    assert graph.flops.tolist() == [0, 2 * scores * 4, scores, scores, 12 * scores, scores, 8 * scores, 2 * scores * 4]
    assert not graph.is_weight.any()


def test_lstm_cell_by_hand() -> None:
    graph = traced(LSTMCell(8, 4), torch.zeros(3, 8), (torch.zeros(3, 4), torch.zeros(3, 4)))
    assert Counter(kinds(graph)) == {"matmul": 2, "add": 3, "split": 1, "sigmoid": 3, "tanh": 2, "mul": 3}
    split = kinds(graph).index("split")
    assert [graph.tensor_shape(t) for t in graph.results(split)] == [(3, 4)] * 4
    assert graph.is_weight.sum() == 3 and graph.is_output.sum() == 2
    assert graph.flops.sum() == 2 * 3 * 16 * (8 + 4) + 2 * 48 + 12 * (3 * 12 + 2 * 16 + 3 + 1)


def test_layer_norm_is_seven_ops() -> None:
    graph = traced(nn.LayerNorm(4, elementwise_affine=False), torch.zeros(2, 4))
    assert kinds(graph) == ["mean", "sub", "mul", "mean", "add", "rsqrt", "mul"]


def test_views_have_view_kinds_and_cost_nothing() -> None:
    def views(x: Tensor) -> Tensor:
        y = x.reshape(2, 3, 4).permute(2, 0, 1)[1:3].unsqueeze(1).expand(2, 5, 2, 3)
        left, right = y.split([1, 4], 1)
        return left + right.select(1, 0).squeeze().unsqueeze(1)

    graph = traced(Calls(views), torch.zeros(6, 4))
    found = Counter(kinds(graph))
    assert found["add"] == 1 and found["transpose"] == 1 and found["broadcast"] == 1 and found["split"] == 1
    assert found["slice"] == 2 and set(found) == {"add", "transpose", "broadcast", "split", "slice", "reshape"}
    assert graph.flops.sum() == 2 * 2 * 3


def test_empty_views_and_undone_permutations_vanish() -> None:
    graph = traced(
        Calls(lambda x: (x.view(3, 4).t().t().expand(3, 4)[:].view(12).view(3, 4) + 1).detach()), torch.zeros(3, 4)
    )
    assert kinds(graph) == ["add"]


def test_constants_and_what_depends_on_weights_alone_are_folded() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(4, device=x.device) * torch.tensor([2, 3, 4, 5])
            return x @ (self.weight.t() * 2).softmax(-1) + positions + torch.ones(4) * 3

    graph = traced(Scaled(), torch.zeros(2, 4))
    assert kinds(graph) == ["matmul", "add", "add"]
    assert graph.is_weight.sum() == 2  # the folded product and the positions; a constant with one value is an immediate
    assert len(graph.operands(2)) == 1


def test_updates_in_place_are_data_flow() -> None:
    def update(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 1:3] += 5
        y[0].relu_()
        return y + 1

    module, x = Calls(update), torch.randn(3, 4)
    graph = traced(module, x)
    torch.testing.assert_close(run_program(graph, module, x)[0], update(x))
    assert kinds(graph).count("relu") == 1


@pytest.mark.parametrize("module, shape", [
    (nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 6, 3, 2)), (2, 4, 9, 9)),
    (nn.Conv1d(3, 5, 2, dilation=4), (2, 3, 32)),
    (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (2, 5, 6)),
    (PreNormLayer(16, 4), (2, 6, 16)),
])  # fmt: skip
@pytest.mark.parametrize("backward", [False, True])
def test_contractions_agree_with_torchs_flop_counter(module: nn.Module, shape: tuple[int, ...], backward: bool) -> None:
    x = torch.zeros(shape)
    graph = traced(module, x, backward=backward)
    with FlopCounterMode(display=False) as counter:
        result = module.train(backward)(x)
        if backward:
            result.sum().backward()
    assert contraction_flops(graph) == counter.get_total_flops()


def test_flops_of_grouped_convolutions_by_hand() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=2), nn.ConvTranspose2d(8, 6, 3, 2, groups=2))
    first = 2 * (2 * 8 * 5 * 5) * (4 // 2 * 9)  # per output element: input channels of the group x kernel
    second = 2 * (2 * 8 * 5 * 5) * (6 // 2 * 9)  # per input element: output channels of the group x kernel
    assert contraction_flops(traced(module, torch.zeros(2, 4, 9, 9))) == first + second
    # the image needs no gradient
    assert contraction_flops(traced(module, torch.zeros(2, 4, 9, 9), backward=True)) == 2 * first + 3 * second


def test_flops_of_an_unrolled_lstm_by_hand() -> None:
    state = torch.zeros(2, 3, 6), torch.zeros(2, 3, 6)
    graph = traced(nn.LSTM(8, 6, num_layers=2), torch.zeros(5, 3, 8), state)
    assert contraction_flops(graph) == 5 * 3 * 2 * 24 * ((8 + 6) + (6 + 6))


def test_every_parameter_is_one_weight() -> None:
    with fake_mode():
        module, x = Attention(32, 4), torch.zeros(1, 5, 32)
    for backward in (False, True):
        graph = traced(module, x, x, backward=backward)
        assert graph.is_weight.sum() == len(list(module.parameters())) == 8
        assert graph.tensor_bytes[graph.is_weight].sum() == 4 * sum(p.numel() for p in module.parameters())


def test_fake_modules_take_no_memory() -> None:
    with fake_mode():
        module, x = nn.Linear(1 << 20, 1 << 20), torch.zeros(1, 1 << 20)  # 4 TiB
    graph = traced(module, x)
    assert graph.flops[0] == 2.0 * 2**40


def test_unknown_operators_become_opaque_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        graph = traced(
            Calls(lambda x: torch.special.i0(x) + torch.special.i0(x * 2) + torch.special.bessel_j0(x)), torch.zeros(3)
        )
    assert Counter(kinds(graph))["opaque"] == 3
    assert len(caplog.records) == 1 and "i0 (2), special_bessel_j0 (1)" in caplog.text


def test_capture_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    mean = module[1].running_mean.clone()
    traced(module, torch.randn(4, 2), backward=True)
    assert module.training and not module[1].training
    torch.testing.assert_close(module[1].running_mean, mean)
    assert all(p.grad is None and not hasattr(p, "_recorded") for p in module.parameters())


def test_same_module_twice_gives_the_same_graph() -> None:
    with fake_mode():
        module, x = nn.LSTM(4, 4), torch.zeros(3, 2, 4)
    assert traced(module, x).hash == traced(module, x).hash
