"""The collection of library models: packed, and read again."""

import io
import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.graphs.library.packing import canonical, clustered, neighbourhoods, pack, split_clusters, together, unpack
from graphopt.graphs.models import Models
from graphopt.graphs.readers.formats.graph_files import save_graph


def chain(kinds: Sequence[str], name: str = "chain", width: int = 4, order: Sequence[int] = ()) -> Graph:
    """Ops after each other, and beside them a second input; `order` exchanges independent ops."""
    b = GraphBuilder(name, name)
    x = b.tensor((width,))
    for kind in kinds:
        y = b.tensor((width,))
        b.op(kind, [x], [y])
        x = y
    b.output(x)
    return b.build()


def two_branches(swapped: bool) -> Graph:
    b = GraphBuilder("g", "g")
    x, ends = b.tensor((4,)), []
    for kind in ("tanh", "exp")[:: -1 if swapped else 1]:
        ends.append(b.tensor((4,)))
        b.op(kind, [x], ends[-1:])
    total = b.tensor((4,))
    b.op("add", ends, [total])
    b.output(total)
    return b.build()


def collection(tmp_path: Path, graphs: Sequence[Graph]) -> tuple[Path, list[dict[str, object]]]:
    lines: list[dict[str, object]] = []
    for i, graph in enumerate(graphs):
        save_graph(tmp_path / "raw" / "graphs" / f"{i}.npz", graph)
        lines.append({"name": graph.name, "library": "own", "family": graph.family, "backward": False,
                      "graph": f"{i}.npz", "ops": graph.num_ops, "hash": graph.hash})  # fmt: skip
    return tmp_path / "raw", lines


def test_copies_are_found_whatever_the_order_of_ops() -> None:
    assert two_branches(False).hash != two_branches(True).hash
    assert canonical(two_branches(False)) == canonical(two_branches(True))
    assert canonical(chain(["exp", "tanh"])) != canonical(chain(["tanh", "exp"]))
    assert canonical(chain(["exp"], width=4)) != canonical(chain(["exp"], width=8))


def test_families_with_the_same_neighbourhoods_are_one_cluster() -> None:
    graphs = {"a": chain(["exp", "tanh", "neg"] * 9), "b": chain(["exp", "tanh", "neg"] * 5, width=64),
              "c": chain(["sqrt", "relu", "abs"] * 5)}  # fmt: skip
    clusters = clustered({("own", name): set(neighbourhoods(graph).tolist()) for name, graph in graphs.items()})
    assert clusters["own", "a"] == clusters["own", "b"] != clusters["own", "c"]
    assert clustered({("own", "a"): {1}}) == {("own", "a"): 0}


def test_splits_are_of_clusters_and_the_largest_are_for_training() -> None:
    clusters = {("own", f"{i}-{j}"): i for i in range(40) for j in range(1 + 5 * (i < 5))}
    splits = split_clusters(clusters)
    assert [splits[i] for i in range(5)] == ["train"] * 5 and splits == split_clusters(clusters)
    assert list(splits.values()).count("test") == 14 and list(splits.values()).count("val") == 4


def test_packed_graphs_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = ("exp", "tanh", "neg", "relu", "sqrt", "abs", "sigmoid")
    graphs = [chain(rng.choice(kinds, 60).tolist(), f"m{i}", int(rng.integers(2, 50))) for i in range(30)]
    folder, lines = collection(tmp_path, [*graphs, graphs[3]])
    index = pack(folder, lines, {"own": "1.0"}, tmp_path / "packed")
    assert len(index) == 30  # the copy is left out
    data = models(tmp_path / "packed")
    found = {graph.name: graph for split in ("train", "val", "test") for graph in data.graphs(split)}
    assert {name: graph.hash for name, graph in found.items()} == {graph.name: graph.hash for graph in graphs}
    assert len(set(found["m0"].op_names)) == found["m0"].num_ops
    some = models(tmp_path / "packed", training=7).graphs("train")
    assert len(some) == 7 and {g.hash for g in some} <= {g.hash for g in data.graphs("train")}
    assert not models(tmp_path / "packed", min_ops=61).graphs("train")


def models(path: Path, *, min_ops: int = 1, training: int | None = None, testing: int | None = None,
           purged: bool = False) -> Models:  # fmt: skip
    return Models(name="models", min_ops=min_ops, max_ops=1000, training=training, testing=testing, purged=purged,
                  path=str(path))  # fmt: skip


def test_ops_whose_surroundings_are_tested_are_held_out(tmp_path: Path) -> None:
    """The middle of one kind of chain occurs in all; its ends and whole other chains do not."""
    common = ["exp"] * 6
    graphs = [chain([kind, *common, kind], f"m{i}", 4 + i) for i, kind in enumerate(("tanh", "neg", "abs", "relu") * 8)]
    folder, lines = collection(tmp_path, graphs)
    pack(folder, lines, {}, tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    for line in index["graphs"]:
        line["split"] = {"4": "train", "5": "test", "6": "val"}.get(str(4 + int(line["name"][1:]) % 4), "train")
    (tmp_path / "index.json").write_text(json.dumps(index))
    far = models(tmp_path, purged=True)
    for split, later in (("train", ("val", "test")), ("val", ("test",)), ("test", ())):
        asked = {n for other in later for graph in far.graphs(other) for n in neighbourhoods(graph).tolist()}
        for graph in far.graphs(split):
            assert graph.train_mask.tolist() == [n not in asked for n in neighbourhoods(graph).tolist()]
            assert asked == set() or 0 < graph.train_mask.sum() < graph.num_ops
    assert all(graph.train_mask.all() for graph in models(tmp_path).graphs("train"))


@pytest.mark.parametrize("damage", ["no index", "cut", "other", "hash", "ops", "name", "lines"])
def test_damaged_collections_are_one_sentence(tmp_path: Path, damage: str) -> None:
    folder, lines = collection(tmp_path, [chain(["exp"] * 9, f"m{i}", 4 + i) for i in range(8)])
    pack(folder, lines, {}, tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    if damage == "no index":
        (tmp_path / "index.json").unlink()
    elif damage == "cut":
        content = (tmp_path / "graphs.zip").read_bytes()
        (tmp_path / "graphs.zip").write_bytes(content[: len(content) // 2])
    elif damage == "other":
        index["graphs"].pop()
    elif damage == "lines":
        index["graphs"] = [3]
    else:
        index["graphs"][0][damage] = "0" * 16 if damage == "hash" else [1]
    if damage not in ("no index", "cut"):
        (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(GraphError, match=r"cannot be read|holds no collection|is damaged"):
        models(tmp_path).graphs("train")


def test_damaged_arrays_are_one_sentence() -> None:
    """Numbers changed at random in what is packed, whole otherwise: a graph, or a sentence."""
    arrays = np.load(io.BytesIO(lzma.decompress(together([chain(["exp", "tanh"] * 9), chain(["neg"] * 12)]))))
    refused = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        changed = {name: array.copy() for name, array in arrays.items()}
        name = str(rng.choice(list(changed)))
        flat = changed[name].reshape(-1)
        flat[rng.integers(len(flat))] = rng.choice([0, 1, -1, 100, 2**40]).astype(flat.dtype)
        buffer = io.BytesIO()
        np.savez(buffer, **changed)
        try:
            for graph in unpack(lzma.compress(buffer.getvalue()), "c", [("a", "a"), ("b", "b")]):
                assert graph.num_ops
        except (Unreadable, GraphError, ValueError, TypeError, IndexError, OverflowError):
            refused += 1
    assert refused > 20  # of other numbers the graph is another one, which its digest says
