"""Parts of what may be chosen that do not touch each other, and what the uses of classes say about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from graphopt.rewrite.extraction.greedy_extraction import Alternatives
from graphopt.rewrite.extraction.growth import Landmark
from graphopt.rewrite.extraction.needs import edges
from graphopt.rewrite.extraction.reduce import Reduced


def used(open_to: Alternatives, reduced: Reduced) -> list[Landmark]:
    """A class is needed only where a chosen node uses it, unless a root was asked for: its users are a landmark."""
    assert reduced.open_to is not None
    users: dict[int, list[int]] = {}
    for nodes in reduced.open_to.nodes:
        for node in nodes:
            for child in _through(open_to.children[node], open_to, reduced):
                users.setdefault(child, []).append(node)
    always = _through(open_to.roots, open_to, reduced)
    return [
        Landmark(eclass, frozenset(nodes))
        for eclass, nodes in users.items()
        if reduced.open_to.nodes[eclass] and eclass not in always
    ]


def _through(classes: Sequence[int], open_to: Alternatives, reduced: Reduced) -> set[int]:
    """These classes, and what stands below them if they are settled."""
    found, stack = set(classes), list(classes)
    while stack:
        node = reduced.settled.get(stack.pop())
        if node is not None:
            new = set(open_to.children[node]) - found
            found |= new
            stack += new
    return found


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of what may be chosen, numbered for itself."""

    open_to: Alternatives
    nodes: list[int]  # whose nodes its own are
    landmarks: list[Landmark]


def apart(open_to: Alternatives, landmarks: Sequence[Landmark], small: int) -> list[Piece]:
    """Parts that have no class in common, the smallest first, and landmarks that lie in one of them.

    Parts are put together as long as they have at most `small` nodes.
    """
    pairs = edges(open_to)
    matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(open_to.classes, open_to.classes))
    label = _bundled(connected_components(matrix, directed=False)[1].tolist(), open_to, small)
    members: dict[int, list[int]] = {}
    for eclass, nodes in enumerate(open_to.nodes):
        if nodes:
            members.setdefault(label[eclass], []).append(eclass)
    inside: dict[int, list[Landmark]] = {}
    for landmark in landmarks:
        labels = {label[open_to.class_of[node]] for node in landmark.nodes}
        if len(labels) == 1:
            inside.setdefault(labels.pop(), []).append(landmark)
    ordered = sorted(members, key=lambda number: len(members[number]))
    return [_piece(open_to, members[number], inside.get(number, [])) for number in ordered]


def _bundled(label: Sequence[int], open_to: Alternatives, small: int) -> list[int]:
    """Labels with small parts put together: many small programs take longer than one of a few hundred nodes."""
    size: dict[int, int] = {}
    for eclass, nodes in enumerate(open_to.nodes):
        size[label[eclass]] = size.get(label[eclass], 0) + len(nodes)
    bundle: dict[int, int] = {}
    first, held = -1, small
    for part in sorted(size, key=lambda part: size[part]):
        if held + size[part] > small:
            first, held = part, 0
        bundle[part], held = first, held + size[part]
    return [bundle[part] for part in label]


def _piece(open_to: Alternatives, classes: Sequence[int], landmarks: Sequence[Landmark]) -> Piece:
    place = {eclass: number for number, eclass in enumerate(classes)}
    nodes = [node for eclass in classes for node in open_to.nodes[eclass]]
    number = {node: place for place, node in enumerate(nodes)}
    choices = [[number[node] for node in open_to.nodes[eclass]] for eclass in classes]
    children: list[Sequence[int]] = [[place[child] for child in open_to.children[node]] for node in nodes]
    roots = [place[root] for root in open_to.roots if root in place]
    always = set(open_to.roots)
    own = [
        Landmark(place.get(landmark.eclass, roots[0]), frozenset(number[node] for node in landmark.nodes))
        for landmark in landmarks
        if landmark.eclass in place or landmark.eclass in always
    ]
    class_of = [place[open_to.class_of[node]] for node in nodes]
    return Piece(Alternatives(choices, children, class_of, roots), nodes, own)
