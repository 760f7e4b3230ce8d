"""The timing process, with one kind of target more."""

import sys

from graphopt.hardware.measure import timing_worker

timing_worker.KINDS["strange"] = ("strange_kind", "load")
sys.exit(timing_worker.main(sys.argv[1:]))
