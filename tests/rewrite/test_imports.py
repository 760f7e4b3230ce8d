"""ONNX nodes and torch modules as programs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx_models import FLOAT, Array, exported, gap, model_of, run, value
from torch import Tensor, nn

from graphopt.core.errors import UserError
from graphopt.graphs.readers.pytorch.capture import capture, fake_mode
from graphopt.rewrite.equivalence import check_equivalence, run_onnx
from graphopt.rewrite.io.as_graph import program_of
from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.io.torch_import import import_torch
from graphopt.rewrite.ir.execution import Executor
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.ir.vocabulary import Operation

# --- Every kind of ONNX node: what it becomes, and that it computes the same, run by torch and exported again.

node = helper.make_node
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ops(program: Program) -> list[str]:
    """Operators that run, the opaque ones by their ONNX name."""
    names = []
    for term in program.live():
        operation = program.terms.operation[term]
        if operation.name == "opaque":
            names.append(program.opaque[operation.params[0]].label)
        elif operation.name not in ("input", "item") and not program.terms.static[term]:
            names.append(operation.name)
    return names


def goes_round(model: Any, given: list[Array], expected: list[str] | None = None, most: float = 0.0) -> Program:
    """The model as a program of these ops computes the same: run by torch, and exported again. most: difference."""
    program = import_onnx(model)
    if expected is not None:
        assert ops(program) == expected
    known = run(model, *given)
    assert gap(known, Executor(program)(given)) <= most
    assert gap(known, run(exported(program), *given)) <= most
    return program


IMAGE, KERNEL = (1, 4, 9, 9), floats(6, 4, 3, 3)
CASES: list[tuple[str, str, tuple[int, ...], dict[str, Any], str, dict[str, Any]]] = [
    # label, operator, shape of x, weights, what it becomes, attributes; inputs: other than x and the weights
    ("conv", "Conv", IMAGE, {"w": KERNEL}, "conv", {}),
    ("conv with a bias", "Conv", IMAGE, {"w": KERNEL, "b": floats(6)}, "conv", {"pads": [1, 0, 2, 1], "strides": [2,
     1]}),
    ("grouped conv", "Conv", IMAGE, {"w": floats(6, 2, 3, 3)}, "conv", {"group": 2}),
    ("conv padded above", "Conv", (1, 4, 8, 9), {"w": KERNEL}, "conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("conv padded below", "Conv", (1, 4, 8, 9), {"w": KERNEL}, "conv", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ("conv not padded", "Conv", IMAGE, {"w": KERNEL}, "conv", {"auto_pad": "VALID"}),
    ("dilated conv", "Conv", IMAGE, {"w": KERNEL}, "Conv", {"dilations": [2, 2]}),
    ("conv along a line", "Conv", (1, 4, 9), {"w": floats(6, 4, 3)}, "Conv", {}),
    ("gemm", "Gemm", (3, 4), {"w": floats(5, 4), "b": floats(5)}, "matmul add", {"transB": 1}),
    ("gemm without a bias", "Gemm", (4, 3), {"w": floats(4, 5)}, "transpose matmul", {"transA": 1, "beta": 0.5}),
    ("scaled gemm", "Gemm", (3, 4), {"w": floats(4, 5), "b": floats(5)}, "Gemm", {"alpha": 0.5}),
    ("matmul", "MatMul", (2, 3, 4), {"w": floats(4, 5)}, "matmul", {}),
    ("matmul with a vector", "MatMul", (2, 3, 4), {"w": floats(4)}, "MatMul", {}),
    ("sum", "Sum", (3, 4), {"a": floats(4), "b": floats(3, 1)}, "add add", {}),
    ("mul", "Mul", (3, 4), {"a": floats(1)}, "mul", {}),
    ("sub", "Sub", (3, 4), {"a": floats(4)}, "Sub", {}),
    ("identity", "Identity", (3, 4), {}, "", {}),
    ("dropout", "Dropout", (3, 4), {}, "", {}),
    ("dropout that is told", "Dropout", (3, 4), {"r": np.float32(0.5), "t": np.asarray(False)}, "",
     {"inputs": ["x", "r", "t"], "outputs": ["y", "mask"]}),
    ("flatten", "Flatten", (2, 3, 4, 5), {}, "reshape", {"axis": 2}),
    ("squeeze", "Squeeze", (2, 1, 4), {"a": np.array([1])}, "reshape", {}),
    ("unsqueeze", "Unsqueeze", (2, 4), {"a": np.array([0, 3])}, "reshape", {}),
    ("reshape", "Reshape", (2, 3, 4), {"s": np.array([0, -1])}, "reshape", {}),
    ("reshape to the same", "Reshape", (2, 3), {"s": np.array([2, 3])}, "", {}),
    ("transpose", "Transpose", (2, 3, 4), {}, "transpose", {}),
    ("transpose to the same", "Transpose", (2, 3), {}, "", {"perm": [0, 1]}),
    ("concat", "Concat", (2, 3), {"a": floats(2, 5)}, "concat", {"axis": -1, "inputs": ["x", "a", "x"]}),
    ("max pool", "MaxPool", IMAGE, {}, "pool_max", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ("max pool rounded up", "MaxPool", IMAGE, {}, "pool_max", {"kernel_shape": [2, 2], "strides": [2, 2],
     "ceil_mode": 1}),
    ("dilated max pool", "MaxPool", IMAGE, {}, "MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    ("mean pool", "AveragePool", IMAGE, {}, "pool_avg", {"kernel_shape": [3, 3], "pads": [1, 1, 0, 0]}),
    ("mean pool padded above", "AveragePool", IMAGE, {}, "pool_avg", {"kernel_shape": [3, 3],
     "auto_pad": "SAME_UPPER"}),
    ("mean pool rounded up", "AveragePool", IMAGE, {}, "pool_avg", {"kernel_shape": [2, 2], "strides": [2, 2],
     "ceil_mode": 1}),
    ("mean pool that counts padding", "AveragePool", IMAGE, {}, "AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1,
     1, 1], "count_include_pad": 1}),
    ("mean over all", "GlobalAveragePool", IMAGE, {}, "pool_avg", {}),
    ("largest of all", "GlobalMaxPool", IMAGE, {}, "pool_max", {}),
    ("batch norm", "BatchNormalization", IMAGE, {"s": floats(4), "b": floats(4), "m": floats(4),
     "v": np.abs(floats(4)) + 1}, "batch_norm", {"epsilon": 0.01}),
    ("relu", "Relu", (3, 4), {}, "relu", {}),
    ("tanh", "Tanh", (3, 4), {}, "tanh", {}),
    ("sigmoid", "Sigmoid", (3, 4), {}, "sigmoid", {}),
    ("softmax", "Softmax", (3, 4), {}, "softmax", {}),
    ("softmax of an inner axis", "Softmax", IMAGE, {}, "softmax", {"axis": 1}),
    ("gather", "Gather", (3, 4), {"i": np.array([[0, 2], [-1, 1]])}, "gather", {"axis": 1}),
    ("pad", "Pad", (3, 4), {"p": np.array([1, 0, 0, 2])}, "pad", {}),
    ("pad of ones", "Pad", (3, 4), {"p": np.array([1, 0, 0, 2]), "v": np.float32(1)}, "Pad", {}),
    ("pad that mirrors", "Pad", (3, 4), {"p": np.array([1, 0, 0, 2])}, "Pad", {"mode": "reflect"}),
    ("slice", "Slice", (3, 4), {"a": np.array([0, 1]), "b": np.array([2, 4])}, "Slice", {}),
    ("clip without a lower end", "Clip", (3, 4), {"h": np.float32(0.1)}, "Clip", {"inputs": ["x", "", "h"]}),
    ("layer norm", "LayerNormalization", (3, 4), {"s": floats(4), "b": floats(4)}, "layer_norm", {}),
    ("layer norm without a summand", "LayerNormalization", (3, 4), {"s": floats(4)}, "layer_norm", {}),
    ("layer norm over two axes", "LayerNormalization", (3, 4), {"s": floats(3, 4), "b": floats(3, 4)},
     "LayerNormalization", {"axis": 0}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_becomes_and_computes(case: Any) -> None:
    _, operator, shape, weights, expected, how = case
    how = dict(how)
    made = node(operator, how.pop("inputs", ["x", *weights]), how.pop("outputs", ["y"]), **how)
    model = model_of([made], [value("x", FLOAT, shape)], [value("y", FLOAT, None)], weights)
    goes_round(model, [floats(*shape)], expected.split(), 1e-6)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18])
def test_splits_of_all_operator_sets(opset: int) -> None:
    split = node("Split", ["x", "sizes"], ["a", "b"], axis=1) if opset >= 13 else node(
        "Split", ["x"], ["a", "b"], axis=1, split=[1, 3])  # fmt: skip
    nodes = [split, node("Relu", ["b"], ["c"]), node("Concat", ["c", "a"], ["y"], axis=1)]
    weights = {"sizes": np.array([1, 3])} if opset >= 13 else {}
    model = model_of(nodes, [value("x", FLOAT, (2, 4))], [value("y", FLOAT, (2, 4))], weights, opset)
    program = goes_round(model, [floats(2, 4)], ["split", "relu", "concat"])
    assert exported(program).opset_import[0].version == opset


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_softmax_and_pad_of_all_operator_sets(opset: int) -> None:
    """Before 13 a softmax goes over all axes from its own on; that of an inner axis is moved to the end."""
    nodes = [node("Softmax", ["x"], ["s"], axis=2), node("Relu", ["s"], ["y"])]
    x = floats(2, 3, 4)
    model = model_of(nodes, [value("x", FLOAT, (2, 3, 4))], [value("y", FLOAT, (2, 3, 4))], {}, opset)
    program = import_onnx(model)
    assert ops(program) == ["softmax", "relu"]
    terms, (given,) = program.terms, program.inputs
    inner = terms.add(Operation("softmax", (1,)), (given,))
    padded = terms.add(Operation("pad", ((0, 1, 0), (0, 0, 2))), (inner,))
    moved = replace(program, outputs=(padded,))
    (found,) = run(exported(moved), x)
    assert gap(Executor(moved)([x]), [found]) < 1e-6 and found.shape == (2, 4, 6)
    assert np.allclose(found[:, 1:, :4].sum(1), 1)
    ambiguous = [node("Softmax", ["x"], ["y"], axis=1)]
    model = model_of(ambiguous, [value("x", FLOAT, (2, 3, 4))], [value("y", FLOAT, (2, 3, 4))], {}, opset)
    assert ops(import_onnx(model)) == (["softmax"] if opset >= 13 else ["Softmax"])


@pytest.mark.parametrize("version", [8, onnx.IR_VERSION])
def test_models_of_the_newest_format_come_out_so_that_runtimes_read_them(version: int) -> None:
    """onnx writes formats that ONNX Runtime does not read yet."""
    model = model_of([node("Relu", ["x"], ["y"])], [value("x", FLOAT, (2, 4))], [value("y", FLOAT, (2, 4))])
    x = floats(2, 4)
    known = run(model, x)
    model.ir_version = version
    again = exported(import_onnx(model))
    assert again.ir_version <= version and gap(known, run(again, x)) == 0


def test_equal_halves_need_no_sizes() -> None:
    model = model_of([node("Split", ["x"], ["a", "b"], num_outputs=2), node("Add", ["a", "b"], ["y"])],
                     [value("x", FLOAT, (4, 3))], [value("y", FLOAT, (2, 3))], opset=18)  # fmt: skip
    goes_round(model, [floats(4, 3)], ["split", "add"])


def test_outputs_that_are_inputs_weights_or_twice_the_same() -> None:
    nodes = [node("Identity", ["x"], ["same"]), node("Relu", ["x"], ["r"]), node("Relu", ["x"], ["again"]),
             node("Identity", ["w"], ["kept"]), node("Neg", ["w"], ["known"])]  # fmt: skip
    names = ["same", "r", "again", "kept", "known"]
    model = model_of(nodes, [value("x", FLOAT, (2,)), value("unused", FLOAT, (3,))],
                     [value(n, FLOAT, (2,)) for n in names], {"w": floats(2)})  # fmt: skip
    x, unused = floats(2), floats(3)
    again = exported(import_onnx(model))
    assert [o.name for o in again.graph.output] == names
    assert [i.name for i in again.graph.input] == ["x", "unused"]
    assert gap(run(model, x, unused), run(again, x, unused)) == 0


def test_equal_opaque_nodes_are_one_and_random_ones_are_not() -> None:
    nodes = [node("Erf", ["x"], ["a"]), node("Erf", ["x"], ["b"]), node("Add", ["a", "b"], ["y"]),
             node("RandomNormal", [], ["c"], shape=[2]), node("RandomNormal", [], ["d"], shape=[2]),
             node("Sub", ["c", "d"], ["z"])]  # fmt: skip
    model = model_of(nodes, [value("x", FLOAT, (2,))], [value("y", FLOAT, (2,)), value("z", FLOAT, (2,))])
    program = import_onnx(model)
    assert sorted(ops(program)) == ["Erf", "RandomNormal", "RandomNormal", "Sub", "add"]
    _, z = Executor(program)([floats(2)])
    assert np.abs(z).min() > 0


@pytest.mark.parametrize(("kind", "settings"), [
    ("Resize", [[], [1, 1, 2, 2]]), ("Upsample", [[1, 1, 2, 2]]), ("Dropout", [0.25]), ("Range", [5, 1])
])  # fmt: skip
def test_numbers_that_are_settings_are_not_drawn_as_weights_are(kind: str, settings: list[Any]) -> None:
    stored = {f"s{i}": np.asarray(numbers, np.float32) for i, numbers in enumerate(settings)}
    x = value("x", FLOAT, () if kind == "Range" else (1, 2, 3, 3))
    shape = (None,) if kind == "Range" else (1, 2, 6, 6) if kind in ("Resize", "Upsample") else (1, 2, 3, 3)
    nodes = [node("Abs", ["x"], ["a"]), node(kind, ["a", *stored], ["y"])]
    model = model_of(nodes, [x], [value("y", FLOAT, shape)], stored, opset=9 if kind == "Upsample" else 17)
    program = import_onnx(model)
    assert not program.weights and check_equivalence(program, program) == 0


def test_what_drawn_inputs_cannot_run_is_said_in_a_sentence() -> None:
    shaped = model_of([node("Expand", ["x", "shape"], ["y"])],
                      [value("x", FLOAT, (3, 5)), value("shape", onnx.TensorProto.INT64, (2,))],
                      [value("y", FLOAT, (None, None))])  # fmt: skip
    program = import_onnx(shaped)
    with pytest.raises(UserError, match=r"operator Expand does not run .* must be constants"):
        check_equivalence(program, program)
    two = [value("x", FLOAT, (3,)), value("z", FLOAT, (2,))]
    listed = model_of([node("SequenceConstruct", ["x", "z"], ["y"])], two,
                      [helper.make_tensor_sequence_value_info("y", FLOAT, None)])  # fmt: skip
    program = import_onnx(listed)
    with pytest.raises(UserError, match="a sequence of different tensors"):
        check_equivalence(program, program)


# --- Torch modules as programs: they compute what the module computes.

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


class Counting(nn.Module):
    """Counts its calls in a buffer, which it does not read again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(x)


class Groups(nn.Module):
    """A product by groups, which torch has for no float64."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch._grouped_mm(x, self.experts, offs=torch.tensor([5, 12], dtype=torch.int32)))


class Apart(nn.Module):
    """Eager torch has no `arange` of the type in which core ATen's `eye` counts so many rows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu((x @ x.T) * (1 - torch.eye(len(x))))


MODULES: list[tuple[type[nn.Module], tuple[Any, ...]]] = [
    (ConvNet, (torch.randn(2, 3, 21, 21),)),
    (Pieces, (torch.randn(3, 6), torch.tensor([0, 3, 1]))),
    (Windows, (torch.randn(2, 3, 9, 8),)),
    (Counting, (torch.randn(4, 5),)),
    (Groups, (torch.randn(12, 16),)),
    (Apart, (torch.randn(300, 4),)),
    (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (torch.randn(2, 5, 16),)),  # type: ignore[list-item]
]


@pytest.mark.parametrize(
    ("make", "inputs"),
    MODULES,
    ids=["conv net", "pieces", "windows", "counting", "groups", "apart", "torch's own layer"],
)
def test_computes_what_the_module_computes(make: Any, inputs: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    module = make().eval()
    with torch.no_grad():
        known = [t.numpy() for t in torch.utils._pytree.tree_leaves(module(*inputs))]
    program = import_torch(module, inputs)
    arrays = [t.numpy() for t in inputs]
    assert gap(known, Executor(program)(arrays)) < TOLERANCE
    assert check_equivalence(program, program) == 0
    if not program.opaque:
        assert gap(known, run(exported(program), *arrays)) < TOLERANCE


def test_layers_become_ops_of_the_vocabulary() -> None:
    program = import_torch(ConvNet(), (torch.randn(1, 3, 21, 21),))
    assert ops(program) == ["conv", "mul", "add", "relu", "pool_max", "conv", "tanh", "pool_avg", "pool_avg", "reshape",
                            "matmul", "add"]  # fmt: skip


def test_modules_without_memory_get_random_weights() -> None:
    with fake_mode():
        module, x = ConvNet(), torch.empty(1, 3, 21, 21)
    graph = capture(module, (x,), name="net", family="net", backward=False, keep_program=True)
    (y,) = Executor(program_of(graph))([np.random.default_rng(0).standard_normal((1, 3, 21, 21))])
    assert np.isfinite(y).all() and np.abs(y).max() > 1e-3


def test_variances_of_modules_without_memory_are_positive_whatever_they_are_called() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.L_self_buffers_running_var_ = nn.Parameter(torch.empty(64), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(self.L_self_buffers_running_var_ + 1e-5)

    with fake_mode():
        module, x = Normed(), torch.empty(2, 64)
    program = program_of(capture(module, (x,), name="net", family="net", backward=False, keep_program=True))
    assert check_equivalence(program, program) == 0


def test_one_number_is_the_stride_of_both_axes() -> None:
    class Strided(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return torch.ops.aten.convolution.default(x, w, None, [2], [1], [1], False, [0], 1)

    x, w = torch.randn(1, 3, 9, 8), torch.randn(4, 3, 3, 3)
    program = import_torch(Strided(), (x, w))
    assert ops(program) == ["conv"]
    assert gap([Strided()(x, w).numpy()], Executor(program)([x.numpy(), w.numpy()])) < TOLERANCE


class Dropped(nn.Module):
    """Rows are dropped by a mask that starts as memory of any content."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.new_empty((x.shape[0], 1)).bernoulli_(0.5)


def test_programs_hold_no_content_of_memory_that_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)  # with NaN
    torch.use_deterministic_algorithms(True)
    try:
        program = import_torch(Dropped(), (torch.zeros(3, 2),))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(np.isfinite(weight).all() for weight in program.weights.values())
    assert any("empty" in name for name in program.weights)


def test_gradients_are_programs_too() -> None:
    torch.manual_seed(2)
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4)
    graph = capture(module, (x,), name="net", family="net", backward=True, keep_program=True)
    outputs = Executor(program_of(graph))([x.numpy(), np.ones((2, 3))])
    module(x).sum().backward()
    known = [module(x).detach().numpy(), *(p.grad.numpy() for p in module.parameters() if p.grad is not None)]
    assert gap(known, outputs) < TOLERANCE


def test_what_onnx_lacks_says_so_and_runs_all_the_same() -> None:
    class Second(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.kthvalue(x, 2)[0])

    program = import_torch(Second(), (torch.randn(3),))
    assert ops(program) == ["aten.kthvalue", "relu"]
    (y,) = Executor(program)([np.array([2.0, -1.0, 1.0], np.float32)])
    assert y.tolist() == 1
    with pytest.raises(UserError, match=r"operator aten\.kthvalue has no ONNX form in torch\.onnx"):
        exported(program)


@pytest.mark.parametrize("call", [
    nn.functional.hardswish, nn.functional.leaky_relu, lambda x: x.softmax(1), lambda x: x.amax(1),
    lambda x: x.sum((0, 2), keepdim=True) - x.mean(2, keepdim=True), lambda x: x[:, -1] / 3, lambda x: x[:, 1:3, ::2],
    lambda x: (x.abs() + 0.5).sqrt() ** 2, lambda x: torch.maximum(x.exp(), x.amin((1, 2), True)),
    lambda x: x.clamp(max=0.5), lambda x: torch.erf(x).neg(), nn.functional.softplus, nn.functional.elu,
    nn.functional.mish, lambda x: x.round() + x.floor() * x.ceil() - x.sign(),
    lambda x: nn.functional.layer_norm(x, (6,)), lambda x: torch.where((x > 1).any(1, keepdim=True), x, -x),
    lambda x: torch.where(((x > 1) | (x < 0)).logical_not() & (x < 0.7), x, 2.0), lambda x: x.cumsum(1),
    lambda x: torch.where(x.round() != 1, x, -x), lambda x: x[:, :1].expand(2, 4, 6).exp(),
    lambda x: nn.functional.interpolate(x, scale_factor=2.0, mode="linear"), lambda x: x.sort(1)[0] + x.repeat(1, 1, 1),
    lambda x: nn.functional.conv_transpose1d(x, x[:1, :, :2].reshape(4, 1, 2).expand(4, 3, 2)),
    lambda x: x.scatter_add(1, x.argsort(1), x).gather(1, x.argsort(1)), lambda x: x[:, torch.tensor([2, 0])].var(1),
    lambda x: x.max(2)[0] + x.max(2)[1], lambda x: x.sum() + x.any() + x.to(torch.float64).to(torch.float32),
], ids=lambda call: getattr(call, "__name__", ""))  # fmt: skip
def test_calls_that_rewriting_leaves_alone_are_written(call: Callable[[Tensor], Tensor]) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")

    class Calling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(call(x)) + 1

    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    program = import_torch(Calling(), (x,))
    assert any(name.startswith("aten.") for name in ops(program))
    (made,) = run_onnx(exported(program), {str(program.terms.operation[program.inputs[0]].params[0]): x.numpy()})
    assert gap([Calling()(x).numpy()], [made]) < 1e-5


@pytest.mark.parametrize("opset", [1, 6, 7, 13])
@pytest.mark.parametrize("kind", ["Relu", "Dropout", "Identity", "Sin"])
def test_one_op_of_two_outputs_stays_one_on_the_way_out_and_in(tmp_path: Path, opset: int, kind: str) -> None:
    """Two equal nodes are one op, whose second name the export makes by `Identity`, in old operator sets as well."""
    nodes = [helper.make_node(kind, ["x"], [name]) for name in "yz"]
    graph = helper.make_graph(nodes, "g", [value("x", FLOAT, (2,))], [value(name, FLOAT, (2,)) for name in "yz"])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    onnx.save(model, tmp_path / "a.onnx")
    program = import_onnx(tmp_path / "a.onnx")
    save_onnx(program, tmp_path / "b.onnx")
    assert program.num_ops() == import_onnx(tmp_path / "b.onnx").num_ops() <= 1
