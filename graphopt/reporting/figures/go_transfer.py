"""GO and the learned model of runs on unseen families: as they are, fine-tuned inside the budget, and trained from
scratch on the graph at hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, priced

PAIRS = {
    "fine_tuned_over_scratch": ("fine_tuned", "from_scratch"), "fine_tuned_over_zero_shot": ("fine_tuned", "go"),
    "search_over_fine_tuned": ("joint_search", "fine_tuned"),
    "model_tuned_over_scratch": ("model_tuned", "model_from_scratch"),
    "model_tuned_over_zero_shot": ("model_tuned", "model"), "model_tuned_over_search": ("model_tuned", "joint_search"),
}  # fmt: skip


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """In percent, paired, families counted once: `go_over_default/BUDGET`, `model_over_default/BUDGET`, and at the
    largest budget `fine_tuned_over_scratch`, `fine_tuned_over_zero_shot` (the same budget spent on search alone),
    `search_over_fine_tuned`, and the same of `run_model`, `model_tuned_over_...`."""
    family = {row["graph"]: row["family"] for row in rows}
    default = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    budgets = sorted({row["evals_cap"] for row in rows})
    found = [
        figure for budget in budgets for name in ("go", "model")
        for figure in gain(f"{name}_over_default/{budget}", priced(rows, name, budget), default, family)
    ]  # fmt: skip
    for name, (one, other) in PAIRS.items():
        found += gain(name, priced(rows, one, budgets[-1]), priced(rows, other, budgets[-1]), family)
    return found
