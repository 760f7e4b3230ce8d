"""The leaderboard's yaml files: plain values within limits, and errors in a sentence."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from graphopt.errors import Unreadable
from graphopt.utils.limits import MIB, read_bytes
from graphopt.utils.printable import short

FILE_BYTES = MIB
MOST = 1e300
LONGEST = 2000  # characters of a text
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class _Plain(yaml.SafeLoader):
    """Plain values, without aliases: a few of these stand for any amount of memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    """The value of a yaml file. Raises Unreadable."""
    try:
        return yaml.load(read_bytes(path, FILE_BYTES), _Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is no yaml ({' '.join(str(error).split())[:200]})") from None


def mapping(value: Any, source: str) -> Mapping[str, Any]:
    """Raises Unreadable where it is none."""
    if not isinstance(value, dict):
        raise Unreadable(f"{source}: it holds no keys with values")
    return value


def text(said: Mapping[str, Any], key: str, source: str) -> str:
    """A text that has to be there. Raises Unreadable."""
    value = said.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST:
        raise Unreadable(f"{source} needs a text under {key}")
    return value


def names(said: Mapping[str, Any], key: str, source: str) -> list[str]:
    """A list of names. Raises Unreadable."""
    value = listed(said, key, source)
    wrong = next((name for name in value if not is_name(name)), None)
    if wrong is not None:
        raise Unreadable(f"{source}: {short(wrong)} under {key} is no name: letters, digits, _, - and . only")
    return value


def is_name(value: Any) -> bool:
    """Whether it can be the name of an instance, or of an entry: it becomes a part of a path."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def number(value: Any) -> float | None:
    """As a number that a price can be; None where it is none."""
    if type(value) not in (int, float) or not abs(value) < MOST or not math.isfinite(value):
        return None
    return float(value)


def listed(said: Mapping[str, Any], key: str, source: str) -> list[Any]:
    """A list. Raises Unreadable."""
    value = said.get(key)
    if not isinstance(value, list):
        raise Unreadable(f"{source} needs a list under {key}")
    return value
