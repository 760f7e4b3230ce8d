"""Hydra's sweeper, without the jobs whose cells are finished: they are passed over before they are composed.

An experiment may have algorithms of its own: `hydra.sweeper.algos` says of each name which words make it of an option.

Composing a configuration takes Hydra longer than everything else about a cell that is finished. So the cache folder
keeps those of finished cells as composed/DIGEST.json, {"digest": of the configuration, "config": resolved, plain}. The
name is a digest of the job's words and of all yaml files. Whether the cell is finished is found out as ever.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.errors import ConfigCompositionException

from graphopt import CONF, OWN_OPTIONS, cache_dir
from graphopt.core.errors import Unreadable, UserError
from graphopt.core.utils.terminal import say


class ResumingSweeper(BasicSweeper):
    """As Hydra's own in all else. algos: name -> words, the first of them `algo=OPTION`."""

    def __init__(
        self, max_batch_size: int | None, params: Mapping[str, str] | None, algos: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__(max_batch_size, dict(params or {}))
        self.algos = algos

    def split_arguments(self, overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:  # type: ignore[override]
        assert self.config is not None
        sources = sources_of(self.config.hydra)
        batches = BasicSweeper.split_arguments(overrides, max_batch_size)
        spelled = [[spelled_out(job, self.algos) for job in batch] for batch in batches]
        left = [[job for job in batch if not _finished(job, sources)] for batch in spelled]
        return [batch for batch in left if batch]

    def validate_batch_is_legal(self, batch: Any) -> None:
        """A key that only some jobs lack is no end of the sweep: it is handed on (`+`), and their cells refuse it."""
        assert self.hydra_context is not None and self.config is not None
        loader, errors = self.hydra_context.config_loader, dict[int, ConfigCompositionException]()
        for place, job in enumerate(batch):
            words = list(job)
            while True:
                try:
                    loader.load_sweep_config(self.config, words)
                    break
                except ConfigCompositionException as error:
                    errors.setdefault(place, error)
                    given = [_appended(word, str(error)) for word in words]
                    if given == words or len(errors) == len(batch):
                        raise errors[place] from None
                    words = given
            batch[place] = words


def spelled_out(job: list[str], algos: Mapping[str, Sequence[str]]) -> list[str]:
    """The job's words with an experiment's own algorithm in words of options; what comes later counts, as ever."""
    found: list[str] = []
    for word in job:
        name = word.removeprefix("algo=")
        found += [*algos[name], f"algo.name={name}"] if word != name and name in algos else [word]
    return found


def _appended(word: str, error: str) -> str:
    """The word as one that adds a key, where the error says that this one cannot be overridden."""
    found = re.search(r"Could not override '([^']+)'", error)
    return f"+{word}" if found and word.partition("=")[0] == found.group(1) else word


def _finished(job: list[str], sources: list[str]) -> bool:
    """Whether the job has nothing to do; says so."""
    from graphopt.run.cell import Cell

    config = find_composed(job, sources)
    try:
        cell = None if config is None else Cell(config)
        if cell is None or not (cell.settings.resume and cell.finished):
            return False
    except UserError:
        return False
    say(cell.finished_line)
    return True


def sources_of(hydra: Any) -> list[str]:
    """The places that Hydra composes from, and the file it begins with."""
    return [
        str(hydra.job.config_name),
        *(f"{source.provider} {source.path}" for source in hydra.runtime.config_sources),
    ]


COMPOSED_BYTES = 4 * 2**20
OTHER_INPUTS = (b"${oc.", b"${now:")  # what a value may depend on besides words and files


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
            if any(other in text for other in OTHER_INPUTS):
                return None
            digest.update(str(file).encode() + b"\0" + text + b"\0")
    return digest.hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
