"""The yaml folder is the registry: options of config groups, read without Hydra."""

import difflib
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from graphopt import CONF, OWN_OPTIONS
from graphopt.core.errors import ConfigError

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


def purpose(group: str, name: str) -> str:
    """The first sentence of the comment on top of an option's file, without its full stop; empty where it has none."""
    lines = file_of(group, name).read_text(encoding="utf-8").removeprefix("# @package _global_\n").splitlines()
    comment = " ".join(line[2:] for line in takewhile(lambda line: line.startswith("# "), lines))
    return re.split(r"[.](?:\s|$)", comment, maxsplit=1)[0]


def target(group: str, name: str) -> str | None:
    """The class that an option names; read from its line, where the file has one: yaml is slow to parse."""
    line = re.search(r"^_target_: ([\w.]+)$", file_of(group, name).read_text(encoding="utf-8"), re.MULTILINE)
    found = line[1] if line else option(group, name).get("_target_")
    return None if found is None else str(found)


def file_of(group: str, name: str) -> Path:
    return next(path for folder in folders() if (path := folder / group / f"{name}.yaml").is_file())


def base(group: str, node: Mapping[str, Any]) -> str:
    """The option that a configured node is: that of its name, or, where an experiment calls it otherwise, the only one
    of its class; of several, its own name."""
    name, known = str(node["name"]), options(group)
    alike = [one for one in known if name not in known and option(group, one).get("_target_") == node.get("_target_")]
    return alike[0] if len(alike) == 1 else name


def _stamp(path: Path) -> Stamp:
    said = path.stat()
    return path, said.st_mtime_ns, said.st_size


@lru_cache(maxsize=1024)  # yaml is slow to read, and a check of compatibility reads all options
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
    bases = [base for entry in node.pop("defaults", []) for base in _bases(group, entry)]
    plain = OmegaConf.to_container(OmegaConf.merge(*(_base(group, base) for base in bases), node), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _bases(group: str, entry: Any) -> list[str]:
    """The options of the same group that an entry of `defaults` names: `NAME`, `NAME@KEY`, or `/GROUP@KEY: NAME`, which
    the command line may override. Choices of other groups (`override /encoder: ...`) are left to Hydra."""
    if isinstance(entry, str):
        return [entry] if entry != "_self_" else []
    return [f"{name}@{key.partition('@')[2]}" for key, name in entry.items() if str(key).startswith(f"/{group}@")]


def _base(group: str, base: str) -> dict[str, Any]:
    """The option that a `defaults` entry names: `NAME`, or `NAME@KEY` to have it under that key, `NAME@KEY.INNER`
    under a key of that one."""
    name, _, key = base.partition("@")
    node = option(group, name)
    for part in reversed(key.split(".") if key else []):
        node = {part: node}
    return node
