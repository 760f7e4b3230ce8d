"""Tasks: what may be decided. Each turns decisions into plans."""

from graphopt.problems.task import AssignTask, Task

__all__ = ["AssignTask", "Task"]
