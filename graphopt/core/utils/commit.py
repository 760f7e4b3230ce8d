"""Which commit of the code is running: rows, decisions and collected samples say so."""

import functools
import subprocess
from pathlib import Path


@functools.cache
def commit() -> str | None:
    """The commit of the code, with a + when files differ from it; null outside a checkout."""
    root = Path(__file__).resolve().parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
