"""A program out of an e-graph."""
