"""A fuzz harness: damaged inputs of every format that graphopt reads, and what became of each.

`python -m tests.fuzz --help` runs it; docs/robustness.md says what the words mean. A format is a file in formats/.
"""

import sys
from pathlib import Path

if str(Path(__file__).parent.parent) not in sys.path:  # as under pytest: tests share `commands`
    sys.path.append(str(Path(__file__).parent.parent))
