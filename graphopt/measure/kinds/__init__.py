"""What can be timed, a file per kind: loaded by measuring processes only, by the table in `measure.timing_worker`."""
