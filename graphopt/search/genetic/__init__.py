"""BRKGA and its variants."""
