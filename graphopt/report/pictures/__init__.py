"""Curves, graphs, timelines."""
