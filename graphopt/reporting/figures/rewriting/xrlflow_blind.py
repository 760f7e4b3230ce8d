"""`xrlflow_blind`: the same policies as in `xrlflow_one_policy`, on networks by which nothing was chosen."""

from graphopt.reporting.figures.rewriting.xrlflow_one_policy import figures

__all__ = ["figures"]
