"""Hash-consed terms, and programs made of them.

A term is an operation applied to terms. Equal terms are one term (interning). So structural equality is equality of
ids, and common subexpressions are shared. Facts of a term (its types, its cost, where rules match) are computed once. A
rewrite makes new terms for the path from the change to the outputs; all others are shared.

Ids ascend from inputs to users: sorted ids are a topological order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt.rewrite.ir.vocabulary import Operation, ShapeError, TensorType, infer

MAKES_SEVERAL = frozenset({"split", "opaque"})
LEAVES = frozenset({"input", "weight", "fill", "identity_kernel", "mean_kernel"})
NOT_RUN = ("input", "item")
Outputs = tuple[int, ...]  # of a program: terms


class Terms:
    """A growing store of terms 0 .. len-1. Terms are never changed or removed.

    operation, inputs, types: per term; `types` has one entry per result. kind: the number of its operation, equal for
    equal operations. static: whether the term depends on weights alone, so that it is computed once, before the program
    runs. runs: whether it is an operator that runs: neither input, nor static, nor one result of several. twin: the
    first term of the same operation on inputs of the same types.
    """

    def __init__(self) -> None:
        self.operation: list[Operation] = []
        self.kind: list[int] = []
        self.inputs: list[tuple[int, ...]] = []
        self.types: list[tuple[TensorType, ...]] = []
        self.static: list[bool] = []
        self.runs: list[bool] = []
        self.twin: list[int] = []
        self._twins: dict[tuple[int, ...], int] = {}  # by the operation's kind and the forms of its inputs
        self._form: list[int] = []  # equal for equal types
        self._forms: dict[tuple[TensorType, ...], int] = {}
        self._kinds: dict[Operation, int] = {}
        self._ids: dict[tuple[int, tuple[int, ...]], int] = {}

    def __len__(self) -> int:
        return len(self.operation)

    def kind_of(self, operation: Operation) -> int:
        """The number of an operation."""
        return self._kinds.setdefault(operation, len(self._kinds))

    def add(self, operation: Operation, inputs: Sequence[int] = ()) -> int:
        """The id of the term; a new one if there is none yet. Raises ShapeError where the inputs do not fit."""
        key = (self.kind_of(operation), tuple(inputs))
        known = self._ids.get(key)
        if known is not None:
            return known
        if operation.name == "item":
            (index,), several = operation.params, self.types[inputs[0]] if len(inputs) == 1 else ()
            if not 0 <= index < len(several) or self.operation[inputs[0]].name not in MAKES_SEVERAL:
                raise ShapeError(f"item {index} of an operation that makes {len(several)} tensors")
            return self._append(operation, key, (several[index],), len(self))
        makers = [i for i in inputs if self.operation[i].name in MAKES_SEVERAL]
        if makers:
            raise ShapeError(
                f"{operation.name} reads all results of {self.operation[makers[0]].name}: pick one by item"
            )
        forms = (key[0], *[self._form[i] for i in inputs])
        twin = self._twins.setdefault(forms, len(self)) if inputs else len(self)
        if twin < len(self):
            return self._append(operation, key, self.types[twin], twin)
        try:
            return self._append(operation, key, infer(operation, [self.types[i][0] for i in inputs]), twin)
        except ShapeError:
            self._twins.pop(forms, None)
            raise

    def like(self, term: int, inputs: tuple[int, ...]) -> int:
        """The operation of `term` on other inputs of the same types: no shape inference."""
        key = (self.kind[term], inputs)
        known = self._ids.get(key)
        if known is None:
            return self._append(self.operation[term], key, self.types[term], self.twin[term])
        return known

    def type_of(self, term: int) -> TensorType:
        """The type of a term that makes one tensor."""
        (only,) = self.types[term]
        return only

    def shape(self, term: int) -> tuple[int, ...]:
        """The shape of a term that makes one tensor."""
        return self.types[term][0].shape

    def _append(self, operation: Operation, key: tuple[int, tuple[int, ...]], types: tuple[TensorType, ...],
                twin: int) -> int:  # fmt: skip
        kind, inputs = key
        self._ids[key] = term = len(self.operation)
        self.operation.append(operation)
        self.kind.append(kind)
        self.inputs.append(inputs)
        self.types.append(types)
        known = operation.name != "opaque" and all(map(self.static.__getitem__, inputs))
        static = known if inputs else operation.name in LEAVES and operation.name != "input"
        self.static.append(static)
        self.runs.append(not static and operation.name not in NOT_RUN)
        self.twin.append(twin)
        self._form.append(self._form[twin] if twin < term else self._forms.setdefault(types, len(self._forms)))
        return term


def maker_of(terms: Terms, term: int) -> int:
    """The op that makes a term's value: an item's is the op that it picks from."""
    return terms.inputs[term][0] if terms.operation[term].name == "item" else term


def reachable(terms: Terms, outputs: Iterable[int]) -> list[int]:
    """All terms that the outputs need, themselves included, in topological order."""
    inputs, stack = terms.inputs, list(outputs)
    found = set(stack)
    while stack:
        for i in inputs[stack.pop()]:
            if i not in found:
                found.add(i)
                stack.append(i)
    return sorted(found)


def depth_first(terms: Terms, outputs: Sequence[int]) -> list[int]:
    """All terms that the outputs need, each after its operands and no earlier than it must. The order does not depend
    on the store."""
    order, seen = list[int](), set[int]()
    stack = [(output, False) for output in reversed(outputs)]
    while stack:
        term, done = stack.pop()
        if done:
            order.append(term)
        elif term not in seen:
            seen.add(term)
            stack.append((term, True))
            stack += [(i, False) for i in reversed(terms.inputs[term]) if i not in seen]
    return order


def reaches(terms: Terms, start: int, goals: frozenset[int] | set[int]) -> bool:
    """Whether `start` is one of the goals or needs one of them."""
    least, inputs = min(goals), terms.inputs
    stack, found = [start], {start}
    while stack:
        term = stack.pop()
        if term in goals:
            return True
        for i in inputs[term]:
            if i >= least and i not in found:
                found.add(i)
                stack.append(i)
    return False


class OpaqueCall(Protocol):
    """An operation that stays as it was read. `Program.opaque` holds one for every key."""

    @property
    def label(self) -> str:
        """Its name where it comes from, e.g. Softmax."""

    @property
    def kind(self) -> str:
        """Its kind among `graphopt.core.operators`."""

    def flops(self, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
        """FLOP of one run; None for the kind's own count."""

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Its results, in order: tensors of torch, or arrays where torch has no such element type.

        Floating-point inputs may be wider than the operation says (float64 for float32).
        """


@dataclass(frozen=True, eq=False)
class Program:
    """Terms that compute outputs. Programs made from one another share their `terms`, `weights` and `opaque`."""

    terms: Terms
    outputs: tuple[int, ...]
    output_names: tuple[str, ...]
    inputs: tuple[int, ...]  # leaves, in the order of the program's arguments
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # values by name
    opaque: Mapping[str, Any] = field(default_factory=dict)  # `OpaqueCall` by the key of its operation
    origin: Any = None  # facts for export about the model that the program was read from, if any
    names: Mapping[int, str] = field(default_factory=dict)  # the model's op that a term comes from, where it has names
    given: Outputs | None = None  # outputs of the program that it was made from by rewriting; None: it is that one

    def live(self) -> list[int]:
        """Terms that the outputs need, in topological order."""
        return reachable(self.terms, self.outputs)

    def num_ops(self) -> int:
        """Live terms that run."""
        return sum(map(self.terms.runs.__getitem__, self.live()))

    def with_outputs(self, outputs: tuple[int, ...]) -> "Program":
        """The same inputs and weights, other outputs."""
        return replace(self, outputs=outputs, given=self.given or self.outputs)

    @property
    def original(self) -> "Program":
        """The program that it was made from by rewriting, or itself."""
        return self if self.given is None else replace(self, outputs=self.given, given=None)

    def parameters(self) -> int:
        """Elements of all weights that the outputs need."""
        terms = self.terms
        return sum(int(np.prod(terms.shape(t), dtype=np.int64))
                   for t in self.live() if terms.operation[t].name == "weight")  # fmt: skip


def substitute(terms: Terms, outputs: tuple[int, ...], live: Sequence[int], new: Mapping[int, int]) -> tuple[int, ...]:
    """Outputs with every use of a term of `new` replaced by its image, of the same type. `live`: their terms."""
    image = dict(new)
    first = min(new)
    inputs = terms.inputs
    for term in live:
        if term > first and term not in image and not image.keys().isdisjoint(inputs[term]):
            image[term] = terms.like(term, tuple([image.get(i, i) for i in inputs[term]]))
    return tuple([image.get(o, o) for o in outputs])


def renewed(program: Program) -> Program:
    """The same program in a store of its own, which holds nothing else."""
    terms, old = Terms(), program.terms
    own: dict[int, int] = {}
    for term in sorted({*program.live(), *program.inputs}):
        own[term] = terms.add(old.operation[term], [own[i] for i in old.inputs[term]])
    outputs, inputs = (tuple(own[term] for term in some) for some in (program.outputs, program.inputs))
    names = {own[term]: name for term, name in program.names.items() if term in own}
    return replace(program, terms=terms, outputs=outputs, inputs=inputs, given=None, names=names)
