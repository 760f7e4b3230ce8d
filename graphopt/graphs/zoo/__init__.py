"""Architectures from the papers, written in plain torch: each a function `(sizes) -> (module, example inputs)`.

Call them under `fake_mode()`: then neither weights nor inputs take memory. Every size has the published value, or a
small one, as default; `depth`, `layers`, `steps`, `segments`, `rounds`, `candidates` scale the number of ops, the
others the work.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from graphopt.graphs.zoo.convnets import (
    amoebanet,
    inception_v3,
    mnasnet,
    resnet18,
    resnext50,
    squeezenet,
    ssd_mobilenet,
    unet,
    wavenet,
)  # fmt: skip
from graphopt.graphs.zoo.sequences import (
    bert,
    dalle_mini,
    deep_rank,
    gnmt,
    graph_nets,
    rnnlm,
    transformer_transducer,
    transformer_xl,
    vit,
)  # fmt: skip

Model = Callable[..., tuple[nn.Module, tuple[Any, ...]]]

MODELS: tuple[Model, ...] = (
    rnnlm, gnmt, transformer_xl, inception_v3, amoebanet, wavenet,  # GO
    squeezenet, resnext50, bert, dalle_mini, transformer_transducer, vit, resnet18,  # X-RLflow
    graph_nets, unet, deep_rank, mnasnet, ssd_mobilenet,  # LAF
)  # fmt: skip
