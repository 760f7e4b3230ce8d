"""The joint graph of forward and gradients that torch's partitioner is asked to split, as `Graph`, without computing
anything.
"""

from collections.abc import Iterable
from operator import getitem
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._functorch import partitioners
from torch.fx import Graph as FxGraph
from torch.fx import Node

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder, known_dtype
from graphopt.core.split import BACKWARD, FORWARD
from graphopt.graphs.readers.pytorch.aten_table import complex_factor, flops, kind_of
from graphopt.graphs.readers.pytorch.capture import tell_sources, unchanged
from graphopt.graphs.readers.pytorch.fx_reader import nodes_in
from graphopt.graphs.readers.pytorch.nested_tensors import arguments_of
from graphopt.graphs.readers.pytorch.trace_errors import complaint, quiet

BY_VALUES = "its shapes depend on values; give a module whose shapes follow from its inputs'"


class _Captured(BaseException):
    """Carries the graph out of the compiler; no error, so that nothing on the way handles it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph


def capture_step(module: nn.Module, example_inputs: Any, *, name: str, family: str) -> Graph:
    """The training step of the module, in training mode, with Inductor's decompositions. `arguments_of` reads its
    inputs; its result is the loss. Raises GraphError, in one sentence, when torch.compile cannot take it as one
    graph."""
    positional, named = arguments_of(example_inputs)
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    try:
        with quiet(), unchanged(module):
            step = torch.compile(module.train(), backend=_backend(name, family), fullgraph=True, dynamic=False)
            step(*positional, **named)
    except _Captured as captured:
        return captured.graph
    except Exception as error:
        raise GraphError(f"{name}: {complaint(error)}") from error
    finally:
        torch._dynamo.reset()  # type: ignore[no-untyped-call]
    raise GraphError(f"{name}: it has no gradient; give a module whose result is a loss that depends on its parameters")


def _backend(name: str, family: str) -> Any:
    import torch._inductor.lowering  # noqa: F401  # decompositions of poolings need it and do not load it
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._inductor.decomposition import select_decomp_table

    def partition(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        plain = partitioners.choose_saved_values_set

        def take(graph: Any, info: Any, memory_budget: float = 1) -> Any:
            forward = int(kwargs["num_fwd_outputs"])
            saved = plain(graph, info, memory_budget=1)
            step = read_step(graph, set(info.tangents_closure), forward, saved, name=name, family=family)
            tell_sources(step, graph.nodes)
            raise _Captured(step)

        with mock.patch.object(partitioners, "choose_saved_values_set", take):
            return partitioners.min_cut_rematerialization_partition(gm, inputs, **kwargs)

    return aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, decompositions=select_decomp_table,
                        partition_fn=partition, keep_inference_input_mutations=True)  # fmt: skip


# --- From a joint graph to `Graph`.


def read_step(graph: FxGraph, late: set[Node], forward: int, saved: Iterable[Node], *, name: str,
              family: str) -> Graph:  # fmt: skip
    """The training step of a joint graph: an op for every call (`getitem`s are results of theirs), with the attributes
    that core/split.py names. Op names are FX node names.

    late: nodes that depend on a gradient. forward: the first so many outputs are the forward program's. saved: nodes
    that the compiler saves when only time counts. Raises GraphError on shapes that are not fixed.
    """
    return _StepReader(graph, late, forward, name, family).build(saved)


class _StepReader:
    def __init__(self, graph: FxGraph, late: set[Node], forward: int, name: str, family: str) -> None:
        self.name, self.late, self.nodes = name, late, list(graph.nodes)
        self.builder, self.handles = GraphBuilder(name, family), dict[Node, int]()
        self.attributes: dict[Node, dict[str, Any]] = {}
        self.returned: dict[Node, int] = {}
        outputs: Any = self.nodes[-1].args[0]
        for place, value in enumerate(outputs):
            if isinstance(value, Node):
                self.returned[value] = self.returned.get(value, 0) | (FORWARD if place < forward else BACKWARD)

    def build(self, saved: Iterable[Node]) -> Graph:
        for node in self.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.handles[node] = self._tensor(node.meta["val"], weight=node.op == "get_attr")
            elif node.op == "call_function" and node.target is not getitem:
                self._op(node)
        for node in filter(None, map(self._owner, saved)):
            self.attributes[node]["saved"] = True
        for node in self.returned:
            self.builder.output(self.handles[node])
        return self.builder.build()

    def _owner(self, node: Node) -> Node | None:
        """The op that makes the storage that a node's value lies in; None for those of inputs."""
        while node.op == "call_function":
            whole: Any = node.args[0] if node.target is getitem else node
            aliases = [a for a in self.attributes[whole]["alias"] if a >= 0]
            if not aliases:
                return whole  # type: ignore[no-any-return]
            node = [n for n in whole.all_input_nodes if n in self.handles][aliases[0]]
        return None

    def _tensor(self, value: Any, weight: bool = False) -> int:
        if not isinstance(value, Tensor):
            return self.builder.tensor((), "int64", weight=weight)
        if any(type(d) is not int for d in value.shape):
            raise GraphError(BY_VALUES)
        dtype = known_dtype(str(value.dtype).removeprefix("torch."))
        return self.builder.tensor(value.shape, dtype, weight=weight, num_bytes=value.untyped_storage().nbytes())

    def _op(self, node: Node) -> None:
        if "val" not in node.meta:
            raise GraphError(BY_VALUES)
        operands = [n for n in node.all_input_nodes if n in self.handles]
        parts = {int(user.args[1]): user for user in node.users if user.target is getitem}  # type: ignore[arg-type]
        values = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else [node.meta["val"]]
        kept = [(i, v) for i, v in enumerate(values) if isinstance(v, Tensor)]
        results = [self._tensor(value) for _, value in kept]
        owners = [parts.get(i, node) if isinstance(node.meta["val"], (tuple, list)) else node for i, _ in kept]
        for owner, result in zip(owners, results, strict=True):
            self.handles[owner] = result
        kind = kind_of(*_names(node), node.args) or "opaque"
        self.attributes[node] = self._attributes(node, operands, kept, owners)
        self.builder.op(kind, [self.handles[o] for o in operands], results, name=node.name,
                        flops=self._flops(node, kind, values),
                        attributes=self.attributes[node])  # fmt: skip

    def _attributes(self, node: Node, operands: list[Node], kept: list[tuple[int, Tensor]],
                    owners: list[Node]) -> dict[str, Any]:  # fmt: skip
        stores = {_storage(o.meta["val"]): place for place, o in reversed(list(enumerate(operands)))}
        return {
            "late": node in self.late,
            "alias": [stores.get(_storage(value), -1) for _, value in kept],
            "returned": [self.returned.get(owner, 0) for owner in owners],
            "fixed": node not in self.late and _once(node),
            "saved": False,
        }

    def _flops(self, node: Node, kind: str, values: Any) -> float | None:
        tensors = [o.meta["val"] for o in nodes_in((node.args, node.kwargs))]
        if kind == "opaque" or not all(isinstance(t, Tensor) for t in (*tensors, *values)):
            return _counted(node)
        counted = flops(_names(node)[0], kind, node.args, tensors, values)
        return None if counted is None else counted * complex_factor(kind, [*tensors, *values])


def _storage(value: Any) -> int | None:
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _names(node: Node) -> tuple[str, str]:
    target: Any = node.target
    return str(getattr(target, "_opname", getattr(target, "__name__", target))), str(
        getattr(target, "_overloadname", "")
    )


def _once(node: Node) -> bool:
    """Whether computing it twice could give another result, or must not happen."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return not callable(target)
    return torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable


def _counted(node: Node) -> float | None:
    """FLOP by torch's own counter, where it counts the operator."""
    from torch.utils.flop_counter import flop_registry

    target: Any = node.target
    counter = flop_registry.get(getattr(target, "overloadpacket", None))
    if counter is None:
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return float(counter(*args, **kwargs, out_val=node.meta["val"]))
