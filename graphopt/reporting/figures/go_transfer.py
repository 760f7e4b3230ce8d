"""GO on unseen families: as it is, fine-tuned inside the budget, and trained from scratch on the graph at hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, priced

PAIRS = {
    "fine_tuned_over_scratch": ("fine_tuned", "from_scratch"), "fine_tuned_over_zero_shot": ("fine_tuned", "go"),
    "search_over_fine_tuned": ("joint_search", "fine_tuned"),
}  # fmt: skip


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """In percent, paired, families counted once: `go_over_default/BUDGET`, and at the largest budget
    `fine_tuned_over_scratch`, `fine_tuned_over_zero_shot` (the same budget spent on search alone),
    `search_over_fine_tuned`."""
    family = {row["graph"]: row["family"] for row in rows}
    default = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    budgets = sorted({row["evals_cap"] for row in rows})
    found = [
        figure for budget in budgets
        for figure in gain(f"go_over_default/{budget}", priced(rows, "go", budget), default, family)
    ]  # fmt: skip
    for name, (one, other) in PAIRS.items():
        found += gain(name, priced(rows, one, budgets[-1]), priced(rows, other, budgets[-1]), family)
    return found
