"""Headline figures of stored experiments, a file for each: `graphopt report results/NAME --figures`."""
