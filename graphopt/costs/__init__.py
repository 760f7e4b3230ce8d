"""Simulated costs."""
