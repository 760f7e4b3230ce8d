"""The captured graphs as two files: `graphs.zip`, a member per cluster of related families, and `index.json`.

Left out are copies: graphs in which equally many ops have equal colours. Names of ops are made anew from their kinds
when a graph is read, attributes are left out, and ascending numbers are kept as their steps, which compress better.

Families are clustered by neighbourhoods of their ops: the operators of an op and of its neighbours within two hops. Two
families are as far apart as the share of the smaller one's neighbourhoods that the other lacks; average linkage.
"""

import io
import json
import lzma
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.colours import colours, largest_result
from graphopt.core.errors import Unreadable, writing
from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import OPERATORS
from graphopt.core.utils.limits import MIB, parse_npz, unpack_xz
from graphopt.core.utils.whole import whole_file
from graphopt.graphs.readers.formats.graph_files import ARRAYS, load_graph, stored_arrays

GRAPHS, INDEX = "graphs.zip", "index.json"
STEPS = ("input_ptr", "shape_ptr", "producer")  # kept as differences
APART = 0.6  # farther families are in clusters of their own
HOPS = 2
MOST = 1024 * MIB  # bytes that a cluster unpacks to
SHARES = {"test": 0.35, "val": 0.1}  # of the clusters

Line = dict[str, Any]


def pack(folder: Path, lines: Iterable[Line], versions: Mapping[str, str], target: Path) -> list[Line]:
    """Writes both files; the lines of the index, a graph each."""
    kept, around = distinct(folder, lines)
    clusters = clustered(around)
    splits = split_clusters(clusters)
    index = [
        {key: line[key] for key in ("name", "library", "family", "backward", "ops", "hash")}
        | {"cluster": (number := clusters[line["library"], line["family"]]), "split": splits[number]}
        for line in kept
    ]
    target.mkdir(parents=True, exist_ok=True)
    with writing(target / GRAPHS), whole_file(target / GRAPHS) as file, zipfile.ZipFile(file, "w") as packed:
        for number in sorted(set(clusters.values())):
            graphs = [load_graph(folder / "graphs" / line["graph"]) for line, said in zip(kept, index)
                      if said["cluster"] == number]  # fmt: skip
            packed.writestr(member(number), together(graphs))
    with writing(target / INDEX), whole_file(target / INDEX) as file:
        file.write(_index_text(versions, index).encode())
    return index


def member(cluster: int) -> str:
    return f"{cluster}.npz.xz"


def _index_text(versions: Mapping[str, str], index: Sequence[Line]) -> str:
    """JSON with a line for every graph."""
    lines = ",\n".join(json.dumps(line) for line in index)
    return f'{{"versions": {json.dumps(dict(versions), indent=1)},\n"graphs": [\n{lines}\n]}}\n'


def distinct(folder: Path, lines: Iterable[Line]) -> tuple[list[Line], dict[tuple[str, str], set[int]]]:
    """(the lines whose graphs are no copies, the neighbourhoods of each library's families)."""
    seen, kept, around = set[tuple[int, int]](), [], dict[tuple[str, str], set[int]]()
    for line in lines:
        graph = load_graph(folder / "graphs" / line["graph"])
        if (digest := canonical(graph)) in seen:
            continue
        seen.add(digest)
        kept.append(line)
        around.setdefault((line["library"], line["family"]), set()).update(neighbourhoods(graph).tolist())
    return kept, around


def canonical(graph: Graph) -> tuple[int, int]:
    """Equal for graphs with equally many ops of each colour: (number of ops, sum of the colours of 4 hops)."""
    colour = next(islice(colours(graph, graph.kind, largest_result(graph)), 4, None))
    return graph.num_ops, int(colour.sum(dtype=np.uint64))


def neighbourhoods(graph: Graph) -> NDArray[np.uint64]:
    """[N] which operators are within two hops of each op, and how they are joined."""
    return next(islice(colours(graph, graph.kind), HOPS, None))


def clustered(around: Mapping[tuple[str, str], set[int]]) -> dict[tuple[str, str], int]:
    """Family -> number of its cluster, from 0 on in the order of the families' names."""
    from scipy.cluster.hierarchy import fcluster, linkage

    families = sorted(around)
    if len(families) < 2:
        return dict.fromkeys(families, 0)
    apart = [
        1 - len(around[a] & around[b]) / min(len(around[a]), len(around[b]))
        for i, a in enumerate(families) for b in families[i + 1 :]
    ]  # fmt: skip
    found = fcluster(linkage(np.array(apart), "average"), APART, "distance").tolist()
    numbers = {cluster: i for i, cluster in enumerate(dict.fromkeys(found))}
    return {family: numbers[cluster] for family, cluster in zip(families, found)}


def split_clusters(clusters: Mapping[tuple[str, str], int]) -> dict[int, str]:
    """Cluster -> split, drawn once and for all. The five largest clusters are for training: the splits are of clusters,
    and one of them would be most of a test."""
    sizes = np.bincount(list(clusters.values()))
    largest = np.argsort(-sizes, kind="stable")[:5]
    rest = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(len(sizes)), largest))
    test = rest[: round(SHARES["test"] * len(sizes))]
    val = rest[len(test) : len(test) + round(SHARES["val"] * len(sizes))]
    return {n: "test" if n in test else "val" if n in val else "train" for n in range(len(sizes))}


def together(graphs: Sequence[Graph]) -> bytes:
    """The arrays of all graphs, each kind one after another, and how long each is [graphs, arrays]; packed by LZMA."""
    arrays = {name: [_as_steps(name, getattr(graph, name)) for graph in graphs] for name in ARRAYS}
    joined: dict[str, Any] = {name: np.concatenate(column) for name, column in arrays.items()}
    lengths = np.array([[len(array) for array in column] for column in arrays.values()]).T
    buffer = io.BytesIO()
    np.savez(buffer, lengths=lengths, **joined)
    return lzma.compress(buffer.getvalue(), preset=6)


def _as_steps(name: str, array: NDArray[Any]) -> NDArray[Any]:
    return np.diff(array, prepend=array.dtype.type(0)) if name in STEPS else array


def unpack(content: bytes, source: str, called: Sequence[tuple[str, str]]) -> list[Graph]:
    """The graphs of a cluster. called: names and families, in order. Raises Unreadable or GraphError."""
    arrays = parse_npz(unpack_xz(content, MOST, source), source, MOST)
    if set(arrays) != {*ARRAYS, "lengths"} or arrays["lengths"].shape != (len(called), len(ARRAYS)):
        raise Unreadable(f"{source} does not hold the {len(called)} graphs that its index names")
    parts = {name: np.split(arrays[name], np.cumsum(column)[:-1]) for name, column in zip(ARRAYS, arrays["lengths"].T)}
    return [_graph({key: column[i] for key, column in parts.items()}, *names) for i, names in enumerate(called)]


def _graph(own: dict[str, Any], name: str, family: str) -> Graph:
    own = stored_arrays(own | {key: np.cumsum(own[key], dtype=own[key].dtype) for key in STEPS})
    if len(own["kind"]) and not 0 <= own["kind"].min() <= own["kind"].max() < len(OPERATORS):
        raise GraphError(f"{name}: there are operators that this version does not know")
    names = tuple(f"{OPERATORS[kind].name}_{op}" for op, kind in enumerate(own["kind"].tolist()))
    return Graph(name=name, family=family, op_names=names, **own)
