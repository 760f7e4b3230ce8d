"""Figures of experiments that rewrite programs."""
