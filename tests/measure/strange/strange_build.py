"""The build process, with other functions."""

import sys

from graphopt.measure import build_worker

build_worker.TASKS |= {"lower": ("strange_builds", "lower"), "compile": ("strange_builds", "compile")}
sys.exit(build_worker.main(sys.argv[1:]))
