"""Functions of a build process that do what they are told."""

import os
import subprocess
import time
from typing import Any


def log(text: str) -> None:
    with open(os.environ["STRANGE_LOG"], "a") as file:
        file.write(f"{text}\n")


def lower(given: dict[str, Any]) -> dict[str, Any]:
    """spin: the code that this request leads to; equal ones are equal code."""
    log(f"lower {given['spin']}")
    if given.get("does") == "crash":
        os.abort()
    if given.get("does") == "compiler":
        log(f"started {subprocess.Popen(['sleep', '3600']).pid}")
    if given.get("does") in ("hang", "compiler"):
        time.sleep(3600)
    if given.get("does") == "fail":
        raise ValueError("cannot be lowered")
    return {"digest": f"code {given['spin']}", "spin": given["spin"], "bytes": given["spin"] * 8,
            "compiles": given.get("compiles", True)}  # fmt: skip


def compile(given: dict[str, Any]) -> dict[str, Any]:
    log(f"compile {given['spin']}")
    if not given["compiles"]:
        raise ValueError("g++ refuses it")
    return {"seconds": 0.0}
