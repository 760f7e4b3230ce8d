"""Headline figures of stored experiments, a file for each: `python -m graphopt.report results/NAME --figures`."""
