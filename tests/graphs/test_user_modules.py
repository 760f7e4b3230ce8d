"""Users' own modules as they are: what they compute is captured, what cannot be is refused in one sentence."""

from collections import Counter, UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from user_modules import Cache, ComplexDense, Experts, Fourier, LanguageModel, Layers, Output, Rotary, Swin

from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import OPERATORS
from graphopt.graphs.readers.pytorch.capture import capture
from graphopt.graphs.readers.pytorch.nested_tensors import arguments_of, loss_in, tensors_in, with_tensors
from graphopt.graphs.torch_module import TorchModule

IDS = torch.tensor([[1, 3, 2], [0, 2, 5]])


def traced(module: nn.Module, inputs: Any, *, backward: bool = False) -> Graph:
    return capture(module, inputs, name="m", family="f", backward=backward, keep_program=True)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(OPERATORS[k].name for k in graph.kind)


def computed(graph: Graph, module: nn.Module, inputs: Any, seeds: list[Tensor]) -> list[Tensor]:
    weights = [t.detach().clone() for t in (*module.parameters(), *module.buffers())]
    with torch.no_grad():
        return graph.program(*weights, *tensors_in(arguments_of(inputs)), *seeds)  # type: ignore[no-any-return]


def expected(module: nn.Module, inputs: Any, seeds: list[Tensor], backward: bool) -> list[Tensor | None]:
    """Outputs of the module itself, and the gradients of its parameters where the seeds arrive at the outputs."""
    args, kwargs = arguments_of(inputs)
    with torch.set_grad_enabled(backward):
        result = module.train(backward)(*args, **kwargs)
    if not backward:
        return tensors_in(result)
    loss = loss_in(result)
    starts = tensors_in(result) if loss is None else [loss]
    return [*tensors_in(result), *torch.autograd.grad(starts, list(module.parameters()), seeds, allow_unused=True)]


class Pair(NamedTuple):
    """Two tensors, one of them optional."""

    first: Tensor
    second: Tensor | None


class Nested(nn.Module):
    """Arguments of all sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Any], times: int, pair: Pair, more: Output, *, add: bool = False) -> Any:
        x = batch["x"]
        for _ in range(times):
            x = self.dense(x)
        x = x * pair.first + more.logits + (batch["rest"][0] if add else 0)
        return {"a": x, "b": [x * 2, Pair(x.sum(), None), 3, "text", None]}


def nested() -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(2, 4)
    return ({"x": x, "rest": [x + 1]}, 2, Pair(x * 2, None), Output(logits=x - 1)), {"add": True}


def convolutions() -> nn.Module:
    """With statistics that no layer begins with."""
    first = [nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.GELU(), nn.ConvTranspose2d(4, 2, 2, 2), nn.GroupNorm(1, 2)]
    rest = [nn.MaxPool2d(2), nn.Flatten(), nn.LayerNorm(72), nn.Linear(72, 5), nn.Softmax(-1)]
    module = nn.Sequential(*first, *rest)
    for buffer in module.buffers():
        buffer.copy_(torch.rand_like(buffer, dtype=torch.float) + 0.5)
    return module


LOSS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS, "use_cache": True}
MODULES: dict[str, tuple[Callable[[], nn.Module], Any, list[tuple[int, ...]]]] = {
    "keyword arguments": (LanguageModel, {"input_ids": IDS, "attention_mask": IDS.clamp(max=1)}, [(2, 3, 20)]),
    "a loss and a cache": (LanguageModel, LOSS, [()]),
    "an object as argument": (LanguageModel, ((IDS,), {"cache": Cache(torch.randn(2, 3, 8))}), [(2, 3, 20)]),
    "nested": (Nested, nested(), [(2, 4), (2, 4), ()]),
    "swin": (Swin, torch.randn(2, 3, 16, 16), [(2, 5)]),
    "dense experts": (lambda: Experts("dense"), torch.randn(6, 8), [(6, 8)]),
    "fourier": (Fourier, torch.randn(2, 8, 16), [(2, 8, 16)]),
    "rotary": (Rotary, torch.randn(2, 6, 8), [(2, 6, 8)]),
    "convolutions": (convolutions, torch.randn(2, 3, 13, 13), [(2, 5)]),
    "layers": (Layers, torch.randn(3, 3, 6, 6), [(3, 6)]),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_program_computes_what_the_module_does(name: str, backward: bool) -> None:
    torch.manual_seed(0)
    make, inputs, shapes = MODULES[name]
    module, seeds = make(), [torch.randn(shape) for shape in shapes] if backward else []
    graph = traced(module, inputs, backward=backward)
    assert set(graph.op_names) <= {node.name for node in graph.program.graph.nodes}
    found = computed(graph, module, inputs, seeds)
    known = expected(module, inputs, seeds, backward)
    assert [t is None for t in found] == [t is None for t in known]
    for ours, theirs in zip(found, known):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_random_draws_written_in_place_leave_views_possible() -> None:
    """In-place draws are traced a second time, where layer norms keep another memory order than torch's own."""
    graph = traced(Swin(keep=0.9), torch.zeros(2, 3, 16, 16), backward=True)
    assert kinds(graph)["random"] == 2 and kinds(graph)["opaque"] == 0


def test_gradients_start_at_the_loss_alone() -> None:
    module = LanguageModel()
    graph = traced(module, {"input_ids": IDS, "labels": IDS}, backward=True)
    inputs = (graph.producer < 0) & ~graph.is_weight
    assert [graph.tensor_shape(t) for t in inputs.nonzero()[0]].count(()) == 1
    assert (2, 3, 20) not in [graph.tensor_shape(t) for t in inputs.nonzero()[0]]


def test_inputs_that_require_gradients_get_them() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    module, seed = nn.Linear(4, 3), torch.randn(2, 3)
    with torch.no_grad():
        found = traced(module, x, backward=True).program(module.weight, module.bias, x, seed)
    torch.testing.assert_close(found[-1], torch.autograd.grad(module(x), x, seed)[0])


class GroupedExperts(nn.Module):
    """Rows sorted by their expert, one product by groups, as libraries run mixtures of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 4), nn.Parameter(torch.randn(4, 16, 32) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        expert = self.gate(x).argmax(-1)
        order = expert.argsort(stable=True)
        ends = torch.zeros(4, dtype=torch.int64).scatter_add(0, expert, torch.ones_like(expert)).cumsum(0)
        return torch._grouped_mm(x[order], self.experts, offs=ends.int())[order.argsort()]


@pytest.mark.parametrize("backward", [False, True])
def test_products_by_groups_in_any_type(backward: bool) -> None:
    module, x = GroupedExperts(), torch.randn(24, 16)
    graph = traced(module, x, backward=backward)
    seeds = [torch.randn(24, 32)] if backward else []
    found, known = computed(graph, module, x, seeds), expected(module, x, seeds, backward)
    for ours, theirs in zip(found, known, strict=True):
        if ours is None:  # of the gate, whose choice has no gradient
            assert theirs is None
        else:
            torch.testing.assert_close(ours, theirs)
    products = [int(flop) for flop, name in zip(graph.flops, graph.op_names) if "grouped" in name]
    assert products == [2 * 24 * 16 * 32] * (2 if backward else 1)


class Keeps(nn.Module):
    """Keeps what it computed, in the ways that models do, and runs twice to be captured: it writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.ones(4))
        self.tables: dict[str, Tensor] = {}
        self.nested: dict[str, list[Tensor]] = {"seen": []}
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows = self.tables.setdefault(str(x.device), self.table[:4].exp())
        self.last = (x * self.scale) @ rows
        self.nested["seen"].append(self.last)
        return self.last.clone().add_(1)


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_capture_leaves_what_a_module_keeps_as_it_was(called_before: bool, backward: bool) -> None:
    module, x = Keeps(), torch.randn(2, 4)
    if called_before:
        with torch.no_grad():
            module(x)
    before = (dict(module.tables), list(module.nested["seen"]), module.last, module.training)
    graph = traced(module, x, backward=backward)
    kept = (dict(module.tables), list(module.nested["seen"]), module.last, module.training)
    assert all(a is b for a, b in zip(before[0].values(), kept[0].values(), strict=True)) and before[1:] == kept[1:]
    assert type(module(x).detach()) is Tensor
    constants = [t for name, t in graph.program.named_buffers() if name.startswith("_constant")]
    assert all(type(t) is Tensor for t in constants) and len(constants) == called_before


def test_modules_on_the_meta_device_are_those_on_the_cpu() -> None:
    with torch.device("meta"):
        module = Swin()
    for x in (torch.zeros(2, 3, 16, 16), torch.zeros(2, 3, 16, 16, device="meta")):
        assert traced(module, x).hash == traced(Swin(), torch.zeros(2, 3, 16, 16)).hash


@pytest.mark.parametrize("given, args, kwargs", [
    (IDS, (IDS,), {}),
    ([IDS, 3], (IDS, 3), {}),
    ((IDS, None), (IDS, None), {}),
    ({"x": IDS}, (), {"x": IDS}),
    (UserDict(x=IDS), (), {"x": IDS}),  # as a tokenizer gives it
    (((IDS,), {"n": 2}), (IDS,), {"n": 2}),
    (([IDS], {"n": 2}), ([IDS], {"n": 2}), {}),  # a list is no tuple: two positional arguments
    ((IDS, {"n": 2}), (IDS, {"n": 2}), {}),
    (Pair(IDS, None), (Pair(IDS, None),), {}),
    ((), (), {}),
])  # fmt: skip
def test_what_example_inputs_may_be(given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert str(arguments_of(given)) == str((args, kwargs))


@pytest.mark.parametrize("given", [None, "x", 3, torch.zeros(2).numpy(), {1: IDS}])
def test_other_example_inputs_are_refused(given: Any) -> None:
    with pytest.raises(GraphError, match=r"example inputs are a tensor|named by strings"):
        arguments_of(given)


def test_tensors_are_replaced_where_they_stand() -> None:
    cache, x = Cache(IDS, IDS + 1), torch.zeros(2)
    value = {"a": [x, {"b": cache, "n": 3}], "c": Output(logits=x), "d": Pair(x, None), "again": cache}
    changed = with_tensors(value, lambda t: t + 10)
    assert [t.flatten()[0].item() for t in tensors_in(changed)] == [10, 11, 12, 10, 10]
    assert changed["a"][1]["b"] is changed["again"] is changed["again"].itself is not cache
    assert changed["c"].logits is changed["c"]["logits"] and changed["c"].loss is None
    assert [t.flatten()[0].item() for t in tensors_in(value)] == [0, 1, 2, 0, 0], "the original stays"


def test_complex_numbers_by_hand() -> None:
    """8 bytes an element; a product 6 FLOP, a multiply-add of a matrix product 8, a sum 2."""
    graph = traced(ComplexDense(), torch.zeros(5, 3, dtype=torch.complex64))
    names = [OPERATORS[k].name for k in graph.kind]
    product, bias = names.index("matmul"), names.index("add")
    assert graph.flops[product] == 8 * 5 * 3 * 4 and graph.flops[bias] == 2 * 5 * 4
    assert graph.result_bytes[product] == 8 * 5 * 4 and graph.weight_bytes[product] == 8 * 3 * 4
    double = traced(ComplexDense().to(torch.complex128), torch.zeros(5, 3, dtype=torch.complex128))
    assert double.result_bytes[product] == 16 * 5 * 4 and double.num_ops == graph.num_ops
    rotary = traced(Rotary(), torch.zeros(2, 6, 8))
    turn = [OPERATORS[k].name for k in rotary.kind].index("mul")
    assert rotary.flops[turn] == 6 * 2 * 6 * 4


def test_fourier_transforms_count_as_in_benchmarks(caplog: pytest.LogCaptureFixture) -> None:
    graph = traced(Fourier(), torch.zeros(2, 8, 16))
    transform = 2.5 * (2 * 8 * 16) * 4  # 5 N log2 N, half of it for real numbers
    assert sorted(graph.flops[graph.flops > 0]) == sorted([transform, transform, 6 * 2 * 8 * 9])
    assert "_fft_r2c (1), _fft_c2r (1)" in caplog.text


@pytest.mark.parametrize("routing, words, line", [
    ("where", "`nonzero` \\(or one-argument `torch.where`", "row, slot = torch.where"),
    ("mask", "boolean mask", "result\\[own.any"),
    ("item", "number read from a tensor", "own.sum\\(\\).item"),
    ("branch", "a tensor in an `if`", "if own.any"),
    ("unique", "`unique`", "torch.unique"),
])  # fmt: skip
@pytest.mark.parametrize("backward", [False, True])
def test_routing_by_values_is_refused_with_op_and_line(routing: str, words: str, line: str, backward: bool) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        traced(Experts(routing), torch.zeros(6, 8), backward=backward)
    text = str(caught.value)
    assert "\n" not in text and "a mask as a factor" in text
    number = int(text.partition("(line ")[2].split()[0])
    source = (Path(__file__).parent / "user_modules.py").read_text().splitlines()[number - 1]
    assert line.replace("\\", "") in source


def scattered(dense: nn.Module, x: Tensor, ids: Tensor) -> Tensor:
    out = torch.zeros(5, 4)
    out[ids > 1] = dense(x)[ids > 1]
    return out


def written(ids: Tensor, what: Tensor) -> Tensor:
    """Whole numbers that something was written into."""
    kept = ids.clone()
    kept[:2] += what
    return kept


def filled(ids: Tensor) -> Tensor:
    sizes = torch.empty(2, dtype=torch.int64)
    sizes[0], sizes[1] = ids[1], 2
    return sizes


class OfIds(nn.Module):
    """A function of a linear layer, numbers and whole numbers."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.dense, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.function(self.dense, x, ids)


BY_IDS: dict[str, Callable[..., Tensor]] = {
    "mask": lambda dense, x, ids: dense(x)[ids > 1],
    "unique": lambda dense, x, ids: dense(x)[torch.unique(ids)],
    "number": lambda dense, x, ids: dense(x)[: int(ids.max())],
    "branch": lambda dense, x, ids: dense(x) if (ids == 0).any() else -x,
    "mask that is written through": scattered,
    "known numbers in place": lambda dense, x, ids: dense(x)[written(ids, ids[:2]) > 2],
    "a constant of them that is written into": lambda dense, x, ids: ids.nonzero().float()[:, 0].add_(dense(x).sum()),
    "filled bit by bit": lambda dense, x, ids: dense(x)[: int(filled(ids).sum())],
    "repeats": lambda dense, x, ids: dense(x).repeat_interleave(ids, 0),
}


@pytest.mark.parametrize("name", BY_IDS)
@pytest.mark.parametrize("backward", [False, True])
def test_shapes_that_depend_on_ids_are_those_of_the_example(name: str, backward: bool) -> None:
    module, x, ids = OfIds(BY_IDS[name]), torch.randn(5, 4), torch.tensor([0, 2, 3, 2, 1])
    with pytest.warns(UserWarning, match="they are those of the example"):
        graph = traced(module, (x, ids), backward=backward)
    seeds = [torch.randn_like(module(x, ids))] if backward else []
    found, known = computed(graph, module, (x, ids), seeds), expected(module, (x, ids), seeds, backward)
    assert ids.tolist() == [0, 2, 3, 2, 1]
    for ours, theirs in zip(found, known, strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs)


@pytest.mark.filterwarnings("ignore:.*they are those of the example")
def test_what_is_known_is_not_taken_for_what_was_freed() -> None:
    def often(dense: nn.Module, x: Tensor, ids: Tensor) -> Tensor:
        for bound in range(100):
            _ = torch.zeros(4) + 1
            _ += x[0]
            x = x + x[ids > bound % 3].sum()
        return dense(x)

    assert traced(OfIds(often), (torch.randn(5, 4), torch.arange(5))).num_ops > 200


@pytest.mark.parametrize("function", [
    lambda dense, x, ids: x[written(ids, x[0, 0].long()) > 1],  # written into by what is not known
    lambda dense, x, ids: x[dense(x)[:, 0] > 0],
    lambda dense, x, ids: x[torch.randint(0, 2, (5,)) > 0],  # drawn
])  # fmt: skip
def test_shapes_that_depend_on_anything_else_are_refused(function: Callable[..., Tensor]) -> None:
    with pytest.raises(GraphError, match="its shapes or branches depend on values"):
        traced(OfIds(function), (torch.randn(5, 4), torch.arange(5)))
    with pytest.raises(GraphError, match="its shapes or branches depend on values"), torch.device("meta"):
        traced(OfIds(BY_IDS["mask"]), (torch.randn(5, 4), torch.arange(5)))


@pytest.mark.parametrize("name", ["GCN", "GAT", "GIN", "GraphSAGE", "PNA"])
@pytest.mark.filterwarnings("ignore:.*they are those of the example")
def test_graph_networks_are_captured_with_their_edges(name: str) -> None:
    from torch_geometric.nn import models

    more = {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.tensor([1, 5, 9])}
    module = getattr(models, name)(4, 8, 2, 3, **(more if name == "PNA" else {})).eval()
    given = torch.randn(6, 4), torch.randint(0, 6, (2, 20))
    [found] = computed(traced(module, given), module, given, [])
    torch.testing.assert_close(found, module(*given))


class Calls(nn.Module):
    """A linear layer and a function of it and the input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.dense, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.dense, x)


def fails(dense: nn.Module, x: Tensor) -> Tensor:
    raise RuntimeError("no such\nthing")


def leaves(dense: nn.Module, x: Tensor) -> Tensor:
    raise SystemExit("done")


@pytest.mark.parametrize("module, words", [
    (Calls(fails), r"RuntimeError: no such thing \(line \d+ of .*test_user_modules.py, in fails\)"),
    (Calls(leaves), "SystemExit: done"),
    (Calls(lambda dense, x: None), "returns no tensor"),
    (Calls(lambda dense, x: "text"), "returns no tensor"),
    (nn.Sequential(), "has no ops"),
    (nn.Module(), 'missing the required "forward"'),
    (nn.Linear(5, 4), r"same reduction dim"),
    (nn.LazyLinear(4), "'weight' has no shape yet; call the lazy module once"),
    (torch.jit.script(nn.Linear(4, 4)), "TorchScript; give the nn.Module"),
    (nn.DataParallel(nn.Linear(4, 4)), r"wrapped in DataParallel; give what it wraps"),
    (Calls(lambda dense, x: torch.cond(x.sum() > 0, dense, torch.neg, (x,))), "operator 'cond'"),
    (Calls(lambda dense, x: dense(x).detach().numpy()), "numpy"),
])  # fmt: skip
def test_what_cannot_be_captured_is_one_sentence(
    module: nn.Module, words: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        traced(module, torch.zeros(2, 4))
    assert "\n" not in str(caught.value)
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_one_row_is_too_few_for_batch_norm_with_gradients() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    with pytest.raises(GraphError, match="training mode, so give inputs of two or more rows"):
        capture(module, torch.zeros(1, 4), name="m", family="f", backward=True, keep_program=False)
    assert traced(module, torch.zeros(1, 4)).num_ops


FACTORIES = """
import torch
from torch import nn

def right(): return nn.Linear(4, 4), {"input": torch.zeros(2, 4)}
def alone(): return nn.Linear(4, 4)
def three(): return nn.Linear(4, 4), torch.zeros(2, 4), {}
def a_class(): return nn.Linear, torch.zeros(2, 4)
def argument(width): return nn.Linear(width, 4), torch.zeros(2, 4)
def fails(): raise KeyError("weights.pt")
def leaves(): raise SystemExit("no GPU here")
number = 5
"""


@pytest.mark.parametrize("label, words", [
    (None, "must be 'package.module:factory'"),
    ("user_factories", "must be 'package.module:factory'"),
    ("user_factoriez:right", "No module named 'user_factoriez'; put its folder on PYTHONPATH"),
    ("user_factories:rigth", "has no 'rigth'; did you mean right"),
    ("user_factories:alone", r"must return \(nn.Module or function, example inputs\), not Linear"),
    ("user_factories:three", r"must return \(nn.Module or function, example inputs\)"),
    ("user_factories:a_class", r"must return \(nn.Module or function, example inputs\)"),
    ("user_factories:argument", "missing 1 required positional argument: 'width'"),
    ("user_factories:fails", "KeyError: 'weights.pt'"),
    ("user_factories:leaves", "SystemExit: no GPU here"),
    ("user_factories:number", "names no function but int"),
    ("builtins:dict", "must return"),
    ("user_broken:make", "importing user_broken failed with NameError"),
])  # fmt: skip
def test_factories_that_give_nothing(
    label: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user_factories.py").write_text(FACTORIES)
    (tmp_path / "user_broken.py").write_text("missing_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = TorchModule(name="t", module="user_factories:right", graphnet=None, backward=True)
    assert data.graphs("train") == [] == data.graphs("val") and data.graphs("test")[0].num_ops == 6
    with pytest.raises(GraphError, match=words):
        TorchModule(name="t", module=label, graphnet=None, backward=False).graphs("test")
