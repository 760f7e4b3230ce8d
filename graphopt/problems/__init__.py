"""Tasks, cost models, problems, answers, solvers."""
