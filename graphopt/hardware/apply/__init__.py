"""Decisions carried out in the user's own program: an execution order, or answers to torch while it compiles."""
