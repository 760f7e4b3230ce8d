"""Schedules of subgraphs with tiles: merging, dynamic programming, a walk over groupings, an exact search."""
