"""Readers of GraphNet's samples: torch programs as Python text."""
