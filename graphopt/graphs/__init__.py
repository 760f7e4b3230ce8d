"""Readers and data sets of graphs."""
