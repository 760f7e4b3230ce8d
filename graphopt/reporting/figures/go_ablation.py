"""What each part of GO is worth: GO with the paper's attention, superposition and iterations against itself with one
part changed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, priced

WITHOUT = ("superposition", "attention")  # algorithms called no_PART
OTHERS = {
    "one_iteration": "iterations",
    "plain": "all_three",
    "network_off": "message_passing",
    "untrained": "training",
}
WITH = ("recurrent", "one_alone")  # off by default

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired, families counted once, of each TASK at each BUDGET: `worth_of/PART/TASK/BUDGET`, GO over GO
    without a part, or without attention, superposition and iterations (`all_three`);
    `worth_of/{recurrent,one_alone}/TASK/BUDGET`, GO with it over GO; `go_over_default/TASK/BUDGET`."""
    pairs = {part: ("go", f"no_{part}") for part in WITHOUT}
    pairs |= {part: ("go", algo) for algo, part in OTHERS.items()} | {part: (part, "go") for part in WITH}
    settings = sorted({(str(row["task"]), row["evals_cap"]) for row in rows})
    found: list[Figure] = []
    for task, budget in settings:
        found += _at([row for row in rows if row["task"] == task], pairs, budget, f"{task}/{budget}")
    return found


def _at(rows: Sequence[Row], pairs: Mapping[str, tuple[str, str]], budget: int, where: str) -> Iterator[Figure]:
    family = {row["graph"]: row["family"] for row in rows}
    default = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    yield from gain(f"go_over_default/{where}", priced(rows, "go", budget), default, family)
    for part, (one, other) in pairs.items():
        yield from gain(f"worth_of/{part}/{where}", priced(rows, one, budget), priced(rows, other, budget), family)
