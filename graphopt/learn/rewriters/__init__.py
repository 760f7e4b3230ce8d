"""Policies over rewrites."""
