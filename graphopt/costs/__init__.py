"""Cost models: what a plan costs."""

from graphopt.problems.cost_model import CostModel, Flips, Prices

__all__ = ["CostModel", "Flips", "Prices"]
