"""A yaml node -> an object: the class named by `_target_`, called with the node's keys and the objects that the run
injects.

Keys that the constructor does not take are refused. Values are checked against the constructor's types and ranges
(`ranges.py`). Nothing has a default: a key that is neither in the yaml nor injected is missing.
"""

import dataclasses
import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Annotated, Any, Literal, Union

from graphopt.core.errors import ConfigError, UsageError, own_place
from graphopt.core.utils.marks import Between
from graphopt.core.utils.terminal import short

Node = Mapping[str, Any]  # plain containers: a resolved yaml node

LARGEST = 2**63  # whole numbers below fit into arrays
PLAIN = (bool, int, float, str)


class OutOfRange(UsageError):
    """A value of the right type that is too small or too large."""


# Arguments that `build` provides by name; yaml files leave them out.
INJECTED = frozenset({"machine", "task", "cost", "encoder", "dataset", "seed", "extra_width"})


def locate(target: str, where: str) -> Any:
    """The class or function called `package.module.Name`. Raises ConfigError when it cannot be imported."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if module == missing or module.startswith(missing + "."):
            raise ConfigError(f"{where}: there is no module {missing!r}; correct `_target_: {target}`") from None
        raise ConfigError(
            f"{where} needs the package {missing!r}, which is not installed; `pip install {missing}`"
        ) from None
    except (AttributeError, ValueError):
        raise ConfigError(f"{where}: module {module!r} has no {name!r}; correct `_target_: {target}`") from None


def target_of(node: Node, where: str) -> Any:
    """The class that a node names, imported but not called."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UsageError(
            f"{where} names no class: give one of the options of the config group, such as those in conf/{where}"
        )
    return locate(str(node["_target_"]), where)


def arguments_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The constructor's arguments by name, without self, and without `*args` and `**kwargs`, which nothing has to
    give."""
    parameters = inspect.signature(target).parameters.items()
    return {key: one for key, one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


def construct(node: Node, where: str, injected: Mapping[str, Any] | None = None) -> Any:
    """Calls the node's `_target_`. `where` is the config path, for messages.

    Raises UsageError for keys that it does not take and values of the wrong type, ConfigError for missing ones.
    """
    target = target_of(node, where)
    given = {key: value for key, value in node.items() if key != "_target_"}
    return call(target, given, where, injected or {})


def call(target: Callable[..., Any], given: Node, where: str, injected: Mapping[str, Any]) -> Any:
    """Calls a class with yaml values, checked, plus those injected values that it takes."""
    parameters = arguments_of(target)
    check_keys(parameters, given, where)
    extra = {key: value for key, value in injected.items() if key in parameters and key not in given}
    check_complete(parameters, {*given, *extra}, where, given)
    hints = hints_of(target)
    checked = {key: convert(value, hints.get(key, Any), dotted(where, key)) for key, value in given.items()}
    try:
        return target(**checked, **extra)
    except ValueError as error:
        if type(error) is not ValueError:  # those speak for themselves
            raise
        place = f" ({own_place(error)})" if own_place(error) else ""
        raise ConfigError(f"{where}: {' '.join(str(error).split())[:500]}{place}") from error


def check_keys(parameters: Mapping[str, inspect.Parameter], given: Node, where: str) -> None:
    """Raises UsageError, naming the valid keys, when a key is no argument or one that only the run itself provides."""
    own = [key for key in parameters if key not in INJECTED or key in given]
    for key, value in given.items():
        if key not in parameters:
            valid = ", ".join(k for k in own if k not in ("name",)) or "none"
            of = f"{where}={given['name']}" if "name" in given else where
            raise UsageError(f"{dotted(where, key)} does not exist; keys of {of}: {valid}")
        if where and key in INJECTED and not isinstance(value, int):
            raise UsageError(f"{where}.{key} is provided by the run itself; choose it as {key}=...")


def check_complete(parameters: Mapping[str, inspect.Parameter], known: Set[str], where: str, given: Node) -> None:
    """Raises ConfigError when an argument has no value. known: those that have one."""
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in known]
    if missing:
        raise ConfigError(
            f"{where} lacks {', '.join(missing)}; add it to the yaml file of {where}={given.get('name', '?')}"
        )


def dotted(where: str, key: str) -> str:
    """The config path of a key; `where` is empty at the top."""
    return f"{where}.{key}" if where else key


@lru_cache(maxsize=1024)
def hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """The types of the constructor's arguments, with their ranges and marks."""
    function = target.__init__ if inspect.isclass(target) else target  # type: ignore[misc]
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:  # a type imported for type checking only: its values are not yaml values
        return {}


def convert(value: Any, hint: Any, where: str) -> Any:
    """The value as the annotated type: int to float, list to tuple, mapping to dataclass, `_target_` node to object.

    Raises UsageError when it cannot be that type, OutOfRange when it is one but beyond its range, or not finite where
    no range says that it may be. Types other than plain ones are left to the constructor; `object` wholly so.
    """
    if isinstance(value, Mapping) and "_target_" in value:
        return _nested(value, hint, where)
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        ranged = any(isinstance(mark, Between) for mark in options[1:])
        plain = (
            _scalar(value, options[0], where) if ranged and options[0] in PLAIN else convert(value, options[0], where)
        )
        for mark in options[1:]:
            if isinstance(mark, Between) and not mark.holds(plain):
                raise OutOfRange(f"{where}={short(plain)} must be {mark}")
        return plain
    if origin in (Union, types.UnionType):
        return _any_of(value, options, where)
    if origin is Literal:
        if value not in options:
            raise UsageError(f"{where}={short(value)} is not one of {', '.join(map(str, options))}")
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            keys = ", ".join(f"{where}.{f.name}=..." for f in dataclasses.fields(hint))
            raise UsageError(f"{where}={short(value)} says nothing: {where} has keys of its own, {keys}")
        return call(hint, value, where, {})
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise UsageError(f"{where}={short(value)} must be fields by name, such as {where}.a=1")
        inner = options[1]
        if inner in (Any, object):
            return value if inner is object else _finite(value, where)
        return {key: convert(v, inner, dotted(where, str(key))) for key, v in value.items()}
    if origin in (list, tuple, Sequence):
        if not isinstance(value, list | tuple):
            raise UsageError(
                f"{where}={short(value)} must be a list, such as {where}=[{'a,b' if isinstance(value, str) else '1,2'}]"
            )
        items = [convert(item, options[0] if options else Any, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    return value if hint is object else _finite(_scalar(value, hint, where), where)


def _nested(node: Node, hint: Any, where: str) -> Any:
    """An object without injected arguments, of the class that is wanted there, where the type names one."""
    made, wanted = construct(node, where), classes_in(hint)
    if wanted and not isinstance(made, wanted):
        raise UsageError(f"{where} is a {type(made).__name__}, and has to be a {wanted[0].__name__}")
    return made


def classes_in(hint: Any) -> tuple[type, ...]:
    """The classes of options that a value of the type may be of: neither plain values nor settings by name."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return classes_in(options[0])
    if origin in (Union, types.UnionType):
        return tuple(kind for option in options for kind in classes_in(option))
    plain = (bool, int, float, str, list, dict, types.NoneType, object, Any)
    one = isinstance(hint, type) and origin is None and hint not in plain and not dataclasses.is_dataclass(hint)
    return (hint,) if one else ()


def _any_of(value: Any, options: Sequence[Any], where: str) -> Any:
    for option in options:
        if option is types.NoneType:
            if value is None:
                return None
            continue
        try:
            return convert(value, option, where)
        except OutOfRange:
            raise
        except UsageError:
            continue
    names = " or ".join("null" if o is types.NoneType else getattr(o, "__name__", str(o)) for o in options)
    raise UsageError(f"{where}={short(value)} must be {names}")


def _finite(value: Any, where: str) -> Any:
    """The value. Raises OutOfRange where a number in it is infinite or none (NaN), which only a range may allow."""
    if isinstance(value, Mapping):
        return {key: _finite(inner, dotted(where, str(key))) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise OutOfRange(f"{where}={short(value)} must be a finite number")
    return value


def _scalar(value: Any, hint: Any, where: str) -> Any:
    if hint not in PLAIN:
        return value
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise UsageError(f"{where}={short(value)} is too large a number")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        kind = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]
        raise UsageError(f"{where}={short(value)} must be {kind}")
    return value
