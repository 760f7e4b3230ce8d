"""The words of a sweep's jobs, and the places that they are composed from."""

from collections.abc import Mapping, Sequence
from typing import Any


def spelled_out(job: list[str], algos: Mapping[str, Sequence[str]]) -> list[str]:
    """The job's words with an experiment's own algorithm in words of options; what comes later counts, as ever."""
    found: list[str] = []
    for word in job:
        name = word.removeprefix("algo=")
        found += [*algos[name], f"algo.name={name}"] if word != name and name in algos else [word]
    return found


def sources_of(hydra: Any) -> list[str]:
    """The places that Hydra composes from, and the file it begins with."""
    return [
        str(hydra.job.config_name),
        *(f"{source.provider} {source.path}" for source in hydra.runtime.config_sources),
    ]
