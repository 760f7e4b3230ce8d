"""What a policy of fusion gains, against how many graphs it was trained on."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.go_far import peer
from graphopt.reporting.figures.over_families import gain, priced

TRAINED = {
    "": "kernels_",
    "motif_policy_": "trained_",
}  # beginning of a figure's name: of an algorithm's; then a number


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """`gain_against_training_graphs/N`: percent over motif scan at 20 evaluations; `.../N/BUDGET`: at others, at 0 over
    the best rule of each graph; of `kernel_model`, and beginning with its name of `motif_policy`. Paired, families
    counted once."""
    family = {row["graph"]: row["family"] for row in rows}
    budgets, found = sorted({row["evals_cap"] for row in rows}), []
    for policy, trained in TRAINED.items():
        sizes = sorted({int(row["algo"].removeprefix(trained)) for row in rows if row["algo"].startswith(trained)})
        for size, budget in product(sizes, budgets):
            name = f"{policy}gain_against_training_graphs/{size}" + ("" if budget == 20 else f"/{budget}")
            found += gain(name, priced(rows, f"{trained}{size}", budget), peer(rows, budget), family)
    return found
