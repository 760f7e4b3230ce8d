"""Configurations that were composed before. Composing one takes Hydra longer than everything else about a cell that is
finished, so the cache folder keeps those of finished cells:

    composed/DIGEST.json   {"digest": of the configuration, "config": resolved, plain}

The name is a digest of the job's words and of all yaml files. Whether the cell is finished is found out as ever.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from graphopt import CONF, OWN_OPTIONS, cache_dir
from graphopt.core.errors import Unreadable


def sources_of(hydra: Any) -> list[str]:
    """The places that Hydra composes from, and the file it begins with."""
    return [
        str(hydra.job.config_name),
        *(f"{source.provider} {source.path}" for source in hydra.runtime.config_sources),
    ]


COMPOSED_BYTES = 4 * 2**20
OTHER_INPUTS = (b"${oc.", b"${now:")  # resolvers by which a value depends on more than words and files


def find_composed(words: Sequence[str], sources: Sequence[str]) -> dict[str, Any] | None:
    """The configuration of a job, if it is known. words: its overrides. sources: places of yaml files, in order."""
    from graphopt.core.utils.limits import read_json  # which loads numpy: the command's help needs none

    path = _composed_file(words, sources)
    if path is None:
        return None
    try:
        said = read_json(path, COMPOSED_BYTES)
    except Unreadable:
        return None
    config = said.get("config") if isinstance(said, dict) else None
    return config if isinstance(config, dict) and said.get("digest") == _digest(config) else None


def keep_composed(words: Sequence[str], sources: Sequence[str], config: Any) -> None:
    """Where the cache folder cannot be written, the next call composes again."""
    from graphopt.core.utils.whole import whole_file

    path = _composed_file(words, sources)
    if path is None or (path.exists() and find_composed(words, sources) == config):
        return
    with suppress(OSError, TypeError, ValueError):  # or a value that JSON does not know
        text = json.dumps({"digest": _digest(config), "config": config})
        with whole_file(path) as file:
            file.write(text.encode())


def _composed_file(words: Sequence[str], sources: Sequence[str]) -> Path | None:
    """None where the configuration depends on more than words and files."""
    files = _digest_of_options(os.environ.get(OWN_OPTIONS))
    if files is None or any("${" in word for word in words):
        return None
    return cache_dir() / "composed" / f"{_digest([list(words), list(sources), files])[:32]}.json"


@cache
def _digest_of_options(own: str | None) -> str | None:
    """Digest of all yaml files and of who composes them."""
    digest = hashlib.sha256("".join(version(name) for name in ("hydra-core", "omegaconf")).encode())
    for place in (CONF, *([Path(own)] if own else [])):
        for file in sorted(place.rglob("*.yaml")):
            text = file.read_bytes()
            asked = text.replace(f"${{oc.env:{OWN_OPTIONS},".encode(), b"")  # that folder is read here
            if any(other in asked for other in OTHER_INPUTS):
                return None
            digest.update(str(file).encode() + b"\0" + text + b"\0")
    return digest.hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
