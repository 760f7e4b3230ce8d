"""`graphnet`: programs of other people's models, as GraphNet (arXiv 2510.24035) collects them, read as data."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np

from graphopt.core.errors import ConfigError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import Graphs, OwnFolder, UserPath
from graphopt.core.utils.terminal import Bar
from graphopt.graphs.cache import GraphCache
from graphopt.graphs.dataset import Dataset, Split
from graphopt.graphs.files import split_of
from graphopt.graphs.models import Models
from graphopt.graphs.readers.pytorch.graphnet.archive import Files, Samples, files_at, samples_at


class GraphNet(Dataset):
    """Samples of a folder, of GraphNet's own tree, or of an archive; each is called PACKAGE/MODEL, as its folders are.

    Nothing is executed: `model.py` and the files on its tensors are parsed, and shapes follow without computing.
    graphs: the programs as they are; with the gradients of all parameters; or both. train, val: patterns of names for
    those splits, e.g. `timm/*`; all others are test graphs. A graph's family is its cluster among those of its split:
    graphs are together whose ops have alike surroundings. left_out: instead of patterns, the package whose programs are
    the test graphs; training has those of all others, and the graphs of `dataset=models` of other libraries, of which
    validation has its own. training, testing: at most so many graphs of these splits, drawn once; null: all. cache_dir:
    folder of captured graphs; null: $GRAPHOPT_CACHE, else ~/.cache/graphopt.
    """

    def __init__(
        self, *, name: str, path: UserPath, graphs: Literal["forward", "backward", "both"], train: list[str],
        val: list[str], left_out: str | None, training: Graphs | None, testing: Graphs | None,
        cache_dir: OwnFolder,
    ) -> None:  # fmt: skip
        if left_out is not None and (train or val):
            raise ConfigError(
                f"dataset.left_out={left_out} makes the splits; leave dataset.train and dataset.val empty"
            )
        self.name, self._path, self._left_out = name, path, left_out
        self._most: dict[Split, int | None] = {"train": training, "val": None, "test": testing}
        self._patterns: dict[Split, list[str]] = {"train": list(train), "val": list(val)}
        self._backward = {"forward": (False,), "backward": (True,), "both": (False, True)}[graphs]
        self._cache = GraphCache(cache_dir)
        self._graphs: dict[Split, list[Graph]] = {}

    @property
    def _place(self) -> str:
        if self._path is None:
            raise GraphError(
                f"dataset={self.name} needs dataset.path=..., a folder or an archive of GraphNet's samples"
            )
        return self._path

    def files(self) -> list[Path]:
        return files_at(Path(self._place).expanduser())

    @cached_property
    def _samples(self) -> Samples:
        return samples_at(self._place)

    def unread(self, split: Split) -> Mapping[str, str]:
        self.graphs(split)
        return self._left.get(split, {})

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            names = [name for name in self._samples if self._split_of(name) == split]
            if split == "test" and self._left_out is not None and not names:
                raise GraphError(f"no sample of {self._place} is a test graph; they are {', '.join(self._packages)}")
            found: list[Graph] = []
            with Bar("capture", len(names)) as bar:
                for name in names:
                    for backward in self._backward:
                        with self.leaving_out(split, name + "_backward" * backward, alone=len(self._samples) == 1):
                            found.append(self._captured(name, backward))
                    bar.step(name)
            found += self._shipped(split)
            drawn = sorted(np.random.default_rng(0).permutation(len(found))[: self._most[split]])
            self._graphs[split] = by_cluster([found[i] for i in drawn])
        return self._graphs[split]

    @property
    def _packages(self) -> list[str]:
        return sorted({name.split("/")[0] for name in self._samples})

    def _split_of(self, name: str) -> Split:
        if self._left_out is None:
            return split_of(name, self._patterns)
        return "test" if name.split("/")[0] == self._left_out else "train"

    def _shipped(self, split: Split) -> list[Graph]:
        """Graphs of `dataset=models`, if a package is left out, of libraries that are not it."""
        if self._left_out is None or split == "test":
            return []
        models = Models(name="models", min_ops=50, max_ops=2000, training=None, testing=None, purged=False, path=None)
        own: tuple[Split, ...] = ("val",) if split == "val" else ("train", "test")
        package = bare(self._left_out)
        return [graph for part in own for graph in models.graphs(part)
                if not package.startswith(bare(graph.name.split("/")[0]))]  # fmt: skip

    def _captured(self, name: str, backward: bool) -> Graph:
        files = self._samples[name]()
        digest = hashlib.sha256(b"".join(hashlib.sha256(files[key]).digest() for key in sorted(files))).hexdigest()
        request = {"content": digest, "name": name, "backward": backward}
        stem = f"graphnet-{name.replace('/', '_')}{'_backward' * backward}"
        return self._cache.get(stem, request, partial(captured, files, name, backward=backward))


def bare(package: str) -> str:
    """`torch_geometric` and `torchgeometric` are one; `transformers-auto-model` begins with `transformers`."""
    return "".join(filter(str.isalnum, package.lower()))


def captured(files: Files, name: str, *, backward: bool) -> Graph:
    """The graph of a sample. Raises GraphError, in one sentence that names file, line and operator."""
    from graphopt.graphs.readers.pytorch.capture import capture
    from graphopt.graphs.readers.pytorch.graphnet.sample import read_sample

    module, inputs = read_sample(files, name).module(fake=True)
    return capture(module, inputs, name=name + "_backward" * backward, family=name, backward=backward,
                   keep_program=False)  # fmt: skip


def by_cluster(graphs: Sequence[Graph]) -> list[Graph]:
    """The graphs with the names of their clusters for families."""
    from graphopt.graphs.library.packing import clustered, neighbourhoods

    around: dict[tuple[str, str], set[int]] = {}
    for graph in graphs:
        around.setdefault(("", graph.family), set()).update(neighbourhoods(graph).tolist())
    clusters = clustered(around)
    first: dict[int, str] = {}
    for (_, family), cluster in clusters.items():
        first.setdefault(cluster, family)
    return [replace(graph, family=first[clusters["", graph.family]]) for graph in graphs]
