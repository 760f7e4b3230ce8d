"""Searches among equivalent programs."""
