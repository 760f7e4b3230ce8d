"""Data sets of public contests, and drawn ones of the same kind."""
