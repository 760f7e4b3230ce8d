"""`Egraph`: many equal programs in one graph, as immutable arrays; reading and writing the egraph-serialize JSON.

A class holds nodes that are known to be equal; the children of a node are classes. To choose a node of every class that
is needed, without cycles, is to extract a program (extraction.py).

The JSON, plain or .gz, is that of https://github.com/egraphs-good/egraph-serialize: `nodes` by name, each with `op`,
`eclass`, `children` (names of nodes, which stand for their classes), `cost`; and `root_eclasses`. Without `cost` a node
costs 1, without `children` it has none, as the format has it. Other keys are not read.

Shape legend: N nodes, C classes, E children of all nodes, R roots.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import Unreadable, UserError
from graphopt.utils.limits import read_json

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


MOST_BYTES = 2**30  # of JSON, unpacked


class EgraphError(UserError):
    """The input is not an e-graph, or nothing can be extracted from it; the message says why."""

    exit_code = 2


class Enode(NamedTuple):
    """A node as a maker of e-graphs knows it: an operator of one class, applied to others."""

    op: str
    children: Sequence[int | str]  # names of classes
    eclass: int | str
    cost: float


@dataclass(frozen=True, eq=False)
class Egraph:
    """An e-graph. Nodes are in the order given; classes in the order of their first nodes, and none is empty."""

    node_names: tuple[str, ...]  # [N] unique
    ops: tuple[str, ...]  # [N] labels
    class_names: tuple[str, ...]  # [C] unique
    cost: F64  # [N] at least 0; infinite: never to be chosen (`subsumed` in JSON)
    class_of: I32  # [N] class of each node
    child_ptr: I64  # [N+1] CSR over children
    child: I32  # [E] class of each child, in the op's order; one class may stand there twice
    class_ptr: I64  # [C+1] CSR over the nodes of classes
    class_node: I32  # [N] nodes, sorted by class
    roots: I32  # [R] classes that an extraction must have; distinct, at least one

    def children_of(self, node: int) -> I32:
        return self.child[self.child_ptr[node] : self.child_ptr[node + 1]]

    def nodes_of(self, eclass: int) -> I32:
        return self.class_node[self.class_ptr[eclass] : self.class_ptr[eclass + 1]]

    @property
    def nodes(self) -> int:
        return len(self.ops)

    @property
    def classes(self) -> int:
        return len(self.class_names)


def egraph_of(nodes: Sequence[Enode], roots: Iterable[int | str], names: Sequence[str] | None = None) -> Egraph:
    """The e-graph of these nodes; node n of the result is the n-th of them.

    Raises EgraphError: a child or root that no node belongs to, a cost that is negative or no number, no root.
    """
    names = tuple(str(n) for n in range(len(nodes))) if names is None else tuple(names)
    index = {name: c for c, name in enumerate(dict.fromkeys(node.eclass for node in nodes))}
    class_of = np.array([index[node.eclass] for node in nodes], np.int32)
    found_roots = _indices(roots, index, "the roots")
    if not found_roots:
        raise EgraphError("no root: name at least one class to extract")
    return Egraph(
        node_names=names,
        ops=tuple(node.op for node in nodes),
        class_names=tuple(str(name) for name in index),
        cost=_frozen(np.array([_cost(node.cost, name) for node, name in zip(nodes, names)])),
        class_of=_frozen(class_of),
        child_ptr=_pointer(np.array([len(node.children) for node in nodes], np.int64)),
        child=_frozen(np.array(_children(nodes, names, index), np.int32)),
        class_ptr=_pointer(np.bincount(class_of, minlength=len(index))),
        class_node=_frozen(np.argsort(class_of, kind="stable").astype(np.int32)),
        roots=_frozen(np.array(list(dict.fromkeys(found_roots)), np.int32)),
    )


def _children(nodes: Sequence[Enode], names: Sequence[str], index: dict[int | str, int]) -> list[int]:
    return [c for node, name in zip(nodes, names) for c in _indices(node.children, index, f"node {name!r}")]


def _indices(classes: Iterable[int | str], index: dict[int | str, int], user: str) -> list[int]:
    wanted = list(classes)
    result = [index.get(name, -1) for name in wanted]
    if -1 in result:
        missing = wanted[result.index(-1)]
        raise EgraphError(f"{user} of the e-graph refer to class {missing!r}, which has no node")
    return result


def _cost(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value >= 0:
        raise EgraphError(f"node {name!r} costs {value!r}; a cost is a number from 0 up")
    try:
        return float(value)
    except OverflowError:  # a whole number that no float holds
        raise EgraphError(f"node {name!r} costs more than 10^308; give smaller costs") from None


def _pointer(counts: I64) -> I64:
    return _frozen(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def read_egraph(path: Path | str) -> Egraph:
    """The e-graph of a file. Raises EgraphError, naming the file: it cannot be read, is too large, or is no e-graph."""
    try:
        return _from_json(read_json(path, MOST_BYTES, _without_twins))
    except EgraphError as error:
        raise EgraphError(f"{path}: {error}") from None
    except Unreadable as error:
        raise EgraphError(str(error)) from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which Python's reader would keep the last of several equal keys."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twin = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise EgraphError(f"the key {twin!r} is there twice in one object")
    return result


def _from_json(data: Any) -> Egraph:
    nodes = _field(data, "nodes", dict, "the file")
    roots = _field(data, "root_eclasses", list, "the file")
    found = {name: _enode(node, f"node {name!r}") for name, node in nodes.items()}
    made = [node._replace(children=_classes(name, node.children, found)) for name, node in found.items()]
    return egraph_of(made, [str(root) for root in roots], list(found))


def _field(data: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(data, dict) or key not in data:
        raise EgraphError(f"{place} has no {key!r}; this is not the egraph-serialize format")
    if not isinstance(data[key], kind):
        raise EgraphError(f"{key!r} of {place} is a {type(data[key]).__name__}, not a {kind.__name__}")
    return data[key]


def _enode(node: Any, place: str) -> Enode:
    """A node whose children are still names of nodes."""
    op, eclass = (_field(node, key, str, place) for key in ("op", "eclass"))
    children = _field({"children": []} | node, "children", list, place)
    return Enode(op, children, eclass, np.inf if node.get("subsumed") else node.get("cost", 1.0))


def _classes(name: str, children: Sequence[Any], found: dict[str, Enode]) -> list[int | str]:
    missing = [child for child in children if not isinstance(child, str) or child not in found]
    if missing:
        raise EgraphError(f"node {name!r} has the child {missing[0]!r}, which is no node")
    return [found[child].eclass for child in children]


def write_egraph(egraph: Egraph, path: Path | str) -> None:
    """Writes JSON, compressed if the path ends in .gz; `read_egraph` gives the same e-graph back."""
    text = json.dumps(_as_json(egraph), indent=1)
    Path(path).write_bytes(gzip.compress(text.encode(), mtime=0) if Path(path).suffix == ".gz" else text.encode())


def _as_json(egraph: Egraph) -> dict[str, Any]:
    first = egraph.class_node[egraph.class_ptr[:-1]]  # of each class, the node that stands for it
    nodes: dict[str, Any] = {}
    for node, name in enumerate(egraph.node_names):
        cost = float(egraph.cost[node])
        nodes[name] = {
            "op": egraph.ops[node],
            "eclass": egraph.class_names[egraph.class_of[node]],
            "children": [egraph.node_names[first[child]] for child in egraph.children_of(node)],
        } | ({"cost": cost} if np.isfinite(cost) else {"subsumed": True})
    return {"nodes": nodes, "root_eclasses": [egraph.class_names[root] for root in egraph.roots]}
