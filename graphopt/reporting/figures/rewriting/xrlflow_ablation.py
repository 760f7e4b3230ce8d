"""`xrlflow_ablation`: X-RLflow, a policy per model, against itself with one part changed."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, priced

WHOLE = "per_model"
PARTS = {"untaught": "learning", "additive_reward": "measured_reward", "one_layer": "attention",
         "papers_nodes": "sizes", "few_slots": "slots", "no_prior": "prior", "no_sweeps": "sweeps",
         "no_opening": "opening"}  # fmt: skip
WITH = ("every_step", "at_the_end", "flat_head", "small_value")

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired, models counted once, intervals over models and seeds: `over_original`; `worth_of/PART`,
    as it is over itself without a part; `every_step` and others, itself changed over as it is."""
    evals = max((row["evals_cap"] for row in rows), default=0)
    family = {row["graph"]: row["family"] for row in rows}
    original = {(row["graph"], row["seed"]): float(row["initial"]) for row in rows}
    whole = priced(rows, WHOLE, evals)
    found = gain("over_original", whole, original, family)
    for algo, part in PARTS.items():
        found += gain(f"worth_of/{part}", whole, priced(rows, algo, evals), family)
    for algo in WITH:
        found += gain(algo, priced(rows, algo, evals), whole, family)
    return found
