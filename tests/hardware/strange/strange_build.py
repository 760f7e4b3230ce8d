"""The build process, with other functions."""

import sys

from graphopt.hardware.measure import builds

builds.TASKS |= {"lower": ("strange_builds", "lower"), "compile": ("strange_builds", "compile")}
sys.exit(builds.main(sys.argv[1:]))
