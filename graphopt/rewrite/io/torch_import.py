"""Torch modules, with their weights, as programs: traced as primitive operators, as dataset=torch does it.

Results of weights alone are computed here where the vocabulary lacks the operator (the factors of a batch norm);
operators outside the vocabulary stay opaque.

`RULES` has the operators of the vocabulary, a function each: from a call to a term, or None where it means more.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.aten_table import METADATA_ONLY, flops, kind_of
from graphopt.graphs.readers.pytorch.capture import capture
from graphopt.graphs.readers.pytorch.fx_reader import nodes_in, writes
from graphopt.rewrite.ir.execution import static_values, to_array
from graphopt.rewrite.ir.program_builder import RandomWeights, Role, ceiled_pads, default_role
from graphopt.rewrite.ir.terms import MAKES_SEVERAL, Program, Terms
from graphopt.rewrite.ir.vocabulary import Operation, ShapeError, TensorType


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor among the inputs of a call."""

    index: int


def _filled(arg: Any, inputs: Sequence[Any]) -> Any:
    """An argument with its tensors in place."""
    if isinstance(arg, Slot):
        return inputs[arg.index]
    return [_filled(a, inputs) for a in arg] if isinstance(arg, tuple) else arg


@dataclass(frozen=True)
class TorchCall:
    """One ATen operator outside the vocabulary, `name.overload`, with all arguments but its tensors fixed."""

    name: str
    overload: str
    args: tuple[Any, ...]  # nested tuples; a `Slot` where a tensor goes
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        return f"aten.{self.name}"

    @property
    def kind(self) -> str:
        return kind_of(self.name, self.overload, self.args) or "opaque"

    @property
    def key(self) -> str:
        """Equal calls have equal keys."""
        digest = sha256(repr((self.overload, self.args, self.kwargs)).encode()).hexdigest()
        return f"{self.label}.{digest[:12]}"

    def flops(self, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
        if self.name == "convolution":
            return 2.0 * prod((inputs[0] if self.args[6] else results[0]).shape) * prod(inputs[1].shape[1:])
        return flops(self.name, self.kind, self.args, inputs, results) if self.name == "_grouped_mm" else None

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """By torch; in float32 where it has the operator for no wider numbers."""
        try:
            result = self._called(inputs)
        except RuntimeError:
            narrow = [x.float() if isinstance(x, Tensor) and x.dtype is torch.float64 else x for x in inputs]
            if all(x is given for x, given in zip(narrow, inputs, strict=True)):
                raise
            result = self._called(narrow)
        return list(result) if isinstance(result, tuple | list) else [result]

    def _called(self, inputs: Sequence[Any]) -> Any:
        operator = getattr(getattr(torch.ops.aten, self.name), self.overload)
        kwargs = {key: _filled(value, inputs) for key, value in self.kwargs}
        return operator(*(_filled(arg, inputs) for arg in self.args), **kwargs)


@dataclass(frozen=True)
class AtenCall:
    """One call: its arguments, types of its results, which of several are used, and the term of a node."""

    terms: Terms
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: Sequence[TensorType]
    used: Collection[Any]
    term: Callable[[Any], int]

    def add(self, name: str, *params: Any, of: Sequence[int]) -> int:
        return self.terms.add(Operation(name, params), tuple(of))

    def arg(self, position: int, default: Any = None) -> Any:
        return self.args[position] if position < len(self.args) else default

    def shape(self, position: int = 0) -> tuple[int, ...]:
        return self.terms.shape(self.term(self.args[position]))

    def first(self) -> int:
        return self.term(self.args[0])


def translate(call: AtenCall) -> int | None:
    """The term; None for a call that stays opaque. Raises ShapeError where shapes do not fit."""
    rule = RULES.get(call.name)
    if rule is None or any(0 in kind.shape for kind in call.results):
        return None
    if call.name not in MOVES and call.results[0].dtype not in ("float32", "float64"):
        return None
    return rule(call)


def _binary(c: AtenCall) -> int | None:
    """Of tensors, or of a tensor and a number."""
    if c.kwargs.get("alpha", 1) != 1:
        return None
    sides = [_side(c, c.args[0]), _side(c, c.args[1])]
    return None if None in sides else c.add(c.name, of=[s for s in sides if s is not None])


def _side(c: AtenCall, arg: Any) -> int | None:
    if isinstance(arg, Node):
        return c.term(arg)
    plain = c.results[0].dtype == "float32" and isinstance(arg, int | float)
    return c.add("fill", float(arg), (), of=[]) if plain else None


def _conv(c: AtenCall) -> int | None:
    x, w, bias, strides, pads, dilation, transposed, _, groups = c.args
    if transposed or len(c.shape()) != 4 or any(d != 1 for d in dilation) or groups * c.shape(1)[1] != c.shape()[1]:
        return None
    inputs = [c.term(x), c.term(w), *([c.term(bias)] if bias is not None else [])]
    sides = _both(pads)
    return c.add("conv", _both(strides), (*sides, *sides), "none", of=inputs)


def _both(numbers: Sequence[int]) -> tuple[int, ...]:
    """Of height and width: one number stands for both."""
    return (*numbers, *numbers) if len(numbers) == 1 else tuple(numbers)


def _reshape(c: AtenCall) -> int | None:
    shape = c.results[0].shape
    return c.first() if c.shape() == shape else c.add("reshape", shape, of=[c.first()])


def _transpose(c: AtenCall) -> int | None:
    rank = len(c.shape())
    order = list(range(rank))
    if c.name == "permute":
        order = [d % rank for d in c.args[1]]
    elif rank > 1:
        a, b = (0, 1) if c.name == "t" else (c.args[1] % rank, c.args[2] % rank)
        order[a], order[b] = order[b], order[a]
    return c.first() if order == sorted(order) else c.add("transpose", tuple(order), of=[c.first()])


def _cat(c: AtenCall) -> int | None:
    parts = [c.term(node) for node in c.args[0]]
    axis = c.arg(1, 0) % len(c.results[0].shape)
    return parts[0] if len(parts) == 1 else c.add("concat", axis, of=parts)


def _split(c: AtenCall) -> int | None:
    axis = c.arg(2, c.kwargs.get("dim", 0)) % len(c.shape())
    sizes = tuple(kind.shape[axis] for kind in c.results)
    return c.add("split", axis, sizes, of=[c.first()])


def _max_pool(c: AtenCall) -> int | None:
    if set(c.used) - {0} or any(d != 1 for d in c.arg(4, (1,))):
        return None
    return _pooled(c, "pool_max", c.arg(5, False))


def _avg_pool(c: AtenCall) -> int | None:
    counted = c.arg(5, True) and any(c.arg(3, ()))
    if counted or c.arg(6) is not None or len(c.shape()) != 4:
        return None
    return _pooled(c, "pool_avg", c.arg(4, False))


def _pooled(c: AtenCall, name: str, ceil: bool) -> int:
    kernel, strides, sides = (_both(c.arg(i, ())) for i in (1, 2, 3))
    top, left = sides or (0, 0)
    strides, pads = strides or kernel, (top, left, top, left)
    if ceil:
        pads = ceiled_pads(c.shape()[2:], c.results[0].shape[2:], kernel, strides, pads)
    return c.add(name, kernel, strides, pads, of=[c.first()])


def _mean(c: AtenCall) -> int | None:
    """The mean over height and width, or an adaptive one of a single element, is a pooling over the whole image."""
    shape, adaptive = c.shape(), c.name == "_adaptive_avg_pool2d"
    whole = tuple(c.args[1]) == (1, 1) if adaptive else sorted(d % 4 for d in c.arg(1, ())) == [2, 3]
    if len(shape) != 4 or not whole:
        return None
    pooled = c.add("pool_avg", shape[2:], (1, 1), (0, 0, 0, 0), of=[c.first()])
    return pooled if adaptive or c.arg(2, False) else c.add("reshape", shape[:2], of=[pooled])


def _pad(c: AtenCall) -> int | None:
    """torch lists pairs from the last axis on."""
    pairs = list(zip(c.args[1][::2], c.args[1][1::2]))[::-1]
    pairs = [(0, 0)] * (len(c.shape()) - len(pairs)) + pairs
    if c.arg(2, 0) != 0 or any(min(pair) < 0 for pair in pairs):
        return None
    return c.add("pad", tuple(a for a, _ in pairs), tuple(b for _, b in pairs), of=[c.first()])


CHANGES_NOTHING = frozenset({"alias", "detach", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "_to_copy"})
# For any element type.
MOVES = frozenset(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "expand", "permute", "transpose", "t",
                   "cat", "split", "split_with_sizes"))  # fmt: skip
RULES: dict[str, Callable[[AtenCall], int | None]] = {
    **dict.fromkeys(("relu", "tanh", "sigmoid"), lambda c: c.add(c.name, of=[c.first()])),
    **dict.fromkeys(("add", "mul"), _binary),
    **dict.fromkeys(("mm", "bmm"), lambda c: c.add("matmul", "none", of=[c.first(), c.term(c.args[1])])),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze"), _reshape),
    **dict.fromkeys(("transpose", "t", "permute"), _transpose),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "convolution": _conv,
    "expand": lambda c: c.first() if c.shape() == c.results[0].shape else None,
    "cat": _cat,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _avg_pool,
    **dict.fromkeys(("mean", "_adaptive_avg_pool2d"), _mean),
    "embedding": lambda c: c.add("gather", 0, of=[c.first(), c.term(c.args[1])]),
    "index_select": lambda c: (
        c.add("gather", c.args[1] % len(c.shape()), of=[c.first(), c.term(c.args[2])]) if c.shape() else None
    ),
    "constant_pad_nd": _pad,
}


def import_torch(module: nn.Module, example_inputs: tuple[Any, ...], *, name: str = "module") -> Program:
    """The program of one call of a module in evaluation mode. Raises GraphError when it cannot be traced."""
    graph = capture(module, example_inputs, name=name, family=name, backward=False, keep_program=True)
    return import_fx(graph.program, name)


def import_fx(traced: GraphModule, name: str) -> Program:
    """The program of a traced module. Its first placeholders are the weights that `meta["weights"]` has by name.

    Weights without memory (fake tensors) become random ones.
    """
    return _TorchImport(traced, name).program()


class _TorchImport:
    """One traced module on its way. terms_of: the term of every node that makes one tensor."""

    def __init__(self, traced: GraphModule, name: str) -> None:
        self.traced, self.name = traced, name
        self.nodes = list(traced.graph.nodes)
        self.terms = Terms()
        self.terms_of: dict[Node, int] = {}
        self.several: dict[Node, int] = {}  # nodes that make several tensors: their term
        self.inputs: list[int] = []
        given: Mapping[str, Tensor] = traced.meta.get("weights", {})
        self.given = {name: (tuple(weight.shape), _dtype(weight)) for name, weight in given.items()}
        made = {
            name: (*self.given[name], _role(name, weight), 1.0) for name, weight in given.items() if _absent(weight)
        }
        self.kept = {name: to_array(weight.detach().cpu()) for name, weight in given.items() if name not in made}
        self.weights: Mapping[str, Any] = RandomWeights(0, made, self.kept) if made else self.kept
        self.opaque: dict[str, TorchCall] = {}
        self.names: dict[int, str] = {}

    def program(self) -> Program:
        stored = iter(self.given.items())
        for node in self.nodes:
            if node.op == "placeholder":
                weight = next(stored, None)
                if weight is not None:
                    name, kind = weight
                    self.terms_of[node] = self.terms.add(Operation("weight", (name, *kind)))
                    continue
                kind = _type_of(node.meta["val"], self.name)
                self.terms_of[node] = self.terms.add(Operation("input", (f"input{len(self.inputs)}", *kind)))
                self.inputs.append(self.terms_of[node])
            elif node.op == "get_attr":
                self._weight(node, str(node.target), to_array(getattr(self.traced, str(node.target)).detach()))
            elif node.op == "call_function" and not writes(node):  # else an update of a buffer that is not read again
                known = len(self.terms)
                self._call(node)
                self.names |= dict.fromkeys(range(known, len(self.terms)), node.name)
        outputs = tuple(self.terms_of[n] for n in nodes_in(self.nodes[-1].args) if n in self.terms_of)
        if not outputs:
            raise GraphError(f"{self.name}: the module returns no tensor; return what it computes")
        names = tuple(f"output{i}" for i in range(len(outputs)))
        return Program(self.terms, outputs, names, tuple(self.inputs), self.weights, self.opaque, names=self.names)

    def _weight(self, node: Node, label: str, array: Any) -> None:
        self.kept[label] = array
        self.terms_of[node] = self.terms.add(Operation("weight", (label, tuple(array.shape), array.dtype.name)))

    def _call(self, node: Node) -> None:
        if node.target is getitem:
            maker, index = node.args
            assert isinstance(maker, Node) and isinstance(index, int)
            made = self.several[maker]
            if self.terms.operation[made].name in MAKES_SEVERAL:
                made = self.terms.add(Operation("item", (index,)), (made,))
            self.terms_of[node] = made  # a pooling whose indices nobody reads is one term
        elif not self._folded(node):
            term = self._translated(node)
            if term is None:
                self._opaque(node)
            elif isinstance(node.meta["val"], tuple | list):
                self.several[node] = term
            else:
                self.terms_of[node] = term

    def _folded(self, node: Node) -> bool:
        """Computes a result that constants alone decide and that the vocabulary does not make from them."""
        operands = node.all_input_nodes
        target: Any = node.target
        value = node.meta["val"]
        if not isinstance(value, Tensor) or torch.Tag.nondeterministic_seeded in target.tags:
            return False
        shape_only = target._opname in METADATA_ONLY
        static = all(o in self.terms_of and self.terms.static[self.terms_of[o]] for o in operands)
        if not (static or shape_only) or (operands and self._translated(node) is not None):
            return False
        known = {o: torch.zeros(o.meta["val"].shape, dtype=o.meta["val"].dtype) for o in operands if shape_only}
        if not shape_only:
            program = Program(self.terms, (), (), (), self.weights)
            values = static_values(program, [self.terms_of[o] for o in operands], double=False)
            known = {o: values[self.terms_of[o]] for o in operands}
        with torch.no_grad():
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            result = target(*args, **{k: v for k, v in kwargs.items() if k != "device"})
            if "empty" in target._opname:  # nobody reads it, but a program is the same each time it is read
                result = torch.zeros_like(result)
        self._weight(node, f"{node.name}.folded", to_array(result.detach()))
        return True

    def _translated(self, node: Node) -> int | None:
        """The term of a node that the vocabulary has, and that has the traced shape."""
        value, target = node.meta["val"], node.target
        if not isinstance(target, torch._ops.OpOverload) or any(o not in self.terms_of for o in node.all_input_nodes):
            return None
        kinds = [_type_of(v, self.name) for v in (value if isinstance(value, tuple | list) else [value])
                 if isinstance(v, Tensor)]  # fmt: skip
        if target._opname in CHANGES_NOTHING:
            same = self.terms_of[node.all_input_nodes[0]]
            return same if self.terms.type_of(same) == kinds[0] else None
        used = {u.args[1] for u in node.users if u.target is getitem and u.users}
        call = AtenCall(
            self.terms, target._opname, node.args, dict(node.kwargs), kinds, used, self.terms_of.__getitem__
        )
        try:
            term = translate(call)
        except ShapeError:  # the vocabulary does not have it in this form
            return None
        return term if term is not None and self.terms.types[term][0] == kinds[0] else None

    def _opaque(self, node: Node) -> None:
        target: Any = node.target
        operands: list[Node] = []

        def placed(arg: Any) -> Any:
            if isinstance(arg, Node):
                operands.append(arg)
                return Slot(len(operands) - 1)
            return tuple(map(placed, arg)) if isinstance(arg, list | tuple) else arg

        if not isinstance(target, torch._ops.OpOverload):
            raise GraphError(f"{self.name}: {node.name} is no operator of torch; trace the module again")
        args = placed(node.args)
        kwargs = tuple((k, placed(v)) for k, v in node.kwargs.items() if k != "device")
        call = TorchCall(target._opname, target._overloadname, args, kwargs)
        key = call.key
        if torch.Tag.nondeterministic_seeded in target.tags:
            key += f".{len(self.opaque)}"  # two draws are not one
        self.opaque[key] = call
        value = node.meta["val"]
        several = isinstance(value, tuple | list)
        types = tuple(tuple(_type_of(v, self.name)) for v in (value if several else [value]))
        term = self.terms.add(Operation("opaque", (key, types)), [self.terms_of[o] for o in operands])
        if several:
            self.several[node] = term
        else:
            self.terms_of[node] = self.terms.add(Operation("item", (0,)), (term,))


def _type_of(value: Any, name: str) -> TensorType:
    if not isinstance(value, Tensor):  # a result that was not asked for
        return TensorType((0,))
    if any(type(d) is not int for d in value.shape):
        raise GraphError(f"{name}: a shape depends on data; give a module with fixed shapes")
    return TensorType(tuple(value.shape), _dtype(value))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _absent(weight: Tensor) -> bool:
    """Whether it has no memory."""
    return isinstance(weight, FakeTensor) or weight.is_meta


def _role(name: str, weight: Tensor) -> Role:
    return "variance" if "running_var" in name else default_role(tuple(weight.shape))
