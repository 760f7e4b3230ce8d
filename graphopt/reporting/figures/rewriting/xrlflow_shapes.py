"""`xrlflow_shapes`: a policy taught on one shape of a model, on other shapes, against the same policy untaught."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, priced

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, shapes counted once, intervals over shapes and seeds: `over_original/{taught,untaught}`, how
    much faster answers are than the originals; `taught_over_untaught`."""
    evals = max((row["evals_cap"] for row in rows), default=0)
    shape = {row["graph"]: row["graph"] for row in rows}
    original = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    taught, untaught = (priced(rows, algo, evals) for algo in ("taught", "untaught"))
    return [
        *gain("over_original/taught", taught, original, shape),
        *gain("over_original/untaught", untaught, original, shape),
        *gain("taught_over_untaught", taught, untaught, shape),
    ]
