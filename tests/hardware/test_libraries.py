"""`torch.compile(backend="graphopt")` on modules of other people's libraries: one training step with Inductor's bits.

Three of four come with `pip install 'graphopt[models]'`, which a test run does not need.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Program = tuple[nn.Module, tuple[Tensor, ...]]
ABSENT = "is not installed: pip install 'graphopt[models]'"


def torch_geometric() -> Program:
    from torch_geometric.nn import GATConv

    edges = torch.randint(0, 24, (2, 80), generator=torch.Generator().manual_seed(1))
    return GATConv(8, 4, heads=2), (torch.randn(24, 8), edges)


def transformers() -> Program:
    models: Any = pytest.importorskip("transformers", reason=f"transformers {ABSENT}")
    size = models.BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=64)
    size._attn_implementation = "eager"
    layer = models.models.bert.modeling_bert.BertLayer(size)
    return layer.eval(), (torch.randn(2, 16, 32),)


def timm() -> Program:
    models: Any = pytest.importorskip("timm", reason=f"timm {ABSENT}", exc_type=(ImportError, RuntimeError))
    return models.create_model("test_convnext").eval(), (torch.randn(1, 3, 64, 64),)


def monai() -> Program:
    networks: Any = pytest.importorskip("monai.networks.nets", reason=f"monai {ABSENT}")
    size = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "channels": (4, 8), "strides": (2,)}
    return networks.UNet(**size).eval(), (torch.randn(1, 1, 16, 16),)


def step(module: nn.Module, inputs: tuple[Tensor, ...], backend: str) -> list[Tensor]:
    """The output and the gradients."""
    torch._dynamo.reset()
    module.zero_grad()
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        made = torch.compile(module, backend=backend)(*inputs)
        out: Tensor = made[0] if isinstance(made, tuple) else made
        out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("make", [torch_geometric, transformers, timm, monai])
def test_a_step_has_the_bits_of_inductors(make: Callable[[], Program]) -> None:
    torch.manual_seed(0)
    module, inputs = make()
    usual, made = (step(module, inputs, backend) for backend in ("inductor", "graphopt"))
    assert len(usual) > 2
    assert all(torch.equal(a, b) for a, b in zip(usual, made, strict=True))
