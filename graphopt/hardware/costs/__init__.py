"""Costs that compile, run and measure."""
