"""`python -m tests.kills --kills 20`: runs that are killed or whose disk is full, and begun again."""

import sys

from .accidents import main

sys.exit(main(sys.argv[1:]))
