"""ONNX models of the user, and the nine CNNs inside the `onnx` package."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import onnx

from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import Count, UserPath
from graphopt.graphs.files import FileDataset, find_files
from graphopt.graphs.readers.onnx.reader import read_onnx

LIGHT_FAMILIES: dict[str, str] = {
    "light_bvlc_alexnet": "alexnet",
    "light_densenet121": "densenet",
    "light_inception_v1": "inception",
    "light_inception_v2": "inception",
    "light_resnet50": "resnet",
    "light_shufflenet": "shufflenet",
    "light_squeezenet": "squeezenet",
    "light_vgg19": "vgg",
    "light_zfnet512": "zfnet",
}
"""The nine real CNNs inside the `onnx` package, with their architecture family."""


class OnnxFiles(FileDataset):
    """ONNX models: a file, a folder or a pattern; without a path the nine CNNs inside the `onnx` package.

    dims fixes open dimensions by name, e.g. {batch: 1}. train and val: patterns of model names for those splits; all
    other models are test graphs.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"onnx_program", "terms"})

    def __init__(
        self, *, name: str, path: UserPath, dims: Mapping[str, Count], train: list[str], val: list[str]
    ) -> None:
        super().__init__(name, train, val)
        self._path, self._dims = path, dict(dims)
        wrong = {label: size for label, size in self._dims.items() if not isinstance(size, int) or size < 1}
        if wrong:
            raise GraphError(f"dataset.dims must map names to positive whole numbers, not {wrong}")

    def extent(self) -> int | None:
        return 1000 * len(LIGHT_FAMILIES) if self._path is None else None

    def files(self) -> list[Path]:
        if self._path is None:
            return [_light_path(name) for name in LIGHT_FAMILIES]
        return find_files(self._path, ("*.onnx",))

    def read(self, file: Path) -> Graph:
        return read_onnx(file, family=LIGHT_FAMILIES.get(file.stem), dims=self._dims)


def load_light(name: str) -> Graph:
    """One of the nine CNNs inside the `onnx` package, e.g. `light_squeezenet`."""
    if name not in LIGHT_FAMILIES:
        raise GraphError(f"no light model {name!r}; there are {', '.join(LIGHT_FAMILIES)}")
    return read_onnx(_light_path(name), family=LIGHT_FAMILIES[name])


def _light_path(name: str) -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx"
