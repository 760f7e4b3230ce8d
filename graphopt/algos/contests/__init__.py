"""Learners of the two contests: which region of a sharding, or which move of a tiling, to look at next."""
