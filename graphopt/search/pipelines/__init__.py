"""Splits of pipelines into stages, for `max_load`."""
