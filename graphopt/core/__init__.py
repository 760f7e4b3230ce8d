"""Graphs, machines, plans; files from outside, limits, errors."""
