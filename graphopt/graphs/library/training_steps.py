"""Training steps of well-known models on random data, small enough for one core: factories for `dataset.module`.
Activations, not weights, take most of the memory, as in training at scale.

Each returns (module whose result is its loss, its inputs). The packages are not dependencies: install transformers,
timm or monai to use them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphopt.graphs.library.packages import without_torchvision

Step = tuple[nn.Module, list[Tensor]]
WORDS, TOKENS, CLASSES = 1000, 256, 100


class WithLoss(nn.Module):
    """A model and the cross-entropy of the logits that `read` takes from its result; the last input is the target."""

    def __init__(self, model: nn.Module, read: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.read = model, read

    def forward(self, given: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self.read(self.model(given)), target)


def gpt2() -> Step:
    """8 blocks of width 256, 4 sequences of 256 tokens, no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_positions=TOKENS, n_embd=256, n_layer=8, n_head=4, use_cache=False,
                        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)  # fmt: skip
    return _text(GPT2LMHeadModel(config))


def bert() -> Step:
    """8 layers of width 256, 4 sequences of 256 tokens. Dropout is 0.1 outside attention."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=WORDS, hidden_size=256, num_hidden_layers=8, num_attention_heads=4,
                        intermediate_size=1024, max_position_embeddings=TOKENS,
                        attention_probs_dropout_prob=0.0)  # fmt: skip
    return _text(BertForMaskedLM(config))


def vit() -> Step:
    """timm's ViT with 12 blocks of width 192, patches of 16. It reads 8 pictures of 128 x 128."""
    return _picture("vit_small_patch16_224", 128, 8, img_size=128, embed_dim=192, depth=12, num_heads=3)


def mixer() -> Step:
    """timm's MLP-Mixer S/16, 8 pictures of 128 x 128."""
    return _picture("mixer_s16_224", 128, 8, img_size=128)


def resnet() -> Step:
    """timm's ResNet-50, 8 pictures of 128 x 128."""
    return _picture("resnet50", 128, 8)


def unet() -> Step:
    """MONAI's U-Net with residual units, 5 levels of 16 to 128 channels. It reads 4 pictures of 128 x 128."""
    from monai.networks.nets import UNet

    model = UNet(2, 3, 4, channels=(16, 32, 64, 128, 128), strides=(2, 2, 2, 1), num_res_units=2)
    return WithLoss(model, _same), [torch.randn(4, 3, 128, 128), torch.randint(0, 4, (4, 128, 128))]


def _text(model: nn.Module) -> Step:
    words = torch.randint(0, WORDS, (4, TOKENS))
    return WithLoss(model, _flat_logits), [words, words.flatten()]


def _picture(name: str, side: int, batch: int, **settings: Any) -> Step:
    without_torchvision()
    import timm

    model = timm.create_model(name, num_classes=CLASSES, **settings)
    return WithLoss(model, _same), [torch.randn(batch, 3, side, side), torch.randint(0, CLASSES, (batch,))]


def _same(result: Any) -> Tensor:
    logits: Tensor = result
    return logits


def _flat_logits(result: Any) -> Tensor:
    logits: Tensor = result.logits
    return logits.flatten(0, 1)
