"""Rewriting as a game of steps: observations, actions and rewards of a policy."""
