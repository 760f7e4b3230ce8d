"""What a policy of fusion gains, against how many graphs it was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.go_far import peer
from graphopt.reporting.figures.over_families import gain, priced

TRAINED = "trained_"  # and the number of graphs


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """`gain_against_training_graphs/N`: percent over motif scan at 20 evaluations; `.../N/BUDGET`: at others, at 0 over
    the best rule of each graph. Paired, families counted once."""
    family = {row["graph"]: row["family"] for row in rows}
    sizes = sorted({int(row["algo"].removeprefix(TRAINED)) for row in rows if row["algo"].startswith(TRAINED)})
    budgets = sorted({row["evals_cap"] for row in rows})
    found = []
    for size in sizes:
        for budget in budgets:
            name = f"gain_against_training_graphs/{size}" + ("" if budget == 20 else f"/{budget}")
            found += gain(name, priced(rows, f"{TRAINED}{size}", budget), peer(rows, budget), family)
    return found
