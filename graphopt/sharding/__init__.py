"""Sharding instances as pairwise models: reduced, bounded, searched."""
