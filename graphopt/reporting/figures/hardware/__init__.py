"""Headline figures of what was run for real."""
