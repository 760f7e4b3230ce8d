"""Stored graphs come back equal; damaged files are refused with a sentence."""

from pathlib import Path

import numpy as np
import pytest

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.datasets.dataset import check_splits
from graphopt.readers.formats.graph_files import load_graph, save_graph


def small_graph(name: str = "small", family: str = "f", width: int = 4) -> Graph:
    builder = GraphBuilder(name, family)
    x, w, y = builder.tensor((8, width)), builder.tensor((width, 2), weight=True), builder.tensor((8, 2), "float16")
    z = builder.tensor((8, 1))
    builder.op("matmul", [x, w], [y], flops=2 * 8 * width * 2, name="mm", attributes={"axis": [1]})
    builder.op("split", [y], [z, builder.tensor((8, 1))])
    builder.output(z)
    return builder.build()


def test_round_trip_keeps_every_field(tmp_path: Path) -> None:
    graph = small_graph()
    save_graph(tmp_path / "deep" / "g.npz", graph)
    back = load_graph(tmp_path / "deep" / "g.npz")
    assert back.hash == graph.hash
    assert (back.name, back.family, back.op_names) == (graph.name, graph.family, graph.op_names)
    assert [dict(a) for a in back.attributes] == [dict(a) for a in graph.attributes]
    for name in ("kind", "input_tensor", "tensor_bytes", "shape", "flops", "is_weight"):
        np.testing.assert_array_equal(getattr(back, name), getattr(graph, name))
        assert getattr(back, name).dtype == getattr(graph, name).dtype
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["g.npz"]


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"x" * 100])
def test_damaged_file_is_refused(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "g.npz"
    save_graph(path, small_graph())
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(GraphError, match="damaged"):
        load_graph(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no graph file"):
        load_graph(tmp_path / "none.npz")


def test_no_family_and_no_graph_in_two_splits() -> None:
    check_splits({"train": [small_graph("a", "f"), small_graph("b", "f", 6)], "test": [small_graph("c", "g", 8)]})
    with pytest.raises(GraphError, match="family 'f' stands in train and in test"):
        check_splits({"train": [small_graph("a", "f")], "test": [small_graph("b", "f", 6)]})
    with pytest.raises(GraphError, match="equals"):
        check_splits({"train": [small_graph("a", "f")], "test": [small_graph("b", "g")]})


def test_no_flipped_byte_is_believed(tmp_path: Path) -> None:
    """A damaged stream raises what it likes (zlib, struct, codec errors): always the same refusal here."""
    path, graph = tmp_path / "g.npz", small_graph()
    save_graph(path, graph)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            back = load_graph(path)
        except GraphError:
            continue
        assert back.hash == graph.hash and back.op_names == graph.op_names
