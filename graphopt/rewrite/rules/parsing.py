"""Reads rules from their text form, by recursive descent.

rule      = name ":" sides ["where" condition {"," condition}]
sides     = pattern {"," pattern} ("=>" | "<=>") pattern {"," pattern}
pattern   = "?" name | "(" operator {param} {pattern} ")"
param     = value | "{" value "}"
value     = number | word | "$" name | "?" name | "[" value {"," value} "]" | word "(" value {"," value} ")"
condition = value [("=" | "!=" | "<" | "<=" | ">" | ">=") value]
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import accumulate
from typing import TypeVar

from graphopt.rewrite.ir.vocabulary import VOCABULARY
from graphopt.rewrite.rules.conditions import FUNCTIONS
from graphopt.rewrite.rules.rule import (
    COMPARED,
    Call,
    Comparison,
    Condition,
    Expression,
    Listed,
    Literal,
    Node,
    Parameter,
    Pattern,
    Rule,
    RuleError,
    RuleSet,
    Variable,
    canonical,
    checked,
)

TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)|(?P<name>[?$]?[A-Za-z_]\w*)|(?P<sign><=>|=>|!=|<=|>=|[][(){}:,=<>]))"
)
T = TypeVar("T")
DEPTH = 50  # brackets within each other
LONGEST = 200  # characters of a word


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules of a text, in its order. Raises RuleError, which names the line, for other lines."""
    lines = ((number, line.split("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    rules = tuple(rule for number, line in lines if line for rule in _rules_of_line(number, line))
    names = [rule.name for rule in rules]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise RuleError(f"two rules are named {twice[0]}: rename one")
    return rules


def _rules_of_line(number: int, line: str) -> Iterator[Rule]:
    try:
        depths = accumulate((sign in "([{") - (sign in ")]}") for sign in line)
        if max(depths, default=0) > DEPTH:
            raise RuleError(f"brackets are nested more than {DEPTH} deep")
        yield from _TokenReader(line).rule()
    except RuleError as error:
        raise RuleError(f"line {number}: {error}") from None
    except (ValueError, OverflowError):  # a number of thousands of digits
        raise RuleError(f"line {number}: a number is too long") from None


class _TokenReader:
    """A cursor over the tokens of one line."""

    def __init__(self, line: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(line):
            token = TOKEN.match(line, at)
            if token is None:
                raise RuleError(f"cannot read {line[at:].split()[0][:LONGEST]!r}")
            if token.end() - token.start(str(token.lastgroup)) > LONGEST:
                raise RuleError(f"a word of more than {LONGEST} characters")
            self.tokens.append((str(token.lastgroup), token.group().strip()))
            at = token.end()
        self.tokens.append(("end", "the end"))
        self.at = 0

    def next(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1]

    def takes(self, *signs: str) -> str:
        """The next token if it is one of these, which is then passed, else an empty string."""
        return self.take()[1] if self.next() in signs else ""

    def expect(self, *signs: str) -> str:
        found = self.takes(*signs)
        if not found:
            raise RuleError(f"{' or '.join(map(repr, signs))} expected, not {self.next()!r}")
        return found

    def listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        found = [read()]
        while self.takes(","):
            found.append(read())
        return tuple(found)

    def rule(self) -> Iterator[Rule]:
        name = self.take()[1]
        self.expect(":")
        sources = self.listed(self.pattern)
        arrow = self.expect("=>", "<=>")
        targets = self.listed(self.pattern)
        conditions = self.listed(self.condition) if self.takes("where") else ()
        self.expect("the end")
        sides = [(name, sources, targets)] + ([(f"{name}_back", targets, sources)] if arrow == "<=>" else [])
        for called, left, right in sides:
            roots = tuple(source for source in left if isinstance(source, Node))
            if len(roots) < len(left):
                raise RuleError(f"{called}: a source that is a mere variable matches everything")
            yield checked(Rule(called, roots, right, conditions))

    def pattern(self) -> Pattern:
        if self.next().startswith("?"):
            return Variable(self.take()[1][1:])
        self.expect("(")
        operator = self.take()[1]
        signature = VOCABULARY.get(operator)
        if signature is None:
            raise RuleError(f"no operator {operator!r}; there are {', '.join(VOCABULARY)}")
        params = tuple(self.param() for _ in signature.params)
        inputs = []
        while not self.takes(")"):
            inputs.append(self.pattern())
        return Node(operator, params, tuple(inputs))

    def param(self) -> Expression:
        if self.takes("{"):
            value = self.value()
            self.expect("}")
            return value
        return self.value(calls=False)

    def value(self, calls: bool = True) -> Expression:
        if self.takes("["):
            items = () if self.next() == "]" else self.listed(self.value)
            self.expect("]")
            fixed = [item.value for item in items if isinstance(item, Literal)]
            return Literal(tuple(fixed)) if len(fixed) == len(items) else Listed(items)
        kind, text = self.take()
        if kind == "number":
            return Literal(float(text) if set(text) & {".", "e"} else int(text))
        if kind != "name":
            raise RuleError(f"a value expected, not {text!r}")
        if text[0] in "?$":
            return Variable(text[1:]) if text[0] == "?" else Parameter(text[1:])
        return self.call(text) if calls and self.takes("(") else Literal(text)

    def call(self, function: str) -> Call:
        if function not in FUNCTIONS:
            raise RuleError(f"no function {function!r}; there are {', '.join(FUNCTIONS)}")
        arguments = self.listed(self.value)
        self.expect(")")
        return Call(function, arguments)

    def condition(self) -> Condition:
        left = self.value()
        sign = self.takes(*COMPARED)
        if sign:
            return Comparison(sign, left, self.value())
        if not isinstance(left, Call):
            raise RuleError(f"{str(left)[:LONGEST]} is no condition: compare it with something")
        return left


def load_rules(*names: str) -> RuleSet:
    """Rules of packaged files, all files where none is named; of rules that differ in names alone, the first. Raises
    RuleError for a file that is not there."""
    folder = files("graphopt.rewrite") / "rule_files"
    there = sorted(f.name.removesuffix(".txt") for f in folder.iterdir() if f.name.endswith(".txt"))
    missing = sorted(set(names) - set(there))
    if missing:
        raise RuleError(f"no rule file {missing[0]!r}; there are {', '.join(there)}")
    rules = [rule for name in names or there for rule in parse_rules((folder / f"{name}.txt").read_text())]
    return tuple({canonical(rule): rule for rule in reversed(rules)}.values())[::-1]
