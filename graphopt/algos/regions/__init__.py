"""Learners of which part of a problem to solve next."""
