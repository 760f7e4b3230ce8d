"""Placement: learners that GO was published beside, which learn while they solve, and policies taught by long
searches."""
