"""The formats, by name. A file here makes inputs of one family and reads them as the command line does."""

from ..judge import Format
from .answers import ANSWERS, PACKS
from .checkpoints import CHECKPOINTS
from .configs import CONFIGS
from .graphnet import GRAPHNET
from .graphs import GRAPHS
from .onnx_models import ONNX, ONNX_OPERATORS
from .programs import PROGRAM_OPERATORS, PROGRAMS
from .rules import RULES
from .tables import TABLES
from .xla_programs import XLA

_ALL = (*GRAPHS, *ONNX, *ONNX_OPERATORS, *ANSWERS, *PACKS, *CHECKPOINTS, *RULES, *TABLES, *PROGRAMS,
        *PROGRAM_OPERATORS, *CONFIGS, *GRAPHNET, *XLA)  # fmt: skip
FORMATS: dict[str, Format] = {form.name: form for form in _ALL}
