"""The yaml folder is the registry: options of config groups, read without Hydra."""

import difflib
import os
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphopt import CONF, OWN_OPTIONS
from graphopt.errors import ConfigError

Stamp = tuple[Path, int, int]  # a file, when it was changed (ns), its size


def folders() -> list[Path]:
    """Where yaml files of options are: graphopt's, and the user's own folder (`--config-dir`), if there is one. As with
    Hydra the first that has an option counts."""
    own = os.environ.get(OWN_OPTIONS)
    return [CONF, Path(own)] if own else [CONF]


def options(group: str) -> list[str]:
    """Names of a config group: its yaml files are the registry."""
    return sorted({path.stem for folder in folders() for path in (folder / group).glob("*.yaml")})


def option(group: str, name: str) -> dict[str, Any]:
    """A yaml file of a config group as plain containers. Raises ConfigError, naming the options, when there is none."""
    stamps = tuple(_stamp(path) for folder in folders() for path in sorted((folder / group).glob("*.yaml")))
    return deepcopy(_plain(group, name, stamps))


def _stamp(path: Path) -> Stamp:
    said = path.stat()
    return path, said.st_mtime_ns, said.st_size


@lru_cache(maxsize=1024)  # yaml is slow to read, and a check of what fits what reads all options
def _plain(group: str, name: str, stamps: tuple[Stamp, ...]) -> dict[str, Any]:
    """The option as the files have it now."""
    from omegaconf import DictConfig, OmegaConf

    files = {path.stem: path for path, _, _ in reversed(stamps)}  # the first folder that has an option counts
    if name not in files:
        near = difflib.get_close_matches(name, sorted(files), 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"{group}={name} does not exist{meant}; available: {', '.join(sorted(files))}")
    node = OmegaConf.load(files[name])
    assert isinstance(node, DictConfig)
    # What other groups are to be (`override /encoder: ...`) is Hydra's business.
    bases = [base for each in node.pop("defaults", []) for base in _bases(group, each)]
    plain = OmegaConf.to_container(OmegaConf.merge(*bases, node), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _bases(group: str, entry: Any) -> list[dict[str, Any]]:
    """The option that a `defaults` entry brings: `NAME` of the same group, `/GROUP: NAME` of another one; with `@KEY`
    it is under that key, with `@KEY.INNER` under a key of that one."""
    if isinstance(entry, str):
        name, _, key = entry.partition("@")
        return [] if name == "_self_" else [_under(key, option(group, name))]
    found = [(*str(place).partition("@"), name) for place, name in entry.items() if str(place).startswith("/")]
    return [_under(key, option(other.removeprefix("/"), name)) for other, _, key, name in found]


def _under(key: str, node: dict[str, Any]) -> dict[str, Any]:
    for part in reversed(key.split(".") if key else []):
        node = {part: node}
    return node
