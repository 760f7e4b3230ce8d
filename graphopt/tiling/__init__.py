"""Fusion into subgraphs with tile sizes: workloads, schedules, what they cost, and the contracts of their task."""
