"""Reads substitutions of other systems as rules of ours.

TASO's protobuf file (its message format is that of `GraphSubst.RuleCollection`) and Tensat's text form of the same:

    (ewadd (matmul 0 ?a ?c) (matmul 0 ?b ?c))=>(matmul 0 (ewadd ?a ?b) ?c)

In both, activations are 0 none, 1 sigmoid, 2 relu, 3 tanh, and paddings 0 same, 1 valid; kernels are 3 x 3. A split
cuts where the concat below it joined. Additions and products take tensors of one shape: they do not broadcast. In
Tensat's file of two-output rules, lines 2k-1 and 2k are the two outputs of one rule.

Rules of operators that are not among these are left out, and counted.

The files do not say for which shapes a rule is meant. `readings` gives narrower and narrower ones.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from graphopt.errors import UserError
from graphopt.rewrite.rules.expressions import Call, Comparison, Condition, Expression, Literal, Variable
from graphopt.rewrite.rules.patterns import Node, Pattern, names_in, nodes
from graphopt.rewrite.rules.rule import Rule, RuleError, checked
from graphopt.utils.limits import read_bytes
from graphopt.utils.printable import printable

ACTIVATION = {0: "none", 1: "sigmoid", 2: "relu", 3: "tanh"}
OPERATORS = {3: "conv", 8: "relu", 9: "sigmoid", 10: "tanh", 12: "concat", 13: "split", 16: "add", 17: "mul",
             18: "matmul"}  # fmt: skip
MOST_BYTES, MOST_PARTS, MOST_NODES = 2**26, 64, 500  # of a file, of a split, of a pattern as a tree
LONGEST_NAME = 60  # of an unknown operator
NUM_OUTPUTS, STRIDE_H, STRIDE_W, PAD, ACTI, NUMDIM, AXIS = 2, 6, 7, 8, 9, 10, 11  # keys of TASO's parameters
TEXT_OPERATORS = {"conv2d": 4, "relu": 0, "concat": 2, "split": 1, "ewadd": 0, "ewmul": 0, "matmul": 1}  # parameters


class UnknownOperator(ValueError):
    """A rule speaks of an operator that has no meaning here."""


@dataclass(frozen=True)
class Substitutions:
    """What a file holds. skipped: how many rules were left out, by the unknown operator that they speak of."""

    rules: tuple[Rule, ...]
    skipped: Counter[str]


def _collected(makers: Iterable[Callable[[], Rule]]) -> Substitutions:
    rules, skipped = [], Counter[str]()
    for make in makers:
        try:
            rules.append(make())
        except UnknownOperator as error:
            skipped[printable(str(error)[:LONGEST_NAME])] += 1
    return Substitutions(tuple(rules), skipped)


def read_folder(folder: Path) -> dict[str, Substitutions]:
    """The rules of every file of substitutions in a folder, by file name. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}")
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".pb":
            found[path.name] = read_protobuf(path)
        elif path.suffix == ".txt" and b"=>" in read_bytes(path, MOST_BYTES):
            found[path.name] = read_text_form(path)
    if not found:
        raise UserError(f"no substitutions in {folder}: a .pb file of TASO or a .txt file of Tensat is needed")
    return found


def read_protobuf(path: Path) -> Substitutions:
    """Rules of TASO's file. Raises UserError where it is not one."""
    try:
        fields = list(_fields(read_bytes(path, MOST_BYTES)))
        if not fields or any(number != 1 or not isinstance(value, bytes) for number, value in fields):
            raise ValueError("it is no collection of rules")
        messages = [value for _, value in fields if isinstance(value, bytes)]
        return _collected(partial(_rule_of, f"taso_{k}", message) for k, message in enumerate(messages))
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise UserError(printable(f"cannot read {path} as TASO's substitutions: {error}")) from None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message: integers, or the bytes of an inner message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 0:
            yield key >> 3, value - (1 << 64) if value >> 63 else value
        elif key & 7 == 2 and at + value <= len(message):
            yield key >> 3, message[at : at + value]
            at += value
        else:
            raise ValueError(f"byte {at} is no field of a rule")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("it ends in the middle of a number")
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 128:
            return value, at


def _inner(message: bytes, number: int) -> list[bytes]:
    return [value for found, value in _fields(message) if found == number and isinstance(value, bytes)]


def _integers(message: bytes) -> list[int]:
    """Values of a message of integers, in the order of their numbers."""
    return [value for _, value in sorted(_fields(message), key=lambda f: f[0]) if isinstance(value, int)]


def _rule_of(name: str, message: bytes) -> Rule:
    sources, targets = (_operators(_inner(message, side)) for side in (1, 2))
    outputs = [_integers(output) for output in _inner(message, 3)]
    messages = [*_inner(message, 1), *_inner(message, 2)]
    params = [_integers(param) for operator in messages for param in _inner(operator, 3)]
    ranks = {value for key, value in params if key == NUMDIM}
    sides = [sources[so, st] for so, _, st, _ in outputs], [targets[to, tt] for _, to, _, tt in outputs]
    return _complete(name, *sides, ranks)


def _operators(messages: Sequence[bytes]) -> dict[tuple[int, int], Pattern]:
    """What every result of every operator of one side is."""
    made: dict[tuple[int, int], Pattern] = {}
    size: dict[int, int] = {}  # of the tree of each operator
    for index, message in enumerate(messages):
        (type_,) = (value for number, value in _fields(message) if number == 1)
        params = {param[0]: param[1] for param in map(_integers, _inner(message, 3))}
        inputs = []
        size[index] = 1 + sum(size.get(op, 1) for op, _ in map(_integers, _inner(message, 2)))
        if size[index] > MOST_NODES:
            raise ValueError(f"a pattern of more than {MOST_NODES} operators")
        for op, result in map(_integers, _inner(message, 2)):
            inputs.append(Variable(f"x{-op}") if op < 0 else made[op, result])
        if type_ not in OPERATORS:
            raise UnknownOperator(f"operator {type_!r}")
        operator = OPERATORS[int(type_)]
        for result, pattern in enumerate(_node(operator, params, tuple(inputs))):
            made[index, result] = pattern
    return made


def _node(operator: str, params: dict[int, int], inputs: tuple[Pattern, ...]) -> list[Pattern]:
    """The results of one operator, parameters under TASO's keys."""
    values: tuple[object, ...] = ()
    match operator:
        case "conv":
            pads = (1, 1, 1, 1) if params[PAD] == 0 else (0, 0, 0, 0)
            values = ((params[STRIDE_H], params[STRIDE_W]), pads, ACTIVATION[params[ACTI]])
        case "matmul":
            values = (ACTIVATION[params[ACTI]],)
        case "concat":
            values = (params[AXIS],)
        case "split":
            split = Node("split", (Literal(params[AXIS]), _joined_sizes(inputs[0])), inputs)
            if not 0 < params[NUM_OUTPUTS] <= MOST_PARTS:
                raise ValueError(f"a split into {params[NUM_OUTPUTS]} parts, not 1 to {MOST_PARTS}")
            return [Node("item", (Literal(part),), (split,)) for part in range(params[NUM_OUTPUTS])]
    return [Node(operator, tuple(map(Literal, values)), inputs)]


def _joined_sizes(pattern: Pattern) -> Expression:
    """The sizes that the concat within a pattern joins."""
    for node in nodes((pattern,)):
        if node.operator == "concat" and all(isinstance(i, Variable) for i in node.inputs):
            return Call("sizes", (*node.params, *(i for i in node.inputs if isinstance(i, Variable))))
    raise ValueError("a split cuts what no concat joined")


def _complete(name: str, sources: list[Pattern], targets: list[Pattern], ranks: set[int]) -> Rule:
    """The rule, with conditions for what the other system takes for granted: ranks, as its concats state them, and
    sizes of kernels."""
    roots = tuple(source for source in sources if isinstance(source, Node))
    every = list(nodes((*sources, *targets)))
    kernels = {name for node in every if node.operator == "conv" for name in names_in((node.inputs[1],))}
    if any(node.operator == "conv" for node in every):
        ranks = {4}
    if len(ranks) > 1:
        raise ValueError("concats of one rule are of different ranks")
    variables = [Variable(x[1:]) for x in sorted(names_in(roots)) if x[0] == "?"]
    conditions: list[Condition] = [Comparison("=", Call("rank", (x,)), Literal(r)) for x in variables for r in ranks]
    conditions += [
        Comparison("=", Call("kernel", (Variable(w[1:]),)), Literal((3, 3))) for w in sorted(kernels) if w[0] == "?"
    ]
    try:
        return checked(Rule(name, roots, tuple(targets), tuple(conditions)))
    except RuleError as error:
        raise ValueError(str(error)) from None


def readings(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """What a rule may mean: all shapes that its two sides admit; convs of one group in its sources; and kernels of one
    shape. Later ones are meant where earlier ones are not true."""
    yield "all shapes", rule
    pairs = [(node.inputs[0], node.inputs[1]) for node in nodes(rule.sources) if node.operator == "conv"]
    plain = [(x, w) for x, w in pairs if isinstance(x, Variable) and isinstance(w, Variable)]
    if plain:
        groups = dict.fromkeys(Comparison("=", Call("groups", pair), Literal(1)) for pair in plain)
        rule = replace(rule, conditions=(*rule.conditions, *groups))
        yield "convs of one group", rule
        alike = [Call("same_shape", (v, w)) for (_, v), (_, w) in pairwise(plain) if v != w]
        yield "convs of one group with kernels of one shape", replace(rule, conditions=(*rule.conditions, *alike))


@dataclass
class _Text:
    """A cursor over one side of a line of Tensat's text form."""

    tokens: list[str]
    at: int = field(default=0)

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise ValueError("a line ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def pattern(self) -> list[Pattern]:
        """The results of the next pattern."""
        if len(self.tokens) > 4 * MOST_NODES:
            raise ValueError(f"a pattern of more than {MOST_NODES} operators")
        token = self.take()
        if token != "(":
            if not token.startswith("?"):
                raise ValueError(f"a pattern expected, not {token!r}")
            return [Variable(token[1:])]
        operator = self.take()
        if operator.startswith("split_"):
            picked = [self.pattern()[int(operator[6:])]]
        elif operator in TEXT_OPERATORS:
            numbers = [int(self.take()) for _ in range(TEXT_OPERATORS[operator])]
            inputs: list[Pattern] = []
            while self.tokens[self.at : self.at + 1] not in ([")"], []):
                inputs += self.pattern()
            name = {"conv2d": "conv", "ewadd": "add", "ewmul": "mul"}.get(operator, operator)
            picked = _node(name, _keyed(operator, numbers), tuple(inputs))
        else:
            raise UnknownOperator(operator)
        if self.take() != ")":
            raise ValueError(f"{operator} is not closed")
        return picked


def _keyed(operator: str, numbers: list[int]) -> dict[int, int]:
    keys = {"conv2d": (STRIDE_H, STRIDE_W, PAD, ACTI), "matmul": (ACTI,), "concat": (AXIS, NUMDIM), "split": (AXIS,)}
    return {NUM_OUTPUTS: 2, **dict(zip(keys.get(operator, ()), numbers))}


def read_text_form(path: Path) -> Substitutions:
    """Rules of one of Tensat's files; two lines each where its name says `multi`. Raises UserError."""
    text = read_bytes(path, MOST_BYTES)
    each = 2 if "multi" in path.stem else 1
    try:
        lines = [line for line in text.decode().splitlines() if line.strip()]
        if len(lines) % each:
            raise ValueError("a rule of two outputs lacks one of its lines")
        starts = range(0, len(lines), each)
        return _collected(partial(_text_rule, f"{path.stem}_{k // each}", lines[k : k + each]) for k in starts)
    except (ValueError, KeyError, IndexError, RecursionError) as error:
        raise UserError(printable(f"cannot read {path} as Tensat's rules: {error}"[:1000])) from None


def _text_rule(name: str, lines: Sequence[str]) -> Rule:
    sides = [line.split("=>") for line in lines]
    if any(len(side) != 2 for side in sides):
        raise ValueError(f"no rule: {lines[0]!r}")
    sources, targets = ([_whole(side[k]) for side in sides] for k in (0, 1))
    ranks = {int(rank) for line in lines for rank in re.findall(r"\(concat \d+ (\d+)", line)}
    return _complete(name, sources, targets, ranks)


def _whole(text: str) -> Pattern:
    reader = _Text(re.findall(r"[()]|[^\s()]+", text))
    (pattern,) = reader.pattern()
    if reader.at < len(reader.tokens):
        raise ValueError(f"{' '.join(reader.tokens[reader.at :])!r} follows a whole pattern")
    return pattern
