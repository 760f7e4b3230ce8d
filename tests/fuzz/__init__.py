"""A fuzz harness: damaged inputs of every format that graphopt reads, and what became of each.

`python -m tests.fuzz --help` runs it; tests/fuzz/README.md says what the words mean. A format is a file in formats/.
"""

import sys
from pathlib import Path

for place in (Path(__file__).parent.parent, Path(__file__).parent.parent / "graphs"):
    if str(place) not in sys.path:  # as under pytest: tests share `commands` and `hostile_models`
        sys.path.append(str(place))
