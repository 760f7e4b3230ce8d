"""The e-graph: its arrays, reading and writing, and what it says of files that are none."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_egraphs import random_egraph

from graphopt.rewrite.egraphs import egraph as egraph_module
from graphopt.rewrite.egraphs.egraph import Egraph, EgraphError, Enode, egraph_of, read_egraph, write_egraph

PLUS = {"op": "+", "children": ["a1", "a2"], "eclass": "p", "cost": 2.5}
NODES: dict[str, Any] = {"p1": PLUS, "a1": {"op": "x", "eclass": "a"}, "a2": {"op": "y", "eclass": "a", "cost": 0}}


def written(folder: Path, data: Any) -> Path:
    path = folder / "egraph.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def changed(**fields: Any) -> dict[str, Any]:
    """The file of which `p1` is another."""
    return {"nodes": NODES | {"p1": PLUS | fields}, "root_eclasses": ["p"]}


def without(key: str) -> dict[str, Any]:
    return {"nodes": NODES | {"p1": {k: v for k, v in PLUS.items() if k != key}}, "root_eclasses": ["p"]}


def test_a_file_is_read(tmp_path: Path) -> None:
    """Children are nodes that stand for their classes; cost and children have defaults in the format."""
    made = read_egraph(written(tmp_path, {"nodes": NODES, "root_eclasses": ["p", "p"], "class_data": {}}))
    assert (made.node_names, made.ops, made.class_names) == (("p1", "a1", "a2"), ("+", "x", "y"), ("p", "a"))
    assert made.children_of(0).tolist() == [1, 1] and made.children_of(1).tolist() == []
    assert made.cost.tolist() == [2.5, 1.0, 0.0] and made.roots.tolist() == [0]
    assert made.nodes_of(1).tolist() == [1, 2] and made.class_of.tolist() == [0, 1, 1]


def same(one: Egraph, other: Egraph) -> bool:
    names = ("node_names", "ops", "class_names")
    arrays = ("cost", "class_of", "child_ptr", "child", "class_ptr", "class_node", "roots")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


@pytest.mark.parametrize("name", ["egraph.json", "egraph.json.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    """Also costs that are infinite, for which JSON has no number."""
    some = [random_egraph(seed) for seed in range(40)]
    assert any(math.inf in egraph.cost for egraph in some)
    for egraph in some:
        write_egraph(egraph, tmp_path / name)
        assert same(read_egraph(tmp_path / name), egraph)
    if name.endswith(".gz"):
        assert b"Infinity" not in gzip.decompress((tmp_path / name).read_bytes())


def test_subsumed_nodes_are_never_chosen(tmp_path: Path) -> None:
    assert read_egraph(written(tmp_path, changed(subsumed=True))).cost[0] == math.inf


def test_arrays_cannot_be_changed() -> None:
    made = random_egraph(0)
    with pytest.raises(ValueError, match="read-only"):
        made.cost[0] = 1.0


def test_names_of_classes_need_not_be_consecutive() -> None:
    made = egraph_of([Enode("f", [40], 7, 1.0), Enode("x", [], 40, 2.0)], [7])
    assert made.class_names == ("7", "40") and made.children_of(0).tolist() == [1]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("{", "no JSON"),
        ("[]", "no 'nodes'"),
        ({"root_eclasses": []}, "no 'nodes'"),
        ({"nodes": {}}, "no 'root_eclasses'"),
        ({"nodes": [], "root_eclasses": []}, "'nodes' of the file is a list"),
        ({"nodes": NODES, "root_eclasses": []}, "no root"),
        ({"nodes": NODES, "root_eclasses": ["q"]}, "class 'q', which has no node"),
        (without("op"), "node 'p1' has no 'op'"),
        (without("eclass"), "node 'p1' has no 'eclass'"),
        (changed(children=["a1", "b"]), "node 'p1' has the child 'b', which is no node"),
        (changed(children="a1"), "'children' of node 'p1' is a str"),
        (changed(children=[["a1"]]), "which is no node"),
        (changed(cost=-1), "node 'p1' costs -1"),
        (changed(cost="2"), "node 'p1' costs '2'"),
        (changed(cost=None), "node 'p1' costs None"),
        (changed(cost=math.nan), "node 'p1' costs nan"),
        ({"nodes": {"p1": 3}, "root_eclasses": ["p"]}, "node 'p1' has no 'op'"),
        ('{"nodes": {"n": {}, "n": {}}, "root_eclasses": []}', "the key 'n' is there twice"),
    ],
)
def test_malformed_files(tmp_path: Path, data: Any, what: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(EgraphError) as caught:
        read_egraph(path)
    assert what in str(caught.value) and str(caught.value).startswith(str(path)) and caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EgraphError, match="there is no file"):
        read_egraph(tmp_path / "missing.json")
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(b"{}" * 100)[:-10])
    with pytest.raises(EgraphError, match="cut"):
        read_egraph(cut)
    cut.write_bytes(b"{}")
    with pytest.raises(EgraphError, match="is damaged"):
        read_egraph(cut)


@pytest.mark.parametrize(
    ("node", "roots", "what"),
    [
        (Enode("f", [2], 0, 1.0), [0], "node '0' of the e-graph refer to class 2"),
        (Enode("f", [], 0, 1.0), [1], "the roots of the e-graph refer to class 1"),
        (Enode("f", [], 0, -0.5), [0], "costs -0.5"),
        (Enode("f", [], 0, math.nan), [0], "costs nan"),
        (Enode("f", [], 0, 1.0), [], "no root"),
    ],
)
def test_makers_are_told_what_is_wrong(node: Enode, roots: list[int], what: str) -> None:
    with pytest.raises(EgraphError, match=what):
        egraph_of([node], roots)


def test_files_that_unpack_to_too_much_or_nest_too_deep_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egraph_module, "MOST_BYTES", 10**6)
    packed = tmp_path / "bomb.json.gz"
    packed.write_bytes(gzip.compress(b" " * 10**7))
    assert packed.stat().st_size < 20_000
    deep, endless = tmp_path / "deep.json", tmp_path / "long.json"
    deep.write_text("[" * 100_000 + "]" * 100_000)
    endless.write_text(
        '{"nodes": {"a": {"op": "x", "eclass": "0", "cost": 1' + "0" * 400 + '}}, "root_eclasses": ["0"]}'
    )
    for file, what in ((packed, "more than"), (deep, "nested"), (endless, "10\\^308")):
        with pytest.raises(EgraphError, match=what) as caught:
            read_egraph(file)
        assert file.name in str(caught.value)


def test_many_keys_of_which_two_are_equal_are_found_at_once() -> None:
    """Not by comparing all with all, which would take hours."""
    pairs = [(str(key), None) for key in range(200_000)]
    with pytest.raises(EgraphError, match="'7' is there twice"):
        egraph_module._without_twins([*pairs, ("7", None)])
