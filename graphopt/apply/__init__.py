"""Decisions acted on in the user's own program."""
