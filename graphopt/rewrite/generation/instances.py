"""Concrete cases of a rule: shapes and parameters for which its sources exist and its conditions hold.

A draw chooses freely: ranks, parameters, groups and broadcasts. Sizes stay unknown, and every operator adds equations
between them: a concat adds up, a matmul's inner sizes agree, a window's positions follow from its stride. The equations
are linear forms over unknown positive integers (`LinearForm`), which `solve` gives small random values. Other
conditions are checked in the end by the compiled rule itself, so every result is a true match.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any

import numpy as np

from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import ACTIVATIONS, Operation, Shape, ShapeError
from graphopt.rewrite.rules.compiling import bound_names, builder, matcher, names_of, test_of
from graphopt.rewrite.rules.rule import Call, Comparison, Expression, Literal, Node, Parameter, Pattern, Rule, Variable

SIZES = (1, 2, 2, 3, 3, 4, 5)  # values of free sizes


@dataclass(frozen=True, slots=True)
class LinearForm:
    """constant + sum of coefficient x unknown."""

    constant: int = 0
    coefficients: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: "LinearForm | int") -> "LinearForm":
        if isinstance(other, int):
            return LinearForm(self.constant + other, self.coefficients)
        merged = dict(self.coefficients)
        for unknown, coefficient in other.coefficients.items():
            merged[unknown] = merged.get(unknown, 0) + coefficient
        return LinearForm(self.constant + other.constant, {u: c for u, c in merged.items() if c})

    def __mul__(self, factor: int) -> "LinearForm":
        return LinearForm(
            self.constant * factor, {u: c * factor for u, c in self.coefficients.items()} if factor else {}
        )

    def __sub__(self, other: "LinearForm | int") -> "LinearForm":
        return self + other * -1

    def without(self, unknown: int, instead: "LinearForm") -> "LinearForm":
        """The form with a form in place of an unknown."""
        factor = self.coefficients.get(unknown, 0)
        if not factor:
            return self
        rest = LinearForm(self.constant, {u: c for u, c in self.coefficients.items() if u != unknown})
        return rest + instead * factor

    def reduced(self) -> "LinearForm":
        """A form that is zero for the same values: divided by the common divisor."""
        divisor = gcd(self.constant, *self.coefficients.values())
        return LinearForm(self.constant // divisor, {u: c // divisor for u, c in self.coefficients.items()})

    def value(self, values: Mapping[int, int]) -> int:
        return self.constant + sum(c * values[u] for u, c in self.coefficients.items())


def solve(equations: Sequence[LinearForm], unknowns: int, rng: np.random.Generator) -> dict[int, int] | None:
    """Values >= 1 of unknowns 0 .. unknowns-1 that make all forms zero; None where none was found."""
    images = _eliminated(list(equations))
    if images is None:
        return None
    free = [u for u in range(unknowns) if u not in images]
    for _ in range(8):
        values = dict(zip(free, (int(s) for s in rng.choice(SIZES, len(free)))))
        for unknown, image in reversed(images.items()):
            values[unknown] = image.value(values)
        if all(value >= 1 for value in values.values()):
            return values
    return None


def _eliminated(equations: list[LinearForm]) -> dict[int, LinearForm] | None:
    """Unknowns as forms of those that come later or stay free; None where the equations contradict each other."""
    images: dict[int, LinearForm] = {}
    while equations:
        equation = equations.pop()
        if not equation.coefficients:
            if equation.constant:
                return None
            continue
        equation = equation.reduced()
        pivot = _pivot(equation)
        if pivot is None:
            return None
        rest = LinearForm(equation.constant, {u: c for u, c in equation.coefficients.items() if u != pivot})
        images[pivot] = rest * -equation.coefficients[pivot]
        equations = [other.without(pivot, images[pivot]) for other in equations]
    return images


def _pivot(equation: LinearForm) -> int | None:
    """An unknown with a coefficient of 1 or -1; one that the others add up to where there is one."""
    units = [u for u, c in equation.coefficients.items() if abs(c) == 1]
    for unknown in units:
        sign = equation.coefficients[unknown]
        if all(c * sign < 0 for u, c in equation.coefficients.items() if u != unknown):
            return unknown
    return units[0] if units else None


Forms = list[LinearForm]


LONGEST_STRIDE = 2**31  # longer ones are of no use to anybody


class Misfit(Exception):
    """The draw leads nowhere; another one may."""


class Sampler:
    """One random draw: the shapes of variables as forms, the values of parameters, equations between sizes."""

    def __init__(self, rule: Rule, rng: np.random.Generator, *, broadcasting: bool) -> None:
        self.rule, self.rng, self.broadcasting = rule, rng, broadcasting
        self.unknowns = 0
        self.equations: Forms = []
        self.shapes: dict[str, Forms] = {}
        self.params: dict[str, Any] = {}
        self.nodes: dict[Node, Any] = {}
        self.ranks: dict[str, int] = {}
        self.usual = self.draw(1, 2, 2, 3, 3, 4)  # a rank that several tensors have, though nothing asks for it
        for condition in rule.conditions:  # `rank(?x) = 2` and `$a = 1` are noted before anything is drawn
            match condition:
                case Comparison("=", Parameter() as left, Literal(value)):
                    self.params[str(left)] = value
                case Comparison("=", Call("rank", (of,)), Literal(value)):
                    self.ranks[str(of)] = value

    def draw(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def unknown(self) -> LinearForm:
        self.unknowns += 1
        return LinearForm(0, {self.unknowns - 1: 1})

    def equal(self, left: Sequence[LinearForm], right: Sequence[LinearForm]) -> None:
        self.require(len(left) == len(right))
        self.equations += [a - b for a, b in zip(left, right)]

    def require(self, fits: bool) -> None:
        if not fits:
            raise Misfit

    def param(self, expression: Expression, *options: Any) -> Any:
        """The value of a parameter: fixed, drawn before, or drawn now. Computed ones are checked later."""
        if isinstance(expression, Literal):
            return expression.value
        if isinstance(expression, Parameter):
            name = str(expression)
            if name not in self.params:
                self.params[name] = self.draw(*options)
            return self.params[name]
        return self.draw(*options)

    def visit(self, pattern: Pattern, rank: int | None) -> Any:
        """The shape of a pattern; of `rank` dimensions where that is wanted."""
        if isinstance(pattern, Variable):
            return self._variable(str(pattern), rank)
        if pattern not in self.nodes:
            self.nodes[pattern] = getattr(self, f"_{pattern.operator}")(pattern, rank)
        found = self.nodes[pattern]
        self.require(rank is None or pattern.operator == "split" or len(found) == rank)
        return found

    def _variable(self, name: str, rank: int | None) -> Forms:
        if name not in self.shapes:
            rank = self.ranks.get(name) if rank is None else rank
            rank = self.draw(self.usual, self.usual, self.usual, 1, 2, 3, 4) if rank is None else rank
            self.require(self.ranks.get(name, rank) == rank)
            self.shapes[name] = [self.unknown() for _ in range(rank)]
        self.require(rank is None or len(self.shapes[name]) == rank)
        return self.shapes[name]

    def use_conditions(self) -> None:
        """Equations from conditions that speak of sizes."""
        for condition in self.rule.conditions:
            if isinstance(condition, Comparison) and condition.sign == "=":
                left, right = self.vector(condition.left), self.vector(condition.right)
                if left is not None and right is not None:
                    self.equal(left, right)
            elif isinstance(condition, Call) and condition.function == "same_shape":
                self.equal(*(self.shapes[str(a)] for a in condition.arguments))
            elif isinstance(condition, Call) and condition.function == "channelwise":
                channels = self.vector(condition.arguments[1]) or []
                factors = self.shapes[str(condition.arguments[0])]
                self.equal(factors, [*[LinearForm(1)] * (len(factors) - 3), *channels, LinearForm(1), LinearForm(1)])

    def vector(self, expression: Expression) -> Forms | None:
        """An expression of sizes, as forms; None for others."""
        if isinstance(expression, Literal):
            value = expression.value if isinstance(expression.value, tuple) else (expression.value,)
            return [LinearForm(v) for v in value] if all(isinstance(v, int) for v in value) else None
        if isinstance(expression, Parameter):
            known = self.params.get(str(expression))
            if isinstance(known, tuple | list):
                return [
                    v if isinstance(v, LinearForm) else LinearForm(v) for v in known if isinstance(v, LinearForm | int)
                ]
            return [LinearForm(known)] if isinstance(known, int) else None
        if not isinstance(expression, Call):
            return None
        of = [self.shapes.get(str(a)) for a in expression.arguments if isinstance(a, Variable)]
        fixed = [self.param(a) for a in expression.arguments if isinstance(a, Literal | Parameter)]
        match (expression.function, of, fixed):
            case ("shape", [list(x)], []):
                return x
            case ("kernel", [list(w)], []):
                return w[2:]
            case ("offsets", [list(w)], [tuple(pads)]):
                return [LinearForm(2 * pad) - side for pad, side in zip(pads, w[2:] * 2)]
            case ("without_last", [list(x)], []):
                return x[:-1]
            case ("without", [list(x)], [int(axis)]) if axis < len(x):
                return x[:axis] + x[axis + 1 :]
            case ("dim", [list(x)], [int(axis)]) if -len(x) <= axis < len(x):
                return [x[axis]]
            case ("sizes", xs, [int(axis)]) if all(x and axis < len(x) for x in xs):
                return [x[axis] for x in xs if x]
        return None

    # Operators: conditions on their inputs, and their results.

    def _same(self, node: Node, rank: int | None) -> Forms:
        shape: Forms = self.visit(node.inputs[0], rank)
        return shape

    _relu = _tanh = _sigmoid = _rsqrt = _same

    def _add(self, node: Node, rank: int | None) -> Forms:
        narrower = self.broadcasting and self.rng.random() < 0.15
        ranks: list[int | None] = [rank, rank]
        if narrower:
            ranks[self.draw(0, 1)] = None
        first = self.visit(node.inputs[0], ranks[0])
        second = self.visit(node.inputs[1], ranks[1] if narrower else len(first))
        return self.broadcast(first, second)

    _mul = _add

    def broadcast(self, a: Forms, b: Forms) -> Forms:
        longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
        ahead = len(longer) - len(shorter)
        result = longer[:ahead]
        wide = self.broadcasting and self.rng.random() < 0.4
        kinds = ("equal", "equal", "equal", "left", "right") if wide else ("equal",)
        for x, y in zip(longer[ahead:], shorter):
            kind = self.draw(*kinds)
            self.equations.append(x - y if kind == "equal" else (x if kind == "left" else y) - 1)
            result.append(y if kind == "left" else x)
        return result

    def _matmul(self, node: Node, rank: int | None) -> Forms:
        self.param(node.params[0], *ACTIVATIONS)
        usual = max(2, self.usual)
        rank = rank or self.draw(usual, usual, usual, 2, 3, 4)
        self.require(rank >= 2)
        a = self.visit(node.inputs[0], None if self.known(node.inputs[0]) else self.draw(rank, rank, 2))
        b = self.visit(node.inputs[1], None if self.known(node.inputs[1]) else self.draw(rank, rank, rank, len(a), 2))
        self.require(len(a) >= 2 and len(b) >= 2)
        self.equations.append(a[-1] - b[-2])
        return [*self.broadcast(a[:-2], b[:-2]), a[-2], b[-1]]

    def known(self, pattern: Pattern) -> bool:
        return str(pattern) in self.shapes or str(pattern) in self.ranks or pattern in self.nodes

    def _conv(self, node: Node, rank: int | None) -> Forms:
        strides = self.param(node.params[0], (1, 1), (1, 1), (2, 2), (1, 2))
        pads = self.param(node.params[1], (0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 0, 0), (0, 1, 1, 0), (2, 1, 2, 1))
        self.param(node.params[2], *ACTIVATIONS)
        x, w = self.visit(node.inputs[0], 4), self.visit(node.inputs[1], 4)
        groups = self.draw(1, 1, 2, 3, 4)
        self.equations += [x[1] - w[1] * groups, w[0] - self.unknown() * groups]
        if len(node.inputs) == 3:
            self.equal(self.visit(node.inputs[2], 1), [w[0]])
        return [x[0], w[0], *self.windows(x, w[2:], strides, pads)]

    def windows(self, x: Forms, kernel: Forms, strides: Shape, pads: Shape) -> Forms:
        """Positions of a window along height and width, as unknowns that determine the size of x."""
        self.require((len(kernel), len(strides), len(pads)) == (2, 2, 4))
        found = [self.unknown(), self.unknown()]
        for axis, positions in enumerate(found):
            stride = strides[axis]
            self.require(0 < stride < LONGEST_STRIDE)
            slack = int(self.rng.integers(stride))
            room = (positions - 1) * stride + slack - pads[axis] - pads[axis + 2]
            self.equations.append(room + kernel[axis] - x[axis + 2])
        return found

    def _pool(self, node: Node, rank: int | None) -> Forms:
        kernel = self.param(node.params[0], (2, 2), (3, 3), (2, 3), (1, 1))
        strides = self.param(node.params[1], (1, 1), (2, 2), (1, 2))
        pads = self.param(node.params[2], (0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (1, 1, 0, 0))
        x = self.visit(node.inputs[0], 4)
        return [*x[:2], *self.windows(x, _forms(kernel), strides, pads)]

    _pool_max = _pool_avg = _pool

    def _concat(self, node: Node, rank: int | None) -> Forms:
        forced = next((self.ranks[str(i)] for i in node.inputs if str(i) in self.ranks), None)
        first = self.visit(node.inputs[0], rank or forced)
        axis = self.param(node.params[0], *range(len(first)))
        rest = [self.visit(i, len(first)) for i in node.inputs[1:]]
        self.require(axis < len(first))
        total = first[axis]
        for other in rest:
            self.equal([*first[:axis], *first[axis + 1 :]], [*other[:axis], *other[axis + 1 :]])
            total = total + other[axis]
        return [*first[:axis], total, *first[axis + 1 :]]

    def _split(self, node: Node, rank: int | None) -> list[Forms]:
        x = self.visit(node.inputs[0], rank)
        axis = self.param(node.params[0], *range(len(x)))
        self.require(axis < len(x))
        sizes = self._sizes(node.params[1])
        self.equations.append(sum(sizes, LinearForm()) - x[axis])
        return [[*x[:axis], size, *x[axis + 1 :]] for size in sizes]

    def _sizes(self, param: Expression) -> Forms:
        if isinstance(param, Literal):
            return [LinearForm(size) for size in param.value]
        known = self.vector(param)
        if known is not None:
            return known
        parts = [self.unknown() for _ in range(self.draw(2, 2, 3))]
        return list(self.param(param, parts))

    def _item(self, node: Node, rank: int | None) -> Forms:
        parts = self.visit(node.inputs[0], rank)
        index = self.param(node.params[0], *range(len(parts)))
        self.require(index < len(parts))
        picked: Forms = parts[index]
        return picked

    def _transpose(self, node: Node, rank: int | None) -> Forms:
        x = self.visit(node.inputs[0], rank)
        permutation = self.param(node.params[0], tuple(int(axis) for axis in self.rng.permutation(len(x))))
        self.require(len(permutation) == len(x))
        return [x[axis] for axis in permutation]

    def _reshape(self, node: Node, rank: int | None) -> Forms:
        x = self.visit(node.inputs[0], None)
        drawn = self.arranged([int(size) for size in self.rng.choice((1, 2, 2, 3), 4)], rank or self.draw(1, 2, 3, 4))
        shape: Shape = self.param(node.params[0], drawn)
        self.equal(x, [LinearForm(size) for size in self.arranged(_factors(prod(shape)), len(x))])
        return [LinearForm(size) for size in shape]

    def arranged(self, factors: Sequence[int], rank: int) -> Shape:
        """A shape of so many dimensions whose sizes multiply to the product of the factors."""
        shape = [1] * rank
        for factor in factors:
            shape[int(self.rng.integers(rank))] *= factor
        return tuple(shape)

    def _enlarge(self, node: Node, rank: int | None) -> Forms:
        w = self.visit(node.inputs[0], 4)
        size = self.param(node.params[0], [side + 2 * int(self.rng.integers(2)) for side in w[2:]])
        self.equations += [s - side - 2 * int(self.rng.integers(2)) for s, side in zip(_forms(size), w[2:])]
        return [*w[:2], *_forms(size)]

    def _merge_groups(self, node: Node, rank: int | None) -> Forms:
        w = self.visit(node.inputs[0], 4)
        count = self.param(node.params[1], 2, 3)
        groups = self.param(node.params[0], count, 2 * count)
        self.equations.append(w[0] - self.unknown() * groups)
        return [w[0], w[1] * count, *w[2:]]

    def _batch_norm(self, node: Node, rank: int | None) -> Forms:
        self.param(node.params[0], 1e-05, 0.001)
        x = self.visit(node.inputs[0], rank or self.draw(2, 3, 4))
        self.require(len(x) >= 2)
        for i in node.inputs[1:]:
            self.equal(self.visit(i, 1), [x[1]])
        return list(x)

    def _softmax(self, node: Node, rank: int | None) -> Forms:
        x = self.visit(node.inputs[0], rank)
        self.require(0 <= self.param(node.params[0], *range(len(x))) < len(x))
        return list(x)

    def _layer_norm(self, node: Node, rank: int | None) -> Forms:
        self.param(node.params[0], 1e-05, 0.001)
        x = self.visit(node.inputs[0], rank)
        for i in node.inputs[1:]:
            self.equal(self.visit(i, 1), x[-1:])
        return list(x)

    def _gather(self, node: Node, rank: int | None) -> Forms:
        x = self.visit(node.inputs[0], None)
        axis = self.param(node.params[0], *range(len(x)))
        self.require(axis < len(x))
        wanted = None if rank is None else rank - len(x) + 1
        self.require(wanted is None or wanted > 0)
        indices = self.visit(node.inputs[1], wanted if wanted or self.known(node.inputs[1]) else self.draw(1, 1, 2))
        return [*x[:axis], *indices, *x[axis + 1 :]]

    def _pad(self, node: Node, rank: int | None) -> Forms:
        x = self.visit(node.inputs[0], rank)
        sides = [self.param(p, tuple(int(n) for n in self.rng.integers(0, 3, len(x)) * self.rng.integers(0, 2, len(x))))
                 for p in node.params]  # fmt: skip
        self.require(all(len(side) == len(x) for side in sides))
        return [size + before + after for size, before, after in zip(x, *sides)]


def _forms(sizes: Sequence[LinearForm | int]) -> Forms:
    return [size if isinstance(size, LinearForm) else LinearForm(size) for size in sizes]


def _factors(number: int) -> list[int]:
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


LARGEST = 3000  # elements of a tensor
FRUITLESS = 500  # tries


@dataclass(frozen=True)
class Instance:
    """Sources and targets of a rule over leaves of known shapes, and the values of names.

    misfit: why the targets cannot stand for the sources, of which the rule's conditions should have warned; or empty.
    """

    terms: Terms
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    misfit: str
    values: tuple[Any, ...]  # of bound_names(rule)
    shapes: dict[str, Shape]
    params: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in (self.shapes | self.params).items())


def instances(rule: Rule, rng: np.random.Generator, tries: int, granted: bool = False) -> Iterator[Instance]:
    """Cases that the rule admits, different ones, as many as so many tries give; none after many tries without any.

    granted: only those in which both sides exist, whether or not their types agree, and sums and products are of
    tensors of one shape, as rules of other systems take for granted.
    """
    seen = set()
    for tried in range(tries):
        found = _instance(rule, rng, broadcasting=not granted, both=granted)
        if found is not None and str(found) not in seen and (found.targets or not granted):
            seen.add(str(found))
            yield found
        if tried > FRUITLESS and not seen:
            return


def _instance(rule: Rule, rng: np.random.Generator, *, broadcasting: bool, both: bool) -> Instance | None:
    """One draw, in which both sides exist where that is wanted."""
    sampler = Sampler(rule, rng, broadcasting=broadcasting)
    try:
        forms = [sampler.visit(source, None) for source in rule.sources]
        if both:  # equations that the target exists; were its shape made the source's, a wrong stride would only be met
            for form, target in zip(forms, rule.targets):  # where it makes no difference
                sampler.visit(target, len(form))
        sampler.use_conditions()
    except Misfit:
        return None
    sizes = solve(sampler.equations, sampler.unknowns, rng)
    if sizes is None:
        return None
    shapes = {name: tuple(form.value(sizes) for form in forms) for name, forms in sampler.shapes.items()}
    if any(prod(shape) > LARGEST for shape in shapes.values()):
        return None
    return built(rule, shapes, {name: _resolved(value, sizes) for name, value in sampler.params.items()})


def built(rule: Rule, shapes: dict[str, Shape], params: dict[str, Any]) -> Instance | None:
    """The case of a rule for given shapes of `?x` and values of `$s`; None where the rule does not apply."""
    terms = Terms()
    calls = [condition for condition in rule.conditions if isinstance(condition, Call)]
    static = {str(call.arguments[0]) for call in calls if call.function == "static"}
    full = {str(call.arguments[0]): call.arguments[1] for call in calls if call.function == "filled"}
    leaves = {}
    for name, shape in shapes.items():
        value = full.get(name)
        leaf = Operation("weight" if name in static else "input", (name, shape, "float32"))
        leaves[name] = terms.add(Operation("fill", (value.value, shape)) if isinstance(value, Literal) else leaf)
    bound = leaves | params
    sources_only = Rule(rule.name, rule.sources, rule.sources)
    names = bound_names(rule)
    try:
        sources = builder(sources_only)(terms)(*[bound.get(name) for name in names])
        values = [bound[name] for name in names]
        for index, (source, root) in enumerate(zip(rule.sources, sources)):
            if matcher(rule, index)(terms)(root) != tuple(bound[name] for name in names_of(source)):
                return None
        if not test_of(names, rule.conditions, terms)(*values):
            return None
    except (ShapeError, KeyError, IndexError, ValueError, TypeError):
        return None
    targets, misfit = _targets(rule, terms, sources, values)
    if any(prod(result.shape) > LARGEST for types in terms.types for result in types):
        return None
    return Instance(terms, sources, targets, misfit, tuple(values), shapes, params)


def _targets(rule: Rule, terms: Terms, sources: tuple[int, ...], values: list[Any]) -> tuple[tuple[int, ...], str]:
    """The targets, and why they do not fit."""
    try:
        targets = builder(rule)(terms)(*values)
    except ShapeError as error:
        return (), str(error)
    except (IndexError, ValueError, TypeError) as error:  # a function of a parameter that is no number, or too short
        return (), f"its targets cannot be computed ({type(error).__name__})"
    for source, target in zip(sources, targets):
        old, new = terms.type_of(source), terms.type_of(target)
        if old != new:
            return targets, f"{new.dtype} {new.shape} instead of {old.dtype} {old.shape}"
    return targets, ""


def _resolved(value: Any, sizes: dict[int, int]) -> Any:
    if isinstance(value, LinearForm):
        return value.value(sizes)
    return tuple(_resolved(v, sizes) for v in value) if isinstance(value, tuple | list) else value
