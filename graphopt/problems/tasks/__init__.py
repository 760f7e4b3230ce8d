"""Tasks: kinds of decisions. Each turns decisions into plans."""

from graphopt.problems.assignment import AssignTask
from graphopt.problems.problem import Task

__all__ = ["AssignTask", "Task"]
