"""Application of answers to the user's own model."""
