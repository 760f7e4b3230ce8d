"""Exact methods: constraint programming, dynamic programming."""
