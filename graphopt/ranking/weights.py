"""Files of fitted costs (`CodeTime`), with a card that says what they were fitted to. JSON: data and nothing else."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt import cache_dir
from graphopt.errors import Unreadable, UserError, writing
from graphopt.ranking.code_time import CodeTime
from graphopt.utils.limits import MIB, read_json
from graphopt.utils.whole import whole_file

FORMAT = "graphopt code time 1"
SHIPPED, SHIPPED_FILE = "shipped", Path(__file__).parents[1] / "pretrained" / "code_time.json"
MOST_FEATURES = 10_000


@dataclass(frozen=True)
class Weights:
    """card: machine, versions, graphs, plans, and what else is known of how they came about."""

    model: CodeTime
    card: Mapping[str, Any]


def weights_file(said: str | None) -> Path:
    """`shipped`: what comes with graphopt; null: the user's own; else a file."""
    if said == SHIPPED:
        return SHIPPED_FILE
    return cache_dir() / "measured" / "code_time.json" if said is None else Path(said)


def load_weights(path: Path) -> Weights:
    """Raises UserError where there are none, Unreadable where the file holds something else."""
    if not path.is_file():
        raise UserError(f"there are no fitted costs at {path}: measure plans with experiment=calibration, then fit "
                        "them with `graphopt measure learn_cost`, or set weights=shipped")  # fmt: skip
    said = read_json(path, MIB)
    if not isinstance(said, dict) or said.get("format") != FORMAT or not isinstance(said.get("card"), dict):
        raise Unreadable(f"{path} holds no fitted costs ({FORMAT})")
    seconds = said.get("seconds")
    if not isinstance(seconds, dict) or len(seconds) > MOST_FEATURES or not all(map(_is_cost, seconds.values())):
        raise Unreadable(f"{path}: its costs are no positive numbers of seconds")
    return Weights(CodeTime({name: float(cost) for name, cost in seconds.items()}), said["card"])


def save_weights(path: Path, weights: Weights) -> None:
    """Raises UserError where it cannot be written."""
    said = {"format": FORMAT, "card": dict(weights.card), "seconds": dict(sorted(weights.model.seconds.items()))}
    with writing(path), whole_file(path) as file:
        file.write(json.dumps(said, indent=1).encode() + b"\n")


def _is_cost(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1 and math.isfinite(value)
