"""Searches for strategies of sharding instances."""
