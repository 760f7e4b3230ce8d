"""Choices of strategies: tables of their costs, and an oracle that computes these again."""
