"""The formats, by name. A file here makes inputs of one family and reads them as the command line does."""

from ..judge import Format
from .answers import ANSWERS
from .checkpoints import CHECKPOINTS
from .configs import CONFIGS
from .graphs import GRAPHS
from .onnx_models import ONNX
from .onnx_operators import ONNX_OPERATORS
from .packs import PACKS
from .program_operators import PROGRAM_OPERATORS
from .programs import PROGRAMS
from .rules import RULES
from .tables import TABLES

_ALL = (*GRAPHS, *ONNX, *ONNX_OPERATORS, *ANSWERS, *PACKS, *CHECKPOINTS, *RULES, *TABLES, *PROGRAMS,
        *PROGRAM_OPERATORS, *CONFIGS)  # fmt: skip
FORMATS: dict[str, Format] = {form.name: form for form in _ALL}
