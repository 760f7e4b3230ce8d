"""A fuzz harness: damaged inputs of every format that graphopt reads, and what became of each.

`python -m tests.fuzz --help` runs it; docs/robustness.md says what the words mean. A format is a file in formats/.
"""
