"""Models of timm and transformers at sizes of one's own: small enough to be run, activations outweighing weights."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from graphopt.library.no_torchvision import without_torchvision
from graphopt.library.weightless import weightless

Built = tuple[Any, dict[str, Any]]


def sized_timm(model: str, batch: int, size: int, settings: Mapping[str, Any], *, weights: bool = False) -> Built:
    """(module, arguments): pictures [batch, 3, size, size]. settings: arguments of the architecture. weights: whether
    it has some, random ones."""
    without_torchvision()
    import timm

    with nullcontext() if weights else weightless():
        module = timm.create_model(model, **settings)
    return module, {"x": torch.zeros(batch, 3, size, size)}


def sized_transformers(
    model: str, batch: int, size: int, settings: Mapping[str, Any], *, weights: bool = False
) -> Built:
    """The same of a type of model: tokens [batch, size], which the decoder of a pair gets too; pictures [batch, 3,
    size, size] where the model asks for them. settings: fields of its configuration."""
    without_torchvision()
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(model, **settings)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with nullcontext() if weights else weightless():
        module = AutoModel.from_config(config, dtype=torch.float32)
    if getattr(module, "main_input_name", "") == "pixel_values":
        return module, {"pixel_values": torch.zeros(batch, 3, size, size)}
    tokens = {"input_ids": torch.zeros(batch, size, dtype=torch.long)}
    both = {"decoder_input_ids": tokens["input_ids"]} if getattr(config, "is_encoder_decoder", False) else {}
    return module, tokens | both


def sized_and_random(source: str, model: str, batch: int, size: int, settings: Mapping[str, Any]) -> Built:
    """The same with random weights and inputs, as it is trained, but for dropout: results are the same every time."""
    module, arguments = SIZED[source](model, batch, size, settings, weights=True)
    module.eval()
    for part in module.modules():
        part.training = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
    made = {name: torch.randint(0, 100, t.shape) if t.dtype is torch.long else torch.randn(t.shape)
            for name, t in arguments.items()}  # fmt: skip
    return module, made


SIZED = {"timm": sized_timm, "transformers": sized_transformers}
