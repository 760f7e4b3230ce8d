"""Whether the functions that a rule calls are called with what they take (`conditions.py` says it with types)."""

import inspect
import typing
from functools import cache
from typing import Any

from graphopt.rewrite.ir.vocabulary import Shape
from graphopt.rewrite.rules.conditions import FUNCTIONS, Term
from graphopt.rewrite.rules.expressions import Call, Expression, Listed, Literal, Parameter, Variable

_KINDS = {Term: "a ?variable", int: "a whole number", Shape: "a list of whole numbers", bool: "yes or no"}


def misuse(call: Call) -> str:
    """What is wrong with the arguments of a call; empty where nothing is."""
    takes, more = _takes(call.function)
    given = call.arguments
    if len(given) < len(takes) or (len(given) > len(takes) and more is None):
        return f"{call.function} takes {len(takes)}{' or more' if more else ''} arguments, not {len(given)}"
    for argument, wanted in zip(given, [*takes, *[more] * (len(given) - len(takes))]):
        if not _fits(argument, wanted):
            return f"{call.function} takes {_KINDS[wanted]}, not {str(argument)[:100]}"
    return ""


def _fits(argument: Expression, wanted: Any) -> bool:
    if isinstance(argument, Variable) or wanted is Term:
        return isinstance(argument, Variable) and wanted is Term
    if isinstance(argument, Call):
        return bool(_hints(argument.function)["return"] == wanted)
    if isinstance(argument, Listed):
        return bool(wanted == Shape)
    return isinstance(argument, Parameter) or _is(argument, wanted)


def _is(literal: Literal, wanted: Any) -> bool:
    items = literal.value if wanted == Shape else (literal.value,)
    return isinstance(items, tuple) and all(type(item) is int for item in items)


@cache
def _takes(function: str) -> tuple[tuple[Any, ...], Any]:
    """(kinds of its arguments but the store of terms, the kind of any further ones or None)."""
    named = list(inspect.signature(FUNCTIONS[function]).parameters.values())[1:]
    fixed = tuple(_hints(function)[p.name] for p in named if p.kind is not p.VAR_POSITIONAL)
    return fixed, next((_hints(function)[p.name] for p in named if p.kind is p.VAR_POSITIONAL), None)


def _hints(function: str) -> dict[str, Any]:
    return typing.get_type_hints(FUNCTIONS[function])
