"""Runs a small study through accidents, until it is done; what it leaves is that of a run which nothing disturbed."""
