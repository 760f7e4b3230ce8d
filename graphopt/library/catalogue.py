"""The catalogue: every model that is captured, where it comes from, and how it is called.

A library's module has `PACKAGE`, `LICENCE` and `SOURCE`, `entries()` (names and families, which builds nothing) and
`build(entry)`, which makes the module on torch's meta device, without weights, and says how it may be called.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

LIBRARIES = (
    *("transformers", "timm", "diffusers", "monai", "vit_pytorch", "x_transformers", "segmentation", "torch_geometric"),
)


@dataclass(frozen=True)
class LibraryModel:
    """One graph to capture."""

    library: str
    model: str  # as its library calls it
    family: str  # models of one family differ in sizes
    size: str = "full"  # small: few layers, where the library's configuration says how many there are
    backward: bool = False

    @property
    def name(self) -> str:
        """What the graph is called: `timm/beit_base_patch16_224`, `transformers/bert-small+backward`."""
        size = "-small" if self.size == "small" else ""
        return f"{self.library}/{self.model}{size}{'+backward' if self.backward else ''}"

    def pick(self, *values: int) -> int:
        """One of some values, always the same for this model: sizes of batches and sequences vary over models."""
        return values[zlib.crc32(f"{self.library}/{self.model}/{self.size}".encode()) % len(values)]


class Library(Protocol):
    """What a library's module offers."""

    PACKAGE: str
    LICENCE: str
    SOURCE: str

    def entries(self) -> Iterator[LibraryModel]:
        """All that is to be captured."""

    def build(self, entry: LibraryModel) -> tuple[Any, list[Any]]:
        """(module, calls to try one after another: arguments as `graphopt.readers.pytorch.arguments` reads them)."""


def library(name: str) -> Library:
    """The module of one of LIBRARIES; it imports the library only when it is asked something."""
    found: Any = import_module(f"graphopt.library.from_{name}")
    return found  # type: ignore[no-any-return]
