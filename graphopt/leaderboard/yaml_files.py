"""The leaderboard's yaml files: plain values within limits, and errors in a sentence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from graphopt.errors import Unreadable
from graphopt.utils.limits import MIB, read_bytes

FILE_BYTES = MIB
LONGEST = 2000  # characters of a text


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
    """A list of texts. Raises Unreadable."""
    value = listed(said, key, source)
    if not all(isinstance(name, str) for name in value):
        raise Unreadable(f"{source} needs a list of names under {key}")
    return value


def listed(said: Mapping[str, Any], key: str, source: str) -> list[Any]:
    """A list. Raises Unreadable."""
    value = said.get(key)
    if not isinstance(value, list):
        raise Unreadable(f"{source} needs a list under {key}")
    return value
