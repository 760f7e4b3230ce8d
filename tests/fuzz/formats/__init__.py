"""The formats, by name. A file here makes inputs of one family and reads them as the command line does."""

from ..judge import Format
from .graphs import GRAPHS

FORMATS: dict[str, Format] = {form.name: form for form in (*GRAPHS,)}
