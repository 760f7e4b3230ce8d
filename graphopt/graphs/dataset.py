"""The dataset's contract: graphs in three splits."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

from graphopt.core.errors import UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.terminal import Bar

Split = Literal["train", "val", "test"]


class Dataset(ABC):
    """Graphs to learn on, to validate on and to report on. Graphs are made when first asked for and kept in the object.

    `gives` names what every graph carries beyond the arrays (e.g. `program` for executing cost models). kept: whether a
    study keeps its graphs; those of third parties stay in their place, and answers to them are replayed from there.
    """

    name: str
    gives: ClassVar[frozenset[str]] = frozenset()
    kept: bool = True
    _left: Mapping[Split, Mapping[str, str]] = {}  # of `leaving_out`

    def unread(self, split: Split) -> Mapping[str, str]:
        """Inputs of a split that `graphs` left out since they cannot become graphs: name -> why, in one sentence. The
        harness makes a failed row of each."""
        return self._left.get(split, {})

    @contextmanager
    def leaving_out(self, split: Split, name: str, *, alone: bool) -> Iterator[None]:
        """An input that cannot become graphs is left out, with a warning, and stands in `unread`; one alone is an
        error."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            if alone:
                raise
            foreseen = isinstance(error, GraphError | UserError)
            said = str(error) if foreseen else f"{name}: {type(error).__name__}: {error}"
            self._left = {**self._left, split: {**self._left.get(split, {}), name: said}}
            warnings.warn(f"left out: {said}", stacklevel=3)

    def extent(self) -> int | None:
        """About how many ops all its graphs have, found from its settings alone; None where these name files or code. A
        stored configuration has its graphs made again only where their size is known to be reasonable."""
        return None

    def suggested_devices(self) -> list[dict[str, dict[str, float]]]:
        """The machines that its files were made for, each once: kind of device -> fields such as `count`,
        `capacity`. Empty where they say nothing. Raises GraphError on files that cannot be read."""
        return []

    def origin(self, graph: Graph) -> str:
        """Name of the data set that a graph is reported under: this one, but for mixtures."""
        return self.name

    def files(self) -> Sequence[Path]:
        """The user's files that graphs are read from; results are of their content. Raises GraphError when they cannot
        be found."""
        return ()

    @abstractmethod
    def graphs(self, split: Split) -> list[Graph]:
        """The graphs of a split, possibly none. Raises GraphError, in one sentence, when they cannot be made."""


Entry = Mapping[str, Any]


class EntryDataset(Dataset):
    """Graphs by entries of each split, mappings that describe a graph.

    apart: whether no two splits may share a family; an equal graph they never share.
    """

    apart = True

    def __init__(self, name: str, entries: Mapping[Split, Sequence[Entry]]) -> None:
        self.name, self._entries = name, dict(entries)
        self._graphs: dict[Split, list[Graph]] = {}

    @abstractmethod
    def graph_of(self, entry: Entry) -> Graph:
        """The graph of an entry. Raises GraphError on a bad one."""

    def is_quick(self, entry: Entry) -> bool:
        """Whether its graph is made within a moment: then nothing says how far the loading is."""
        return False

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            entries = self._entries[split]
            with Bar("capture", len(entries)) if not all(map(self.is_quick, entries)) else nullcontext() as bar:
                made: list[Graph] = []
                for entry in entries:
                    label = " ".join(f"{key}={value}" for key, value in entry.items())
                    with self.leaving_out(split, label, alone=len(entries) == 1):
                        made.append(self.graph_of(entry))
                    if bar is not None:
                        bar.step(made[-1].name if made else label)
            self._graphs[split] = made
            check_splits(self._graphs, families=self.apart)
        return self._graphs[split]


# Sizes of models that say how often something is repeated; other sizes are those of tensors.
REPEATS = frozenset({"layers", "label_layers", "steps", "depth", "stacks", "rounds", "candidates", "segments", "convs",
                     "blocks", "audio_blocks", "label_blocks", "cells", "frames", "labels"})  # fmt: skip
MOST_OPS, MOST_GRAPHS = 10**7, 10**6  # that are drawn
OPS_OF_A_PART = 100  # ops that a repeated part of a model has, about


def models_extent(entries: Mapping[Split, Sequence[Entry]]) -> int:
    """About how many ops the models of entries `{model: NAME, sizes...}` have."""
    every = [entry for of_split in entries.values() for entry in of_split]
    counts = [[n for key, n in entry.items() if key in REPEATS and isinstance(n, int)] for entry in every]
    return sum(OPS_OF_A_PART * prod(repeats) for repeats in counts)


def check_draws(graph_seed: int, counts: Sequence[int], sizes: Sequence[int]) -> None:
    """Raises GraphError unless so many graphs of so many ops, from that seed, can be drawn."""
    if graph_seed < 0:
        raise GraphError(f"dataset.graph_seed={graph_seed} must not be negative")
    if min(counts, default=0) < 0:
        raise GraphError(f"a data set cannot have {min(counts)} graphs; give numbers that are not negative")
    if min(sizes, default=0) < 8:
        raise GraphError(f"synthetic graphs need at least 8 ops, not {str(list(sizes))[:200]}")
    for what, number, most in (("ops in a graph", max(sizes), MOST_OPS), ("graphs", sum(counts), MOST_GRAPHS)):
        if number > most:
            raise GraphError(f"{number:,} {what} are more than can be drawn; ask for at most {most:,}")


def check_splits(splits: dict[Split, list[Graph]], families: bool = True) -> None:
    """Raises GraphError when two splits share an equal graph or, if `families`, an architecture family."""
    family_of: dict[str, Split] = {}
    split_of: dict[str, tuple[Split, str]] = {}
    for split, graphs in splits.items():
        for graph in graphs:
            other = family_of.setdefault(graph.family, split)
            if families and other != split:
                raise GraphError(
                    f"family {graph.family!r} stands in {other} and in {split}; move {graph.name!r} to {other}"
                )
            twin_split, twin = split_of.setdefault(graph.hash, (split, graph.name))
            if twin_split != split:
                raise GraphError(f"graph {graph.name!r} ({split}) equals {twin!r} ({twin_split}); remove one of them")
