"""A run: configuration, cell, training, evaluation, records."""
