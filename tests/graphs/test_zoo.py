"""The zoo: published sizes, scaling, splits without shared families, the cache; which sources a module is made of."""

import inspect
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from graphopt.core.graph import GraphError
from graphopt.core.operators import OPERATOR_ID, Category
from graphopt.graphs import cache, zoo_dataset
from graphopt.graphs.dataset import check_splits
from graphopt.graphs.readers.pytorch.capture import fake_mode
from graphopt.graphs.readers.pytorch.sources import source_files
from graphopt.graphs.torch_module import TorchModule
from graphopt.graphs.zoo import MODELS
from graphopt.graphs.zoo_dataset import Collection, ZooDataset, capture_model, collections, family_of, spec_name
from graphopt.run.cell import content_of

# --- The zoo: published sizes, scaling, splits without shared families, and the cache.

SMALL = {"model": "wavenet", "stacks": 1, "layers": 2, "seq": 64, "channels": 8}
OTHER = {"model": "unet", "depth": 1, "size": 16, "channels": 4}


def dataset(folder: Path, **splits: list[dict[str, Any]]) -> ZooDataset:
    given = {split: splits.get(split, []) for split in ("train", "val", "test")}
    return ZooDataset(name="zoo", collection=None, cache_dir=str(folder), **given)


# Parameters of the published models as their papers' reference code has them (no published count for the others).
PUBLISHED = {
    ("squeezenet", ()): 1_235_496,  # version 1.1
    ("resnet18", ()): 11_689_512,
    ("resnext50", ()): 25_028_904,
    ("inception_v3", ()): 23_834_568,
    ("mnasnet", ()): 4_383_312,
    ("vit", (("layers", 12),)): 22_050_664,
    ("bert", (("layers", 12), ("width", 768), ("heads", 12), ("seq", 512), ("vocabulary", 30522))): 109_482_240,
}


@pytest.mark.parametrize("name, sizes", PUBLISHED)
def test_parameters_equal_the_published_models(name: str, sizes: tuple[tuple[str, int], ...]) -> None:
    build = next(model for model in MODELS if model.__name__ == name)
    with fake_mode():
        module, _ = build(**dict(sizes))
    assert sum(p.numel() for p in module.parameters()) == PUBLISHED[name, sizes]


@pytest.mark.parametrize("name, size, step", [
    ("rnnlm", "steps", 2 * 13), ("gnmt", "layers", None), ("transformer_xl", "segments", None),
    ("wavenet", "layers", 2 * 10),
    pytest.param("amoebanet", "depth", None, marks=pytest.mark.slow),
    ("graph_nets", "rounds", None), ("deep_rank", "candidates", None),
    ("dalle_mini", "layers", None), ("transformer_transducer", "layers", None), ("ssd_mobilenet", "depth", 8),
])  # fmt: skip
def test_ops_grow_linearly_with_depth(name: str, size: str, step: int | None) -> None:
    counts = []
    for value in (4, 5, 6):
        graph = capture_model({"model": name, size: value})
        counts.append(int((graph.category != Category.VIEW).sum()))
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0
    assert step is None or counts[1] - counts[0] == step


def test_weights_of_a_model_are_its_parameters() -> None:
    with fake_mode():
        module, _ = next(m for m in MODELS if m.__name__ == "rnnlm")(layers=2, steps=3)
    graph = capture_model({"model": "rnnlm", "layers": 2, "steps": 3, "backward": True})
    read = {int(t) for t in graph.input_tensor if graph.is_weight[t]}
    shapes = sorted(graph.tensor_shape(t) for t in read)
    assert set(shapes) >= {tuple(p.shape) for p in module.parameters()} - {(4096, 512)}
    gradients = [graph.tensor_shape(t) for t in np.flatnonzero(graph.is_output)]
    assert sorted(gradients) == sorted([(16, 3, 4096), *(tuple(p.shape) for p in module.parameters())])
    assert all(np.diff(graph.consumers[0])[t] > 0 for t in np.flatnonzero(graph.is_weight))


def test_default_splits_share_no_family_and_use_known_operators(tmp_path: Path) -> None:
    data = _default(tmp_path)
    splits = {split: data.graphs(split) for split in ("train", "val", "test")}
    check_splits(splits)
    assert len({g.family for g in splits["train"]}) >= 8 and len({g.family for g in splits["test"]}) >= 7
    for graph in (g for graphs in splits.values() for g in graphs):
        assert not np.any(graph.kind == OPERATOR_ID["opaque"])
        assert len(set(graph.op_names)) == graph.num_ops


def _default(folder: Path) -> ZooDataset:
    forward = {  # the largest graphs take seconds
        split: [spec for spec in specs if not spec.get("backward")]
        for split, specs in collections()["standard"].items()
    }
    return dataset(folder, **forward)


def test_second_load_captures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = dataset(tmp_path, test=[SMALL]).graphs("test")[0]
    monkeypatch.setattr(zoo_dataset, "capture_model", lambda spec: pytest.fail("captured again"))
    second = dataset(tmp_path, test=[SMALL]).graphs("test")[0]
    assert second.hash == first.hash and second.op_names == first.op_names and second.family == "wavenet"


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_damaged_cache_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    first = dataset(tmp_path, test=[SMALL]).graphs("test")[0]
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage if damage is not None else file.read_bytes()[:-40])
    assert dataset(tmp_path, test=[SMALL]).graphs("test")[0].hash == first.hash
    assert dataset(tmp_path, test=[SMALL]).graphs("test")[0].hash == first.hash


def test_cache_depends_on_sizes_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = dataset(tmp_path)._cache
    path = cache.path("wavenet", SMALL)
    assert cache.path("wavenet", {**SMALL, "layers": 3}) != path == cache.path("wavenet", dict(reversed(SMALL.items())))
    monkeypatch.setattr("graphopt.graphs.cache.source_digest", lambda: "other")
    assert cache.path("wavenet", SMALL) != path


def test_a_family_in_two_splits_is_refused_before_capturing(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="family 'resnet'"):
        dataset(tmp_path, train=[{"model": "resnet18"}], test=[{"onnx": "light_resnet50"}]).graphs("train")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spec, words", [
    ({"model": "alexnet"}, "there are amoebanet, bert"),
    ({"model": "rnnlm", "depth": 2}, "has no size 'depth'; it has layers, steps"),
    ({"model": "rnnlm", "layers": 0}, "positive whole number"),
    ({"model": "rnnlm", "layers": "two"}, "positive whole number"),
    ({"model": "bert", "width": 100, "heads": 7}, "bert_width100_heads7"),
    ({"layers": 2}, "a zoo entry is"),
    ({"onnx": "light_squeezenet", "batch": 2}, "fixed sizes"),
    ("rnnlm", "a zoo entry is"),
])  # fmt: skip
def test_bad_entries_are_refused_in_one_sentence(tmp_path: Path, spec: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        dataset(tmp_path, test=[spec]).graphs("test")


def test_every_size_is_a_whole_number_with_a_default() -> None:
    for model in MODELS:
        for parameter in inspect.signature(model).parameters.values():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY and type(parameter.default) is int


def test_names_say_what_was_asked() -> None:
    assert spec_name({**OTHER, "backward": True}) == "unet_depth1_size16_channels4_backward"
    assert spec_name({"onnx": "light_vgg19"}) == "light_vgg19"


@pytest.mark.parametrize("name", get_args(Collection))
def test_shipped_sets_keep_families_apart_and_take_known_sizes(name: str) -> None:
    """By names alone: capturing all of them takes a minute."""
    splits = collections()[name]
    families = {split: {family_of(spec) for spec in specs} for split, specs in splits.items()}
    assert not families["train"] & families["val"] | families["train"] & families["test"]
    assert not families["val"] & families["test"] and len(families["val"]) >= 1 + (name != "go")
    known = {model.__name__: inspect.signature(model).parameters for model in MODELS}
    for spec in (spec for specs in splits.values() for spec in specs if "model" in spec):
        assert set(spec) - {"model", "backward"} <= set(known[spec["model"]]), spec
    names = [spec_name(spec) for specs in splits.values() for spec in specs]
    assert len(set(names)) == len(names)


# --- Which source files a user's module is made of.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "mine/__init__.py": "import json",
        "mine/models.py": "from . import layers\nfrom .deep import block as b\nimport numpy, torch\nimport aside.one",
        "mine/layers.py": "def x():\n    from mine import lazily",
        "mine/lazily.py": "import mine.models",
        "mine/deep/__init__.py": "from ..other import thing",
        "mine/deep/block.py": "syntax error here",
        "mine/other.py": "",
        "mine/unused.py": "",
        "aside/one.py": "import gone",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_what_a_module_imports_counts_but_for_what_is_installed(place: Path) -> None:
    found = [str(file.relative_to(place)) for file in source_files("mine.models")]
    assert found == sorted([
        "aside/one.py", "mine/__init__.py", "mine/deep/__init__.py", "mine/deep/block.py", "mine/layers.py",
        "mine/lazily.py", "mine/models.py", "mine/other.py",
    ])  # fmt: skip
    assert "mine" not in sys.modules
    assert source_files("nowhere.at_all") == source_files("") == source_files("torch.nn") == []


def test_another_source_is_another_content(place: Path) -> None:
    target = f"{TorchModule.__module__}.TorchModule"
    node = {"_target_": target, "name": "torch", "module": "mine.models:make", "graphnet": None, "backward": False}
    config = {"dataset": node, "seed": 0}
    before = content_of(config)
    assert before and before == content_of(config)
    (place / "mine" / "unused.py").write_text("x = 1")
    assert content_of(config) == before
    (place / "mine" / "lazily.py").write_text("y = 1")
    assert content_of(config) != before


def test_folders_beside_the_sources_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps compiled modules in one beside every module."""
    monkeypatch.setattr(cache, "SOURCES", ("graphs/*",))
    assert cache.source_digest.__wrapped__()
