"""Searches, heuristics and solvers."""
