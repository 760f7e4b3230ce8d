"""What build processes do with programs (`measure.build_worker`): requests and answers are plain JSON."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from torch._inductor.codecache import PyCodeCache

from graphopt.inductor.hooks import Request
from graphopt.inductor.lowering import lower
from graphopt.readers.pytorch.program_file import FxProgram, load_program

HELD = 4  # programs


@lru_cache(maxsize=HELD)
def _program(path: str) -> FxProgram:
    return load_program(path)


def lower_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """given: `program`, path of its file; `requests`, node -> store, inline or cut; `knobs`, name -> which value. The
    answer: `digest`, `features`, and the path `source` of the module, not compiled yet. Raises GraphError."""
    requests = {name: Request(word) for name, word in given["requests"].items()}
    lowered = lower(_program(given["program"]), requests, given["knobs"])
    key, path = PyCodeCache.write(lowered.source)
    return {"digest": lowered.digest, "features": lowered.features, "key": key, "source": path,
            "stored": sorted(lowered.stored), "seconds": lowered.seconds, "program": given["program"]}  # fmt: skip


def compile_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """given: what `lower_request` answered. Any process can load the module from now on at no great cost."""
    PyCodeCache.load_by_key_path(given["key"], given["source"], set_sys_modules=False)
    return {"source": given["source"]}
