"""Configurations in files (answers, checkpoints, problems), written and read. A file names options, never classes.

In a file a node of a config group is `{_option_: gpu2, name: ..., ...}`: the name of the yaml file, here
conf/machine/gpu2.yaml, and plain values. When it is read, this installation's yaml file says which class that is. Files
of older versions say `_target_: module.Class` instead; that text is looked up among the classes that the group's yaml
files name, and is never imported. So no text of a file is imported or called.

`node_of` is the only way in. It goes through the types of the option's constructor. An option may stand where a type
wants one, and only of that class. A setting that would import, open, run or connect is marked in its type
(`graphopt.core.utils.marks`), and the mark decides about a file's value. All else is plain values.

A name can be overridden (`machine.name=mine`), and a node holds all values of its option. So an option only has to name
the class. It is the yaml file called like the node if that one has the node's class. Else it is the first that has it.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Union

from graphopt import OWN_OPTIONS
from graphopt.core.errors import ConfigError, UserError
from graphopt.core.utils import registry
from graphopt.core.utils.marks import Outside
from graphopt.run.config.construct import Node, classes_in, dotted, hints_of, locate
from graphopt.run.config.former import ADDED, ANY, FORMER, MOVED, REMOVED

OPTION, TARGET, CLASS = "_option_", "_target_", "_class_"  # CLASS: a class that is no option, for messages
RESERVED = (OPTION, TARGET, CLASS)
GROUPS = ("dataset", "task", "machine", "cost", "judge", "encoder", "algo")  # of which files say something

_OWN_HINT = f" (${OWN_OPTIONS} names a folder of further ones)"


class StoredError(UserError):
    """A file's configuration has a part that this installation does not know; the message names it."""


def words(group: str, node: Node) -> dict[str, Any]:
    """The words of a file for a node of a configuration (`judge`: of the group `cost`), nested nodes included."""
    target = str(node[TARGET])
    known, name = _targets(group), str(node.get("name"))
    option = name if known.get(name) == target else next((one for one, own in known.items() if own == target), None)
    kept = {OPTION: option} if option is not None else {OPTION: None, CLASS: target}
    return {**kept, **{key: _inner(group, value) for key, value in node.items() if key != TARGET}}


def _inner(group: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return words(group, value) if TARGET in value else {key: _inner(group, v) for key, v in value.items()}
    return [_inner(group, v) for v in value] if isinstance(value, list | tuple) else value


def class_of(group: str, said: Any) -> Any:
    """The class that a file's words name, without a look at the values. Raises StoredError."""
    return locate(_target(group, _option(group, said)), group)


def node_of(group: str, said: Any, near: Path | None = None) -> dict[str, Any]:
    """The node that a file's words mean here, with the `_target_` of this installation's yaml file. near: the file.
    Raises UserError when they name no option, or have a setting that a file may not have."""
    return _node(group, said, group, near)


def _node(group: str, said: Any, where: str, near: Path | None, wanted: tuple[type, ...] = ()) -> dict[str, Any]:
    """wanted: the classes that an inner option may be of."""
    target = _target(group, _option(where, said))
    made = locate(target, where)
    if wanted and not (isinstance(made, type) and issubclass(made, wanted)):
        raise StoredError(f"{where} is a {made.__name__}, and has to be a {wanted[0].__name__}")
    values = {key: value for key, value in said.items() if key not in RESERVED}
    gone = REMOVED.get(target, {})  # removed settings, where the file has the value that the present code stands for
    kept = {key: value for key, value in values.items() if key not in gone or gone[key] not in (ANY, value)}
    return {TARGET: target, **_fields(group, ADDED.get(target, {}) | kept, hints_of(made), where, near)}


def _option(where: str, said: Any) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        raise StoredError(f"{where} is {_short(said)}, not an option with its values")
    return said


def _target(group: str, said: Mapping[str, Any]) -> str:
    if group not in GROUPS:
        raise StoredError(f"files say nothing of {group}: they say {', '.join(GROUPS)}")
    known, option = _targets(group), said.get(OPTION)
    if isinstance(option, str):
        option = option if option in known else FORMER.get(group, {}).get(option, option)
    if isinstance(option, str) and option in known:
        return known[option]
    there = f"there are: {', '.join(known) or 'none'}"
    if isinstance(option, str):
        raise StoredError(f"{group}={_short(option)} is no option of this installation; {there}{_OWN_HINT}")
    target = said.get(CLASS) if OPTION in said else said.get(TARGET)
    if isinstance(target, str) and _moved(target) in known.values():
        return _moved(target)
    raise StoredError(
        f"{group} {_short(said.get('name', '?'))} is of the class {_short(target)}, which none of the options of this "
        f"installation is, and a file may not bring its own; {there}{_OWN_HINT}"
    )


def _moved(target: str) -> str:
    """Where a class is that an older version calls by this path."""
    names = target.split(".")
    for length in range(len(names), 0, -1):
        if (now := MOVED.get(".".join(names[:length]))) is not None:
            return ".".join([now, *names[length:]])
    return target


def _fields(
    group: str, said: Mapping[Any, Any], hints: Mapping[str, Any], where: str, near: Path | None
) -> dict[str, Any]:
    """Values by key, each of its key's type."""
    found = {}
    for key, value in said.items():
        if str(key).startswith("_"):
            raise StoredError(f"{dotted(where, _short(key))} is no key that a file may set")
        found[str(key)] = _value(group, value, hints.get(str(key), Any), dotted(where, _short(key)), near)
    return found


def _value(group: str, value: Any, hint: Any, where: str, near: Path | None) -> Any:
    """The effective value of a file's value where a constructor wants this type. Values of another shape than the
    type's stay as they are, if they are plain: `construct` refuses them."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for mark in (mark for mark in hint.__metadata__ if isinstance(mark, Outside)):
            value = mark.here(value, where, near)
        return _value(group, value, inner[0], where, near)
    if origin in (Union, types.UnionType):
        of = next((one for one in inner if _shaped(value, one)), Any)
        return _value(group, value, of, where, near)
    wanted = classes_in(hint)
    if wanted:
        return _node(group, value, where, near, wanted)
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return _fields(group, value, hints_of(hint), where, near)
        of = inner[1] if origin in (dict, Mapping) and inner else Any
        return _fields(group, value, {str(key): of for key in value}, where, near)
    if isinstance(value, list | tuple):
        of = inner[0] if origin in (list, tuple, Sequence) and inner else Any
        return [_value(group, one, of, f"{where}[{i}]", near) for i, one in enumerate(value)]
    return _plain(value, where)


def _shaped(value: Any, hint: Any) -> bool:
    """Whether a value is to be read as this type of several; marks and wanted classes see all but null."""
    origin = typing.get_origin(hint)
    if origin is Annotated or classes_in(hint):
        return value is not None
    if isinstance(value, Mapping):
        return origin in (dict, Mapping) or dataclasses.is_dataclass(hint)
    return isinstance(value, list | tuple) and origin in (list, tuple, Sequence)


def _plain(value: Any, where: str) -> Any:
    """A single value as JSON has it."""
    if isinstance(value, str) and "${" in value:
        raise StoredError(f"{where}={_short(value)} would be looked up elsewhere; a file may only hold plain values")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise StoredError(f"{where} is a {type(value).__name__}, not a plain value")


def _targets(group: str) -> Mapping[str, str]:
    """Option -> the class that its yaml file names."""
    return _targets_in(tuple(registry.folders()), "cost" if group == "judge" else group)


@lru_cache(maxsize=64)
def _targets_in(folders: tuple[Path, ...], group: str) -> Mapping[str, str]:
    found = {}
    for name in registry.options(group):
        target = registry.target(group, name)
        if target is not None:
            found[name] = str(target)
    if not found:
        raise ConfigError(f"there are no options of {group} in {' or '.join(map(str, folders))}")
    return found


def _short(value: Any) -> str:
    return repr(value)[:80] if not isinstance(value, str) else value[:80]
