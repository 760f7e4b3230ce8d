"""Any convolution of torch_geometric as an encoder: `encoder=pyg encoder.conv=torch_geometric.nn.TransformerConv`."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch_geometric.nn
from torch_geometric.nn import MessagePassing

from graphopt.encoders.columns import EDGE_WIDTH
from graphopt.encoders.convolutions import ConvolutionEncoder, reads_edges
from graphopt.errors import ConfigError
from graphopt.utils.ranges import Layers, Share, Width

PACKAGE = "torch_geometric.nn"


class PyG(ConvolutionEncoder):
    """conv: name of a convolution in torch_geometric.nn, built as conv(width, width, **options). options: keyword
    arguments of its constructor. It has to keep the width, so give attention `concat: false`."""

    def __init__(self, *, name: str, width: Width, layers: Layers, dropout: Share, conv: str,
                 options: Mapping[str, Any], extra_width: int) -> None:  # fmt: skip
        self._class, self._options = convolution_named(conv), dict(options)
        super().__init__(name=name, width=width, layers=layers, dropout=dropout, extra_width=extra_width)

    def convolution(self) -> MessagePassing:
        edges = {"edge_dim": EDGE_WIDTH} if reads_edges(self._class) else {}
        try:
            made: MessagePassing = self._class(self.width, self.width, **edges, **self._options)
            kept = made(torch.zeros(2, self.width), torch.tensor([[0], [1]]), **_attributes(edges)).shape
        except (TypeError, ValueError, RuntimeError, AssertionError, AttributeError) as error:
            raise ConfigError(
                f"encoder.conv={self._class.__name__} cannot be built from two widths and encoder.options="
                f"{self._options} ({' '.join(str(error).split())[:160]}); give its keyword arguments in encoder.options"
            ) from None
        if kept != (2, self.width):
            raise ConfigError(
                f"encoder.conv={self._class.__name__} makes width {kept[-1]} of {self.width}; it has to keep "
                "the width, for example with +encoder.options.concat=false"
            )
        return made


def _attributes(edges: Mapping[str, int]) -> dict[str, torch.Tensor]:
    return {"edge_attr": torch.zeros(1, EDGE_WIDTH)} if edges else {}


def convolution_named(path: str) -> type[MessagePassing]:
    """The class. A checkpoint may name it too, so nothing is imported but torch_geometric.nn."""
    package, _, short = path.rpartition(".")
    found = getattr(torch_geometric.nn, short, None) if package in ("", PACKAGE) else None
    if not (inspect.isclass(found) and issubclass(found, MessagePassing)):
        raise ConfigError(f"encoder.conv={path} is no convolution of {PACKAGE}; give one, such as {PACKAGE}.GATv2Conv")
    return found
