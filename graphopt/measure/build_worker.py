"""The process that builds (lowers, compiles), asked line by line (`serving`); started by `builds`.

A request is {"build": a name of `TASKS`, "given": what that function takes}; the answer is {"built": what it gives, as
JSON}.
"""

import importlib
import sys
from typing import Any

from graphopt.measure.environment import keep_off
from graphopt.measure.process import START_SECONDS
from graphopt.measure.serving import Request, Tell, serve

# Name -> module and function. Each takes a mapping and gives one, both plain JSON.
TASKS = {
    "lower": ("graphopt.inductor.building", "lower_request"),
    "compile": ("graphopt.inductor.building", "compile_request"),
}


def main(arguments: list[str]) -> int:
    keep_off()
    return serve(arguments, answer)


def answer(request: Request, tell: Tell) -> dict[str, Any]:
    """Imports what it needs with time to spare."""
    module, name = TASKS[request["build"]]
    if module not in sys.modules:
        tell(at=0, more=START_SECONDS)
    function = getattr(importlib.import_module(module), name)
    tell(at=0)
    return {"built": function(request["given"])}
