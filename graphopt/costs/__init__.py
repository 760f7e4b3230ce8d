"""Cost models: what a plan costs."""

from graphopt.costs.base import CostModel, Flips, Prices

__all__ = ["CostModel", "Flips", "Prices"]
