"""Rewriting as a game of steps: what a policy sees, what it may do, what that earns."""
