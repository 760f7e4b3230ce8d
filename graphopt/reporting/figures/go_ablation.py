"""What each part of GO is worth: GO as it is by default against itself with one part changed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, priced

WITHOUT = ("superposition", "attention")  # algorithms called no_PART
OTHERS = {"one_iteration": "iterations", "network_off": "message_passing", "untrained": "training"}
WITH = ("recurrent", "one_alone")  # off by default

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired, families counted once, at each BUDGET: `worth_of/PART/BUDGET`, GO over GO without a part;
    `worth_of/{recurrent,one_alone}/BUDGET`, GO with it over GO; `go_over_default/BUDGET`."""
    family = {row["graph"]: row["family"] for row in rows}
    pairs = {part: ("go", f"no_{part}") for part in WITHOUT}
    pairs |= {part: ("go", algo) for algo, part in OTHERS.items()} | {part: (part, "go") for part in WITH}
    return [figure for budget in sorted({row["evals_cap"] for row in rows})
            for figure in _at(rows, family, pairs, budget)]  # fmt: skip


def _at(rows: Sequence[Row], family: Mapping[str, str], pairs: Mapping[str, tuple[str, str]],
        budget: int) -> Iterator[Figure]:  # fmt: skip
    default = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    yield from gain(f"go_over_default/{budget}", priced(rows, "go", budget), default, family)
    for part, (one, other) in pairs.items():
        yield from gain(f"worth_of/{part}/{budget}", priced(rows, one, budget), priced(rows, other, budget), family)
