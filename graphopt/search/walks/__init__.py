"""Walks over single changes, on decisions and on random keys."""
