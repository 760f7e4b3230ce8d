"""`dataset=graphnet`: programs as text, read as data; `tests/fuzz/formats/graphnet.py` damages them."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from check_data import check_data

from graphopt.core.errors import ConfigError, UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import OPERATORS
from graphopt.graphs.graphnet import GraphNet, captured
from graphopt.graphs.readers.pytorch.capture import capture
from graphopt.graphs.readers.pytorch.graphnet.archive import sample_at, samples_at
from graphopt.graphs.readers.pytorch.graphnet.sample import read_sample
from graphopt.graphs.torch_module import TorchModule
from graphopt.hardware.datasets.lowered import model_of
from graphopt.hardware.datasets.programs import Programs
from graphopt.hardware.program_run import Session
from graphopt.rewrite.io.as_graph import program_of
from graphopt.rewrite.io.onnx_export import export_onnx

HEAD = "import torch\n\nfrom torch import device\n\nclass GraphModule(torch.nn.Module):\n    def forward(self, "
KNOWN = """class {0}:
    name = "{0}"
    shape = {1}
    dtype = "torch.{2}"
    device = "cuda:0"
    mean = {3}
    std = {4}
    data = {5}
"""


def sample(arguments: str, body: str, *described: str) -> dict[str, bytes]:
    text = HEAD + arguments + "):\n" + "".join(f"        {line}\n" for line in body.splitlines())
    return {"model.py": text.encode(), "weight_meta.py": "\n".join(described).encode()}


def tensor(name: str, shape: list[int], dtype: str = "float32", data: object = None, std: object = 1.0) -> str:
    whole = "int" in dtype or dtype == "bool"
    return KNOWN.format(name, shape, dtype, None if whole else 0.0, None if whole else std, data)


X = tensor("L_x_", [2, 4])
CONV = sample(
    "L_x_: torch.Tensor, L_self_w_: torch.nn.parameter.Parameter",
    "l_x_ = L_x_\ny = torch._C._nn.linear(l_x_, L_self_w_, None);  l_x_ = None\ny += 1\nreturn (y.relu(),)",
    X, tensor("L_self_w_", [3, 4]),
)  # fmt: skip


def kinds(graph: Graph) -> list[str]:
    return [OPERATORS[kind].name for kind in graph.kind]


def run(body: str, *described: str, arguments: str = "L_x_: torch.Tensor") -> Graph:
    return captured(sample(arguments, body, *(described or (X,))), "small", backward=False)


def test_calls_methods_operators_and_updates_in_place() -> None:
    graph = captured(CONV, "small", backward=False)
    assert kinds(graph)[-2:] == ["add", "relu"] and graph.is_weight.sum() == 1
    assert graph.flops.sum() == pytest.approx(2 * 2 * 4 * 3 + 2 * 6)


def test_gradients_are_those_of_parameters() -> None:
    graph = captured(CONV, "small", backward=True)
    assert graph.name == "small_backward" and graph.num_ops > 3
    with pytest.raises(GraphError, match="no output depends on a parameter"):
        captured(sample("L_x_: torch.Tensor", "return L_x_ + 1", X), "small", backward=True)


def test_numbers_among_the_arguments_have_their_stored_values() -> None:
    body = "n = s0 // 2 + 1\nzeros = torch.zeros([n, torch.sym_sum([1, s0])], device=device(type='cuda', index=0))\n"
    body += "return (zeros + L_x_[0, 0],)"
    graph = run(body, X, tensor("s0", [], "int64", [6]), arguments="L_x_: torch.Tensor, s0: torch.SymInt")
    assert 4 * 7 * 4 in graph.tensor_bytes


def test_numbers_read_from_stored_tensors_stand_in_the_graph() -> None:
    """Of 0-dimensional arguments, and of parts of small ones."""
    body = "eps = L_self_eps.item()\nfirst = torch.ops.aten._local_scalar_dense(L_self_stride[0])\n"
    body += "return (L_x_ * eps + first,)"
    arguments = "L_x_: torch.Tensor, L_self_eps: torch.Tensor, L_self_stride: torch.Tensor"
    graph = run(body, X, tensor("L_self_eps", [], "float64", None, 0.0), tensor("L_self_stride", [2], data=[8.0, 16.0]),
                arguments=arguments)  # fmt: skip
    assert kinds(graph) == ["mul", "add"]
    with pytest.raises(GraphError, match=r"small: model.py, line 7: item depends on values that are not stored"):
        run("return (L_x_ * L_x_.sum().item(),)")
    with pytest.raises(GraphError, match="values that are not stored"):
        run("return (L_x_ * torch.rand([1]).item(),)")  # another number each time


def test_masks_and_positions_follow_from_stored_values() -> None:
    edges = tensor("L_edges_", [2, 4], "int64", [0, 1, 2, 3, 0, 2, 1, 3])
    body = "mask = L_edges_[0] != L_edges_[1]\nkept = L_edges_[(slice(None, None, None), mask)]\n"
    body += "return (L_x_[:, kept[0]],)"
    arguments = "L_x_: torch.Tensor, L_edges_: torch.Tensor"
    assert 2 * 2 * 4 in run(body, X, edges, arguments=arguments).tensor_bytes
    assert run("return (L_x_[:, L_edges_[0].nonzero()[:, 0]],)", X, edges, arguments=arguments).num_ops > 0
    with pytest.raises(GraphError, match="values that are not stored"):
        run("return (L_x_[L_x_ > 0],)")


def test_what_is_opened_is_closed_also_after_a_failure() -> None:
    """Nesting of vmap and autocast are states of the process."""
    opens = "torch._C._functorch._vmap_increment_nesting(2, 'error')\n"
    opens += "torch.amp.autocast_mode._enter_autocast('cpu', torch.bfloat16, True, None)\n"
    with pytest.raises(GraphError, match="reshape fails"):
        run(opens + "return (L_x_.reshape(7, 7),)")
    assert not torch.is_autocast_enabled("cpu")
    assert torch._C._functorch.maybe_current_level() is None


@pytest.mark.parametrize(
    ("body", "said"),
    [("import os", "line 7: 'import os' is not read"), ("return (L_x_.numpy(),)", "method 'numpy' of a tensor is not"),
     ("return (torch.load('x'),)", "function 'torch.load' is not read"), ("return (y,)", "name 'y' is not defined"),
     ("x = 2 ** 70", "cannot be computed"), ("x = L_x_.__class__", "attribute '__class__' of a tensor is not read"),
     ("x = [i for i in L_x_]", "is not read"), ("x = L_x_", "forward returns nothing"),
     ("return (torch.empty([10**15]).unbind()[0],)", "makes 1,000,000,000,000,000 tensors, more than 4,096"),
     ("return (L_x_.relu(*[L_x_]),)", r"arguments by \* are not read"),
     ("return (L_x_.to('cuda:0').new_zeros(3, dtype=torch.Tensor),)", "'torch.Tensor' is not read")],
)  # fmt: skip
def test_what_is_not_read_is_a_sentence(body: str, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        run(body)


def test_programs_of_others_and_damaged_samples_are_sentences(tmp_path: Path) -> None:
    for files, said in (
        ({**CONV, "graph_net.json": b'{"framework": "paddle"}'}, "is a program of paddle"),
        ({"model.py": CONV["model.py"]}, "has no weight_meta.py"),
        ({**CONV, "weight_meta.py": X.encode()}, "does not describe argument L_self_w_"),
        ({**CONV, "weight_meta.py": b"import os"}, "only classes that describe tensors"),
        ({**CONV, "weight_meta.py": CONV["weight_meta.py"].replace(b"[2, 4]", b"[2, -4]")}, "is no shape"),
        (
            {**CONV, "weight_meta.py": CONV["weight_meta.py"].replace(b"None", b"[1.0]", 1)},
            "its 1 values are not the 8 of its shape",
        ),
        ({**CONV, "model.py": b"x = ("}, "line 1: no Python text"),
    ):
        with pytest.raises(GraphError, match=said):
            read_sample(files, "small")


# --- Where samples lie.


def tree(folder: Path) -> Path:
    for name in ("timm/a", "timm/b", "torchvision/c"):
        place = folder / "samples" / name
        place.mkdir(parents=True)
        for part, content in CONV.items():
            (place / part).write_bytes(content)
    (folder / "samples" / "timm" / "b" / "model.py").write_text("import os\n")
    return folder


def dataset(path: Path, **settings: object) -> GraphNet:
    given = {"graphs": "forward", "train": [], "val": [], "left_out": None, "training": None, "testing": None}
    kept = {"cache_dir": str(path.parent / "cache")}
    return GraphNet(name="graphnet", path=str(path), **given | kept | settings)  # type: ignore[arg-type]


def test_a_folder_an_archive_and_a_tree_have_the_same_samples(tmp_path: Path) -> None:
    folder = tree(tmp_path / "tree")
    with tarfile.open(tmp_path / "s.tar.xz", "w:xz") as packed:
        packed.add(folder / "samples", "samples")
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as stored:
        for file in (folder / "samples").rglob("*.py"):
            stored.write(file, file.relative_to(folder))
    places = [folder, folder / "samples", tmp_path / "s.tar.xz", tmp_path / "s.zip"]
    found = [{name: read() for name, read in samples_at(str(place)).items()} for place in places]
    assert all(one == found[0] for one in found) and list(found[0]) == ["timm/a", "timm/b", "torchvision/c"]
    assert (
        sample_at(str(folder / "samples/timm/a"))
        == sample_at(str(tmp_path / "s.tar.xz" / "timm/a"))
        == found[0]["timm/a"]
    )
    with pytest.raises(GraphError, match="has no sample 'timm/z'"):
        sample_at(str(tmp_path / "s.zip" / "timm/z"))
    whole = bytearray((tmp_path / "s.tar.xz").read_bytes())
    whole[len(whole) // 2] ^= 255
    (tmp_path / "s.tar.xz").write_bytes(bytes(whole))
    with pytest.raises(GraphError, match="is damaged"):
        samples_at(str(tmp_path / "s.tar.xz"))
    (tmp_path / "s.zip").write_bytes((tmp_path / "s.zip").read_bytes()[:200])
    with pytest.raises(GraphError, match="is damaged"):
        samples_at(str(tmp_path / "s.zip"))


def test_splits_are_by_package_and_a_bad_sample_is_left_out(tmp_path: Path) -> None:
    made = dataset(tree(tmp_path / "tree"), train=["timm/*"], graphs="both")
    with pytest.warns(UserWarning, match="left out: timm/b/model.py, line 1: 'import os' is not read"):
        train = made.graphs("train")
    assert [graph.name for graph in train] == ["timm/a", "timm/a_backward"] and list(made.unread("train")) == [
        "timm/b",
        "timm/b_backward",
    ]
    assert [graph.name for graph in made.graphs("test")] == ["torchvision/c", "torchvision/c_backward"]
    again = dataset(tmp_path / "tree", train=["timm/*"], graphs="both")
    with pytest.warns(UserWarning, match="left out"):
        assert [graph.hash for graph in again.graphs("train")] == [graph.hash for graph in train]


def test_a_package_is_left_out(tmp_path: Path) -> None:
    """Its programs are tested; the others and the shipped graphs of other libraries train."""
    left = dataset(tree(tmp_path / "tree"), left_out="timm", training=40)
    with pytest.warns(UserWarning, match="left out"):
        found = {split: left.graphs(split) for split in ("train", "val", "test")}
    assert {graph.name for graph in found["test"]} == {"timm/a"}
    libraries = {graph.name.split("/")[0] for graph in (*found["train"], *found["val"])}
    assert len(found["train"]) == 40 and "timm" not in libraries and "transformers" in libraries
    more = dataset(tmp_path / "tree", left_out="timm", training=60).graphs("train")
    assert {graph.hash for graph in found["train"]} <= {graph.hash for graph in more}
    with pytest.raises(ConfigError, match=r"leave dataset\.train and dataset\.val empty"):
        dataset(tmp_path / "tree", left_out="timm", train=["timm/*"])
    with pytest.raises(GraphError, match=r"no sample of .* is a test graph; they are timm, torchvision"):
        dataset(tmp_path / "tree", left_out="none").graphs("test")


def test_programs_run_on_tensors_as_described(tmp_path: Path) -> None:
    (folder := tmp_path / "one").mkdir()
    weights = X.replace("std = 1.0", "std = 1.0\n    min_val = 2.0") + tensor("L_self_w_", [3, 4], data=list(range(12)))
    for part, content in (CONV | {"weight_meta.py": weights.encode()}).items():
        (folder / part).write_bytes(content)
    entry = {"graphnet": str(folder), "backward": True}
    (graph,) = Programs(name="p", train=[], val=[], test=[entry], cache_dir=str(tmp_path)).graphs("test")
    assert graph.name == "one_backward" and Session(graph, "cpu", 1).own_peak > 0
    (rewritten,) = TorchModule(name="torch", module=None, graphnet=str(folder), backward=False).graphs("test")
    assert (
        rewritten.program is not None and rewritten.hash == captured(sample_at(str(folder)), "one", backward=False).hash
    )
    with pytest.raises(ConfigError, match="are two programs"):
        TorchModule(name="torch", module="a:b", graphnet=str(folder), backward=False)
    module, (x,) = model_of({"graphnet": str(folder)})
    assert bool((x >= 2.0).all()) and module.L_self_w_.detach().flatten().tolist() == list(range(12))
    (y,) = module(x)
    assert torch.equal(y, (x @ module.L_self_w_.T + 1).relu())


# --- GraphNet's own samples.

FEW = ("torchgeometric/GCN", "torchgeometric/GIN", "torchvision/alexnet", "torchvision/resnet34", "ultralytics/yolov6n",
       "transformers-auto-model/google/bert_uncased_L-12_H-256_A-4", "mmpose/deeppose_resnet_50_rle",
       "timm/mobilenetv3_large_100.miil_in21k")  # fmt: skip


def compare(folder: Path, names: list[str]) -> tuple[list[str], list[str]]:
    """(names of which executing gives the graph that is read, names that cannot be executed)."""
    command = [sys.executable, str(Path(__file__).with_name("executed_samples.py")), str(folder), *names]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=3600).stdout.splitlines()
    said = dict(line.split(" ", 1) for line in lines)
    assert list(said) == names
    able = [name for name in names if not said[name].startswith("-")]
    for name in able:
        assert captured(sample_at(str(folder / name)), name, backward=False).hash == said[name], name
    return able, [name for name in names if name not in able]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphnet")
    with tarfile.open(check_data("graphs/graphnet.tar.xz")) as packed:
        packed.extractall(folder, filter="data")
    return folder / "samples"


@pytest.mark.slow
def test_what_is_read_equals_what_executing_gives(samples: Path) -> None:
    able, unable = compare(samples, list(FEW))
    assert len(able) >= 6 and set(unable) <= {"torchgeometric/GCN", "ultralytics/yolov6n"}  # values decide there


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_of_the_samples_are_read(samples: Path) -> None:
    """Whatever can be executed, and beside it what needs values."""
    names = list(samples_at(str(samples)))
    able, unable = compare(samples, names)
    assert len(names) == 173 and len(able) >= 150
    graphs = [captured(sample_at(str(samples / name)), name, backward=False) for name in unable]
    assert all(np.isfinite(graph.flops).all() for graph in graphs)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_samples_are_written_as_onnx(samples: Path) -> None:
    """But for one operator that torch.onnx does not have."""
    lacking = set[str]()
    for name in samples_at(str(samples)):
        module, inputs = read_sample(sample_at(str(samples / name)), name).module(fake=True)
        graph = capture(module, inputs, name=name, family=name, backward=False, keep_program=True)
        if graph.num_ops > 1000:
            continue
        try:
            export_onnx(program_of(graph))
        except UserError as error:
            assert "_native_multi_head_attention has no ONNX form" in str(error), name
            lacking.add(name)
    assert lacking == {"torchvision/vit_l_16"}
