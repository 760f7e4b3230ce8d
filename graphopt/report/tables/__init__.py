"""Rows to lines of tables."""
