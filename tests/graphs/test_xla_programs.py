"""Programs of XLA in each of their forms, and execution traces of PyTorch, as graphs."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from check_data import check_data
from torch.profiler import ExecutionTraceObserver
from torch.utils.flop_counter import FlopCounterMode
from xla_texts import GENERIC, HLO, STABLE_HLO, message, module, shape

from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import OPERATORS
from graphopt.graphs.files import GraphFiles
from graphopt.graphs.readers.formats.hlo import graph_of
from graphopt.graphs.readers.formats.hlo_protobuf import read_hlo_protobuf, read_tuned
from graphopt.graphs.readers.formats.hlo_text import parse_hlo, read_hlo
from graphopt.graphs.readers.formats.stable_hlo import parse_stable_hlo
from graphopt.graphs.readers.pytorch.execution_trace import read_execution_trace

KINDS = [("matmul", 2.0 * 8 * 4 * 16), ("maximum", 32.0), ("opaque", 5 * (1 + 1 + 32.0)), ("amax", 32.0)]


def ops(graph: Graph) -> list[tuple[str, float]]:
    return [(OPERATORS[kind].name, flops) for kind, flops in zip(graph.kind, graph.flops.tolist())]


def hlo(text: str) -> Graph:
    return graph_of(parse_hlo(text, "a.hlo", "a"))


def stable(text: str) -> Graph:
    return graph_of(parse_stable_hlo(text, "a.mlir", "a"))


def test_every_form_is_the_same_program() -> None:
    """The loop takes five trips of a comparison, an addition and 32 products; fusions and calls are open."""
    graphs = [hlo(HLO), stable(STABLE_HLO), stable(GENERIC)]
    assert [ops(graph) for graph in graphs] == [KINDS] * 3
    for graph in graphs:
        assert [graph.producer[t] for t in graph.input_tensor.tolist()][2:] == [0, 1, 2] or graph.num_ops == 4
        assert graph.shape[graph.shape_ptr[-2] :].tolist() == [4] and graph.is_output.sum() == 1
    assert graphs[0].op_names == ("dot", "fusion/relu", "loop", "max")
    short = HLO.replace("%", "").replace("f32[8,16]{1,0} x,", "x,").replace("f32[16,4]{1,0} w)", "w)")
    assert ops(hlo(short)) == KINDS


@pytest.mark.parametrize(
    ("changes", "trips"),
    [
        ((("constant(10)", "constant(11)"),), 6),  # 0 2 4 6 8 10
        ((("direction=LT", "direction=LE"),), 6),
        ((("%start = s32[] constant(0)", "%start = s32[] constant(9)"),), 1),
        ((("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"77"}}'),), 77),
    ],
)
def test_loops_count_their_trips(changes: Any, trips: int) -> None:
    text = HLO
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    assert ops(hlo(text))[2] == ("opaque", trips * 34.0)


@pytest.mark.parametrize(("grown", "flops"), [("multiply(%j, %two)", 34.0), ("add(%two, %two)", 33.0)])
def test_a_loop_without_known_trips_counts_once(grown: str, flops: float) -> None:
    with pytest.warns(UserWarning, match="nothing says how often loop loop runs"):
        graph = hlo(HLO.replace("%next = s32[] add(%j, %two)", f"%next = s32[] {grown}"))
    assert ops(graph)[2] == ("opaque", flops)


def test_shapes_beyond_all_numbers_are_a_sentence() -> None:
    large = ",".join(["999999999999999"] * 30)
    dims = ",".join(map(str, range(30)))
    text = HLO.replace("f32[8,16]", f"f32[{large}]").replace("dims={1}, rhs", f"dims={{{dims}}}, rhs")
    with pytest.raises(GraphError, match="bytes"):
        hlo(text)
    nothing = "ENTRY %e (x: f32[2]) -> () {\n  %x = f32[2] parameter(0)\n  ROOT %d = () dot(%x, %x)\n}"
    assert ops(hlo(nothing)) == [("matmul", 0.0)]


def test_convolutions_constants_and_branches() -> None:
    text = """ENTRY %e (x: f32[1,8,8,6], k: f32[3,3,2,4]) -> (f32[1,6,6,4], f32[2]) {
  %x = f32[1,8,8,6] parameter(0)
  %k = f32[3,3,2,4] parameter(1)
  %c = f32[1,6,6,4] convolution(%x, %k), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=3
  %v = f32[2] constant({1, 2})
  %one = f32[] constant(1)
  %i = s32[] constant(1)
  %n = f32[2] negate(%v)
  %b = f32[2] conditional(%i, %n, %v), branch_computations={%cheap, %dear}
  ROOT %t = (f32[1,6,6,4], f32[2]) tuple(%c, %b)
}"""
    branches = "".join(
        f"%{name} (p: f32[2]) -> f32[2] {{\n  %p = f32[2] parameter(0)\n  ROOT %r = f32[2] {opcode}(%p)\n}}\n"
        for name, opcode in (("cheap", "negate"), ("dear", "tanh"))
    )
    graph = hlo(branches + text)
    assert ops(graph) == [("conv", 2.0 * 144 * 3 * 3 * 2), ("neg", 2.0), ("opaque", 32.0)]
    assert graph.is_weight.sum() == 2  # the constant of two values, and the condition's, which an opaque op reads


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no ENTRY computation"), ("HloModule x\n\nwhat is this", "has no ENTRY"),
        (HLO.replace("%dot, kind", "%nothing, kind").replace("fusion(%dot)", "fusion(%nothing)"), "reads 'nothing'"),
        (HLO.replace("maximum(%p, %zeros)", "call(%p), to_apply=%fused"), "calls itself"),
        (HLO.replace("to_apply=%region_max\n}", "to_apply=%region_max"), "its end is missing"),
        (HLO.replace("f32[8,4]{1,0} multiply(%y", "f32[999999999999,999999999999]{1,0} multiply(%y"), "bytes"),
        (HLO.replace("multiply(%y, %y)", "multiply(%y, %y"), "line 32 of a.hlo has a bracket that is not closed"),
        (HLO.replace("f32[4]{0} reduce", "f32[?]{0} reduce"), "a dimension that is no number"),
    ],
)  # fmt: skip
def test_bad_text_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        hlo(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("stablehlo.multiply", "linalg.generic", "line 16 of a.mlir is of dialect linalg"),
        ("tensor<8x16xf32> {", "tensor<?x16xf32> {", "line 3 of a.mlir has a dynamic size"),
        ("%2#1", "%7#1", "reads %7#1, which nothing above makes"), ("  }\n}\n", "", "its end is missing"),
        ("@relu(%0)", "@other(%0)", "computation other is missing"), (STABLE_HLO, "what", "no operation of a function"),
    ],
)  # fmt: skip
def test_bad_mlir_is_a_sentence(old: str, new: str, said: str) -> None:
    assert old in STABLE_HLO
    with pytest.raises(GraphError, match=said):
        stable(STABLE_HLO.replace(old, new))


def test_protobufs(tmp_path: Path) -> None:
    """HloModuleProto, HloProto, and TuningData of two modules with runs."""
    run = message((4, message((4, 2000)))), message((3, 1), (4, message((4, 2000))))
    tuning = b"".join(message((1, message((1, module()), (2, 7 + i), *((3, one) for one in run)))) for i in range(2))
    (tmp_path / "a.pb").write_bytes(module())
    (tmp_path / "b.pb").write_bytes(tuning)
    assert ops(read_hlo_protobuf(tmp_path / "a.pb")) == [("matmul", 1024.0), ("neg", 32.0)]
    (tmp_path / "d.pb").write_bytes(message((1, module()), (3, message((1, 5)))))
    assert ops(read_hlo_protobuf(tmp_path / "d.pb")) == [("matmul", 1024.0), ("neg", 32.0)]
    found = read_tuned(tmp_path / "b.pb")
    assert [list(one.seconds) for one in found] == [[2e-6, None]] * 2 and found[0].module.name == "b_7"
    dataset = GraphFiles(name="files", path=str(tmp_path), train=[], val=[])
    assert [graph.name for graph in dataset.graphs("test")] == ["a", "b_7", "b_8", "d"]
    with pytest.raises(GraphError, match="holds 2 modules"):
        read_hlo_protobuf(tmp_path / "b.pb")
    for content in (b"", b"\xff" * 40, module()[:-3], message((1, message((1, message((3, shape(11)))))))):
        (tmp_path / "c.pb").write_bytes(content)
        with pytest.raises(GraphError, match="holds no HLO module as protobuf"):
            read_tuned(tmp_path / "c.pb")


def test_counts_of_real_programs_are_known() -> None:
    known = json.loads(check_data("importers/hlo_counts.json").read_text())
    for name, counts in known.items():
        file = check_data(f"importers/{name}.gz")
        parsed = parse_hlo(gzip.decompress(file.read_bytes()).decode(), name, name)
        assert len(parsed.computations) == counts["computations"]
        assert sum(map(len, parsed.computations.values())) == counts["instructions"]
        assert len(parsed.computations[parsed.entry]) == counts["entry"]
    resnet = read_hlo(check_data("importers/resnet50_keras_jax_f32.hlo.gz"))
    convolutions = resnet.flops[resnet.kind == [o.name for o in OPERATORS].index("conv")]
    assert len(convolutions) == 53 and 7.5e9 < convolutions.sum() < 7.9e9  # 3.87 billion multiply-adds


def test_kernels_of_tpugraphs_are_read() -> None:
    found = read_tuned(check_data("importers/op_tuning_data.pb"))
    assert len(found) == 15 and [len(one.seconds) for one in found][:3] == [61, 581, 16]
    known = {line.split(",")[1] for line in check_data("importers/opcodes.csv").read_text().splitlines()[1:]}
    used = {one.opcode for tuned in found for c in tuned.module.computations.values() for one in c}
    assert used <= known and all(tuned.graph.num_ops > 0 for tuned in found)
    assert min(s for s in found[0].seconds if s) == pytest.approx(57.188e-6)


def trace(tmp_path: Path, run: Any) -> Graph:
    observer = ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "trace.json"))
    observer.start()
    run()
    observer.stop()
    observer.unregister_callback()
    (graph,) = GraphFiles(name="files", path=str(tmp_path / "trace.json"), train=[], val=[]).graphs("test")
    return graph


def test_a_trace_of_a_training_step(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4))
    x = torch.randn(2, 3, 8, 8)
    graph = trace(tmp_path, lambda: module(x).logsumexp(-1).sum().backward())
    with FlopCounterMode(display=False) as counter:
        module(x).logsumexp(-1).sum().backward()
    contractions = np.isin(graph.kind, [i for i, o in enumerate(OPERATORS) if o.name in ("matmul", "conv")])
    own = graph.flops[contractions].sum()
    # We count both gradients of a convolution, PyTorch those that are asked for: not that of the input.
    assert counter.get_total_flops() <= own <= 1.5 * counter.get_total_flops()
    assert [OPERATORS[k].name for k in graph.kind].count("matmul") == 3


def test_writes_in_place_come_before_later_reads(tmp_path: Path) -> None:
    x, y = torch.randn(4, 4), torch.randn(4)

    def run() -> None:
        view = x[1]
        view.add_(y)
        x.sum()

    graph = trace(tmp_path, run)
    assert [name.split("_")[0] for name in graph.op_names] == ["select", "add", "sum"]
    (read,) = graph.input_tensor[graph.input_ptr[2] : graph.input_ptr[3]]
    assert graph.producer[read] == 1


def test_a_bad_trace_is_a_sentence(tmp_path: Path) -> None:
    node = {"id": 1, "name": "aten::relu", "ctrl_deps": 0, "inputs": {"values": [[1, 2]], "shapes": [[3]],
            "types": ["Tensor(float)"]}, "outputs": {"values": [[3, 4]], "shapes": [[3]], "types": ["Tensor(float)"]},
            "attrs": [{"name": "op_schema", "value": "aten::relu(Tensor self) -> Tensor"}]}  # fmt: skip
    file = tmp_path / "t.json"

    def of(*nodes: Any) -> Path:
        file.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": list(nodes)}))
        return file

    assert ops(read_execution_trace(of(node))) == [("relu", 3.0)]
    negative = {"values": [[1, 2]], "shapes": [[-3]], "types": ["Tensor(int)"]}
    number = {"values": [1], "shapes": [[3]], "types": ["Tensor(float)"]}
    for bad in ({"id": "x"}, {"inputs": {}}, {"inputs": negative}, {"inputs": number}, {"attrs": [1]}):
        with pytest.raises(GraphError, match=r"is no execution trace of PyTorch|no tensor has the shape"):
            read_execution_trace(of(node | bad))
    with pytest.raises(GraphError, match="two nodes have the id 1"):
        read_execution_trace(of(node, node))
