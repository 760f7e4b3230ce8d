"""Decisions acted on in the user's own program: an execution order, or what torch asks while it compiles."""
