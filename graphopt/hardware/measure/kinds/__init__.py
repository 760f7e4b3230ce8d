"""What can be timed: loaded by measuring processes only, by the table in `measure.timing_worker`."""
