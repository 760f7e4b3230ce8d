"""The yaml folder is the registry: options of config groups, read without Hydra."""

import difflib
import os
from pathlib import Path
from typing import Any

from graphopt import CONF, OWN_OPTIONS
from graphopt.errors import ConfigError


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
    from omegaconf import DictConfig, OmegaConf

    known = options(group)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"{group}={name} does not exist{meant}; available: {', '.join(known)}")
    files = (folder / group / f"{name}.yaml" for folder in folders())
    node = OmegaConf.load(next(file for file in files if file.is_file()))
    assert isinstance(node, DictConfig)
    # Yaml files of the same group; what other groups are to be (`override /encoder: ...`) is Hydra's business.
    bases = [base for base in node.pop("defaults", []) if isinstance(base, str) and base != "_self_"]
    plain = OmegaConf.to_container(OmegaConf.merge(*(_base(group, base) for base in bases), node), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _base(group: str, base: str) -> dict[str, Any]:
    """The option that a `defaults` entry names: `NAME`, or `NAME@KEY` to have it under that key."""
    name, _, key = base.partition("@")
    return {key: option(group, name)} if key else option(group, name)
