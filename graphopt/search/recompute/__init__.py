"""Searches for which activations the backward pass recomputes."""
