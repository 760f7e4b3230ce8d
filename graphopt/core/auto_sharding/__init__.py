"""Choices of strategies: tables of what they cost, and an oracle that prices them anew."""
