"""Files of programs: what is read computes what was written, bit for bit, and names nothing but tensor operators."""

import gzip
import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.fx_reader import read_fx
from graphopt.graphs.readers.pytorch.program_file import (
    FxProgram,
    InputSpec,
    describe,
    load_program,
    make_inputs,
    packed_program,
    save_program,
)
from graphopt.hardware.program_run import Session
from tests.check_data import check_data


def traced(fn: Callable[..., Any], inputs: list[Tensor]) -> FxProgram:
    gm = make_fx(fn, tracing_mode="fake")(*inputs)
    return FxProgram(gm, tuple(describe(t) for t in inputs))


def bits(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    return [(t.shape, t.stride(), t.dtype, t.contiguous().reshape(-1).view(torch.uint8).tolist()) for t in tensors]


def many_kinds(x: Tensor, y: Tensor, index: Tensor, mask: Tensor) -> list[Tensor]:
    table = torch.tensor([[0.5, float("-inf")], [float("nan"), -0.0]])
    half = x[:, ::2].to(torch.float64).permute(1, 0)
    best, place = torch.topk(y, 2)
    x.copy_(torch.where(mask, x, x.clamp(-0.25, float("inf"))))
    return [half.contiguous(memory_format=torch.contiguous_format), best, place, y[index], table + 1.0, x * 3]


def example() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4, 6, generator=draw).t().contiguous().t()
    return [
        x,
        torch.rand(6, 4, generator=draw),
        torch.tensor([3, 0, 3]),
        torch.tensor([[True], [False], [True], [False]]),
    ]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    save_program(tmp_path / "p.program.json.gz", traced(many_kinds, example()))
    return tmp_path / "p.program.json.gz"


def run(program: FxProgram, seed: int) -> list[tuple[Any, ...]]:
    inputs = make_inputs(program.inputs, seed)
    return bits([*program.gm(*inputs), *inputs])


def test_an_operator_without_its_overload_is_the_default_one(tmp_path: Path) -> None:
    gm = make_fx(lambda x: [x.clone() + 1], tracing_mode="fake")(torch.ones(3))
    next(node for node in gm.graph.nodes if "clone" in str(node.target)).target = torch.ops.aten.clone
    program = FxProgram(gm, (describe(torch.ones(3)),))
    save_program(tmp_path / "p.program.json.gz", program)
    assert run(load_program(tmp_path / "p.program.json.gz"), 3) == run(program, 3)


def test_what_is_read_computes_what_was_written(stored: Path) -> None:
    written, read = traced(many_kinds, example()), load_program(stored)
    assert run(read, 3) == run(written, 3) != run(written, 4)
    names = [(n.name, str(n.target), str(n.args), str(n.kwargs)) for n in written.gm.graph.nodes]
    assert [(n.name, str(n.target), str(n.args), str(n.kwargs)) for n in read.gm.graph.nodes] == names
    for mine, theirs in zip(read.gm.graph.nodes, written.gm.graph.nodes):
        if mine.op == "call_function" and isinstance(mine.meta["val"], Tensor):
            assert mine.meta["val"].stride() == theirs.meta["val"].stride()


@pytest.mark.parametrize("name", ["gnn", "adamw", "attention_math", "color_jitter"])
def test_real_programs_compute_the_same(name: str, tmp_path: Path) -> None:
    program = traced(*runpy.run_path(str(check_data("programs/programs.py")))["P"][name]())
    save_program(tmp_path / "p.program.json.gz", program)
    assert run(load_program(tmp_path / "p.program.json.gz"), 5) == run(program, 5)


def test_inputs_are_like_the_users() -> None:
    wide = torch.randn(200, 100) * 3 + 5
    specs = [describe(t) for t in (wide.t(), wide.abs(), wide.bfloat16()[:, None].expand(200, 7, 100), wide > 5)]
    made = make_inputs(specs, 0)
    assert [s.fill for s in specs] == ["normal", "uniform", "normal", "exact"]
    assert [(t.shape, t.stride(), t.dtype) for t in made[:2]] == [((100, 200), (1, 100), torch.float32),
                                                                 ((200, 100), (100, 1), torch.float32)]  # fmt: skip
    assert made[2].stride() == (100, 0, 1) and made[2].dtype is torch.bfloat16
    assert abs(made[0].mean() - 5) < 0.2 and abs(made[0].std() - 3) < 0.2
    assert made[1].min() >= wide.abs().min() and made[1].max() <= wide.abs().max()
    assert made[3].equal(wide > 5)


def test_large_indices_stay_within_their_range() -> None:
    spec = describe(torch.arange(2**21) % 1000)
    (made,) = make_inputs([spec], 0)
    assert (spec.fill, spec.numbers, made.dtype) == ("uniform", (0.0, 999.0), torch.int64)
    assert (int(made.min()), int(made.max())) == (0, 999)


def test_checks_of_tensors_are_kept(tmp_path: Path) -> None:
    """`F.one_hot` checks its labels when it runs, and says in a sentence what is wrong."""
    check = torch.ops.aten._assert_async.msg
    program = traced(lambda x: check((x < 4).all(), "Labels are to be smaller than 4.") or x + 1, [torch.tensor([1])])
    save_program(tmp_path / "p.program.json.gz", program)
    run = load_program(tmp_path / "p.program.json.gz").gm
    assert torch.as_tensor(run(torch.tensor([1, 0]))).equal(torch.tensor([2, 1]))
    with pytest.raises(RuntimeError, match="smaller than 4"):
        run(torch.tensor([1, 4]))


def test_what_is_no_tensor_operator_is_not_written(tmp_path: Path) -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_function(print, (graph.placeholder("x"),)),))
    program = FxProgram(torch.fx.GraphModule({}, graph), (describe(torch.zeros(2)),))
    with pytest.raises(GraphError, match="no tensor operator"):
        save_program(tmp_path / "p.program.json.gz", program)


def test_inputs_beyond_the_memory_are_refused() -> None:
    with pytest.raises(GraphError, match="half of this machine's memory"):
        make_inputs([InputSpec((2**40,), (1,), "float32", "normal")], 0)


def change_target(nodes: list[Any], target: str) -> None:
    next(node for node in nodes if node["op"] == "call_function")["target"] = target


def change_name(nodes: list[Any], name: str) -> None:
    nodes[0]["name"] = nodes[0]["target"] = name


def change_call(content: dict[str, Any], target: str, args: list[Any], kwargs: dict[str, Any] | None = None) -> None:
    """The first call becomes another one; what reads its results is left out."""
    nodes = content["nodes"]
    call = next(node for node in nodes if node["op"] == "call_function")
    call |= {"target": target, "args": args, "kwargs": kwargs or {}, "strides": None}
    content["nodes"] = [*(n for n in nodes if n["op"] == "placeholder"), call, nodes[-1]]
    nodes[-1]["args"] = [{"tuple": [{"node": call["name"]}]}]
    content.update(strides=None, visible=[], constants={})


def given(content: dict[str, Any], shape: list[int]) -> dict[str, str]:
    """The first input, of that shape."""
    stride = [1] * len(shape) if 0 in shape else [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    content["inputs"][0] = {**content["inputs"][0], "shape": shape, "stride": stride, "fill": "normal", "values": ""}
    return {"node": content["nodes"][0]["name"]}


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "python": lambda d: change_target(d["nodes"], "os.system"),
    "file": lambda d: change_target(d["nodes"], "aten.from_file.default"),
    "attribute": lambda d: change_target(d["nodes"], "aten.__class__.__init__"),
    "unknown": lambda d: change_target(d["nodes"], "aten.no_such.default"),
    "code": lambda d: change_name(d["nodes"], "x=__import__('os').system('false')"),
    "keyword": lambda d: change_name(d["nodes"], "lambda"),
    "cycle": lambda d: d["nodes"].reverse(),
    "shape": lambda d: d["inputs"][0].update(shape=[5, 6]),
    "large": lambda d: d["inputs"][0].update(shape=[2**47, 6], fill="normal"),
    "strides": lambda d: next(n for n in d["nodes"] if n["op"] == "call_function").update(strides=[2**40, 2**40]),
    "values": lambda d: d["inputs"][2].update(values="AAAA"),
    "phase": lambda d: d.update(phase="sideways"),
    "format": lambda d: d.update(format=99),
    "no list": lambda d: d.update(nodes={}),
    "missing": lambda d: d.pop("inputs"),
    "memory format": lambda d: change_call(d, "prims.clone.default", [given(d, [2, 3])], {"memory_format": -1}),
    "text": lambda d: change_call(d, "aten.ljust.default", ["a", 2 * 10**9]),
    "list": lambda d: change_call(d, "aten.mul.left_t", [[1], 2 * 10**9]),
    "reinterpreted": lambda d: change_call(
        d, "inductor._reinterpret_tensor.default", [given(d, [2, 3]), [9, 9], [9, 1], 0]
    ),
    "beyond": lambda d: change_call(d, "aten.as_strided.default", [given(d, [2, 3]), [100_000], [1]]),
    "parts": lambda d: change_call(d, "aten.unbind.int", [given(d, [2**40, 0])]),
    "crash": lambda d: change_call(d, "aten._foreach_copy.default", [[], [given(d, [4])] * 2]),
    "layout": lambda d: change_call(d, "aten.zeros.default", [[2]], {"layout": 5}),
    "rank": lambda d: change_call(d, "aten.zeros.default", [[1] * 1000]),
    "device": lambda d: change_call(d, "aten.zeros.default", [[2]], {"device": -7}),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_bad_file_is_one_sentence(change: str, stored: Path) -> None:
    content = json.loads(gzip.decompress(stored.read_bytes()))
    HOSTILE[change](content)
    stored.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(GraphError) as error:
        make_inputs(load_program(stored).inputs, 0)
    assert "\n" not in str(error.value)


def test_a_program_that_ends_the_process_is_one_sentence(stored: Path) -> None:
    """torch 2.13 reads beyond the second input, whose channels its kernel takes to be those of the first."""
    content = json.loads(gzip.decompress(stored.read_bytes()))
    change_call(content, "aten._adaptive_avg_pool2d_backward.default", [given(content, [2, 3, 4])] * 2)
    content["nodes"][-2]["args"][1] = {"node": content["nodes"][1]["name"]}
    content["inputs"][1] = {**content["inputs"][0], "shape": [2, 0, 4], "stride": [4, 4, 1]}
    for of in content["inputs"][:2]:
        of["dtype"] = "bfloat16"
    stored.write_bytes(gzip.compress(json.dumps(content).encode()))
    program = load_program(stored)
    graph = read_fx(program.gm.graph, name="p", family="p", weights=0, program=packed_program(program))
    with pytest.raises(UserError, match="running the program of p ends the process"):
        Session(graph, "cpu", 1)


def test_damage_is_said(stored: Path, tmp_path: Path) -> None:
    stored.write_bytes(stored.read_bytes()[:-30])
    for path in (stored, tmp_path / "none.program.json.gz"):
        with pytest.raises(GraphError, match=path.name):
            load_program(path)
