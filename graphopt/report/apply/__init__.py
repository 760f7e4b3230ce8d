"""What applies answers to the user's own model."""
