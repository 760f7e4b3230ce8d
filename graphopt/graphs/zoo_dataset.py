"""The model zoo as a data set: architectures from the papers at chosen sizes, split by family, cached on disk."""

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import OwnFolder
from graphopt.graphs.cache import GraphCache
from graphopt.graphs.dataset import EntryDataset, Split, models_extent

Spec = Mapping[str, Any]

# Architectures that are variants of one another, and the ONNX models of the same family, stand in one split.
SHARED_FAMILIES = {
    "resnet18": "resnet",
    "resnext50": "resnet",
    "inception_v3": "inception",
    "mnasnet": "mobilenet",
    "ssd_mobilenet": "mobilenet",
}


Collection = Literal["standard", "large", "laf", "go", "go_large", "regal"]


@cache
def collections() -> dict[str, dict[Split, list[Spec]]]:
    """Collection -> split -> entries."""
    made: dict[str, dict[Split, list[Spec]]] = yaml.safe_load(
        (Path(__file__).parent / "zoo" / "collections.yaml").read_text()
    )
    return made


class ZooDataset(EntryDataset):
    """Graphs by entries: `{model: rnnlm, layers: 2, backward: true}` (a model of `graphopt.graphs.zoo` and its sizes;
    missing sizes have the model's default) or `{onnx: light_squeezenet}` (a CNN of the `onnx` package).

    collection: a key of `zoo/collections.yaml`. train, val, test: entries of a split instead of the collection's.
    cache_dir: folder of captured graphs; null: $GRAPHOPT_CACHE, else ~/.cache/graphopt.
    Raises GraphError when an architecture family or a graph stands in two splits.
    """

    def __init__(
        self, *, name: str, collection: Collection | None, train: list[Spec] | None, val: list[Spec] | None,
        test: list[Spec] | None, cache_dir: OwnFolder,
    ) -> None:  # fmt: skip
        entries = {} if collection is None else collections()[collection]
        own: dict[Split, list[Spec] | None] = {"train": train, "val": val, "test": test}
        super().__init__(name, {split: entries.get(split, []) if of is None else of for split, of in own.items()})
        self._cache = GraphCache(cache_dir)

    def extent(self) -> int:
        return models_extent(self._entries)

    def graphs(self, split: Split) -> list[Graph]:
        self._check_families()
        return super().graphs(split)

    def _check_families(self) -> None:
        """By names alone, before anything is captured."""
        first: dict[str, Split] = {}
        for split, specs in self._entries.items():
            for spec in specs:
                other = first.setdefault(family_of(spec), split)
                if other != split:
                    raise GraphError(f"dataset.{split} holds {spec_name(spec)}, whose family {family_of(spec)!r} also "
                                     f"stands in dataset.{other}; keep a family in one split")  # fmt: skip

    def is_quick(self, entry: Spec) -> bool:
        return "onnx" in entry or self._cache.has(spec_name(entry), entry)

    def graph_of(self, entry: Spec) -> Graph:
        if "onnx" in entry:
            from graphopt.graphs.onnx import load_light

            return load_light(entry["onnx"])
        return self._cache.get(spec_name(entry), entry, lambda: capture_model(entry))


def spec_name(spec: Spec) -> str:
    """The graph's name: model, sizes, and `backward` for training graphs. Raises GraphError on a bad entry."""
    if not isinstance(spec, Mapping) or ("model" in spec) == ("onnx" in spec):
        raise GraphError(f"a zoo entry is {{model: NAME, sizes...}} or {{onnx: NAME}}, not {spec!r}")
    if "onnx" in spec:
        if len(spec) > 1:
            raise GraphError(
                f"the ONNX model {spec['onnx']!r} has fixed sizes; remove {', '.join(set(spec) - {'onnx'})}"
            )
        return str(spec["onnx"])
    sizes = [f"{key}{value}" for key, value in spec.items() if key not in ("model", "backward")]
    return "_".join([str(spec["model"]), *sizes, *(["backward"] if spec.get("backward") else [])])


def family_of(spec: Spec) -> str:
    """The architecture family, by which data are split."""
    name = spec_name(spec)
    if "onnx" in spec:
        from graphopt.graphs.onnx import LIGHT_FAMILIES

        return LIGHT_FAMILIES.get(name, name)
    return SHARED_FAMILIES.get(spec["model"], str(spec["model"]))


def capture_model(spec: Spec, *, keep_program: bool = False) -> Graph:
    """The graph of a `{model: ...}` entry; `keep_program` as in `capture`. Raises GraphError, with the known names, on
    unknown models and sizes."""
    from graphopt.graphs.readers.pytorch.capture import capture, fake_mode
    from graphopt.graphs.zoo import MODELS

    models = {model.__name__: model for model in MODELS}
    if spec["model"] not in models:
        raise GraphError(f"no model {spec['model']!r} in the zoo; there are {', '.join(sorted(models))}")
    build, sizes = models[spec["model"]], {k: v for k, v in spec.items() if k not in ("model", "backward")}
    known = inspect.signature(build).parameters
    for key, value in sizes.items():
        if key not in known:
            raise GraphError(f"model {spec['model']} has no size {key!r}; it has {', '.join(known)} and backward")
        if type(value) is not int or value < 1:
            raise GraphError(f"model {spec['model']}: {key} must be a positive whole number, not {value!r}")
    try:
        with fake_mode():
            module, inputs = build(**sizes)
    except (RuntimeError, ValueError, TypeError) as error:
        raise GraphError(f"model {spec_name(spec)} cannot be built with these sizes: {error}") from error
    return capture(module, inputs, name=spec_name(spec), family=family_of(spec), backward=bool(spec.get("backward")),
                   keep_program=keep_program)  # fmt: skip
