"""Kinds of timed targets: loaded by measuring processes only, by the table in `measure.timing_worker`."""
