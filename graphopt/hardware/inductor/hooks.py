"""Decisions during a lowering of TorchInductor (2.13): what it stores, inlines and keeps apart.

A value is stored when its `StorageBox` is realised. Inductor decides that after every node, from what the box would
read and compute. These hooks answer in its place for the nodes that were decided; for the others they let it answer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import BaseView, ComputedBuffer, IRNode, MutableBox, Pointwise, StorageBox
from torch._inductor.virtualized import V
from torch.fx import Node

from graphopt.core.errors import UserError

KNOWN = ("2.13",)  # versions of torch with which the tests of tests/hardware pass


def check_version() -> None:
    """Raises UserError unless this torch's Inductor is one whose internals are known here."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in KNOWN:
        raise UserError(f"decisions are carried out inside TorchInductor of torch {' and '.join(KNOWN)}, and this is "
                        f"torch {torch.__version__}; install `torch=={KNOWN[-1]}.*`")  # fmt: skip


# What asks, or says, whether a box had better be stored -> the answer for one that is to be inlined.
_HINTS = {"should_realize_on_reuse": False, "has_exceeded_max_reads": False, "realize_hint": None}
USUAL = {"realize_reads_threshold": 4, "realize_opcount_threshold": 30, "realize_acc_reads_threshold": 8}
LARGEST_TREE = 150  # nodes of an expression with inlined parts: lowering takes time exponential in its depth


class Request(Enum):
    """What is asked for one node. STORE: its value is written to memory. INLINE: it is computed wherever it is read, as
    far as its readers can take that. CUT: stored, and computed in another kernel than whatever reads it."""

    STORE = "store"
    INLINE = "inline"
    CUT = "cut"


class Requests:
    """What is asked, and what is observed, during one lowering."""

    def __init__(self, asked: Mapping[str, Request]) -> None:
        self.inline = {name for name, request in asked.items() if request is Request.INLINE}
        self.store = set(asked) - self.inline
        self.cut = {name for name, request in asked.items() if request is Request.CUT}
        self.full = set[str]()  # nodes that were stored since inlining had made them too large
        self._owner: dict[int, tuple[StorageBox, Node]] = {}  # by id of the box, which is kept alive
        self._tree: dict[Node, int] = {}  # nodes with inlined parts, not stored at first -> size of their expression
        self._box: dict[Node, StorageBox] = {}  # of these

    @property
    def stored(self) -> frozenset[str]:
        """Names of the nodes whose value, or a part of it, has been stored so far."""
        owned = [(box, node) for box, node in self._owner.values() if node.op == "call_function"]
        return frozenset(node.name for box, node in owned if IRNode.is_realized_node(box.data))

    @property
    def loops(self) -> frozenset[str]:
        """Names of the nodes whose value is computed element by element, so that it can be stored or inlined."""
        return frozenset(node.name for box, node in self._owner.values() if isinstance(_loop(box), Pointwise))

    def cut_buffers(self) -> set[str]:
        owned = [box for box, node in self._owner.values() if node.name in self.cut]
        return {box.data.get_name() for box in owned if IRNode.is_realized_node(box.data)}

    def inlines(self, box: StorageBox) -> bool:
        """Whether a box belongs to a node, or is made for the node just now, that is to be inlined."""
        known = self._owner.get(id(box))
        node = known[1] if known else V.graph.current_node
        return node is not None and node.name in self.inline

    def lowered(self, node: Node, made: object) -> None:
        """A node was lowered to a box, or several."""
        for result in made if isinstance(made, (list, tuple)) else [made]:
            box = _box(result)
            owner = node if box is None else self._owner.setdefault(id(box), (box, node))[1]
            if box is not None and owner is node:
                self._decide(node, box)
            elif owner in self._tree:  # another view of what it computes
                self._tree[node], self._box[node] = self._tree[owner], self._box[owner]

    def _decide(self, node: Node, box: StorageBox) -> None:
        if node.name in self.store:
            box.realize()
        elif (self.inline or _inlines_more()) and node.op == "call_function" and not IRNode.is_realized_node(box.data):
            self._limit(node, box)

    def _limit(self, node: Node, box: StorageBox) -> None:
        """Stores what has grown too large by inlining: parts that were asked for, or, where Inductor itself inlines
        more than usual, any."""
        given = [n for n in node.all_input_nodes if n in self._tree and not IRNode.is_realized_node(self._box[n].data)]
        if given or node.name in self.inline or _inlines_more():
            size = 1 + sum(self._tree[n] for n in given for _ in range(_uses(node, n)))
            if size > LARGEST_TREE:
                box.realize()
                self.full.add(node.name)
            else:
                self._tree[node], self._box[node] = size, box


def _inlines_more() -> bool:
    """Whether a threshold of Inductor's, as it is set now, lets it inline more than it does by itself."""
    now = ((getattr(config, name), usual) for name, usual in USUAL.items())
    return any(value is not None and value > usual for value, usual in now)


def _uses(node: Node, given: Node) -> int:
    return sum(argument is given for argument in node.args) or 1


def _box(result: object) -> StorageBox | None:
    while isinstance(result, (MutableBox, BaseView)) and not isinstance(result, StorageBox):
        result = result.data
    return result if isinstance(result, StorageBox) else None


def _loop(box: StorageBox) -> object:
    """What a box computes, stored or not."""
    return box.data.data if isinstance(box.data, ComputedBuffer) else box.data


@contextmanager
def carried_out(requests: Requests) -> Iterator[None]:
    """Within the block a lowering does what is asked and notes what it stores."""
    run_inner = GraphLowering.run_node

    def run_node(graph: GraphLowering, n: Node) -> Any:
        made = run_inner(graph, n)
        requests.lowered(n, made)
        return made

    def unless_inlined(inner: Callable[..., Any], answer: Any) -> Callable[..., Any]:
        return lambda box, *args, **given: answer if requests.inlines(box) else inner(box, *args, **given)

    with ExitStack() as stack:
        stack.enter_context(replaced(GraphLowering, "run_node", run_node))
        for name, answer in _HINTS.items():
            method = unless_inlined(getattr(StorageBox, name), answer)
            stack.enter_context(replaced(StorageBox, name, method))
        stack.enter_context(V.set_choices_handler(_Choices(requests) if requests.cut else InductorChoices()))
        yield


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Within the block an attribute of a class or module is another."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Choices(InductorChoices):
    """Inductor's own choices of what to fuse, except that cut nodes stay apart from their readers."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def can_fuse(self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:  # type: ignore[override]
        return not self._cut(node1, node2) and InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score)

    def _cut(self, node1: Any, node2: Any) -> bool:
        return any(
            not self._requests.cut_buffers().isdisjoint(maker.get_buffer_names() & reader.used_buffer_names())
            for maker, reader in ((node1, node2), (node2, node1))
        )
