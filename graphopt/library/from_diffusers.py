"""Hugging Face's diffusers: denoisers and autoencoders of diffusion models, small ones."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from graphopt.library.catalogue import LibraryModel
from graphopt.library.no_torchvision import without_torchvision
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = "diffusers", "Apache-2.0", "https://github.com/huggingface/diffusers"
BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 2}
TURNS = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
CROSS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
CODER = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
HEADS = {"num_attention_heads": 4, "attention_head_dim": 16}


def _picture(batch: int, channels: int, side: int = 32) -> torch.Tensor:
    return torch.zeros(batch, channels, side, side)


def _steps(batch: int) -> torch.Tensor:
    return torch.zeros(batch, dtype=torch.long)


def _words(batch: int, width: int) -> torch.Tensor:
    return torch.zeros(batch, 16, width)


# Class -> (settings, arguments for a batch size).
MODELS: dict[str, tuple[dict[str, Any], Callable[[int], dict[str, Any]]]] = {
    "UNet2DModel": (
        BLOCKS | TURNS | {"sample_size": 32, "in_channels": 3, "out_channels": 3},
        lambda b: {"sample": _picture(b, 3), "timestep": _steps(b)},
    ),
    "UNet2DConditionModel": (
        BLOCKS | CROSS | {"sample_size": 32, "cross_attention_dim": 32, "attention_head_dim": 2},
        lambda b: {"sample": _picture(b, 4), "timestep": _steps(b), "encoder_hidden_states": _words(b, 32)},
    ),
    "UNet3DConditionModel": (
        BLOCKS
        | {
            "sample_size": 32,
            "cross_attention_dim": 32,
            "attention_head_dim": 4,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        lambda b: {
            "sample": torch.zeros(b, 4, 4, 32, 32),
            "timestep": _steps(b),
            "encoder_hidden_states": _words(b, 32),
        },
    ),
    "AutoencoderKL": (BLOCKS | CODER | {"latent_channels": 4}, lambda b: {"sample": _picture(b, 3)}),
    "AsymmetricAutoencoderKL": (
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "down_block_out_channels": (32, 64),
            "up_block_out_channels": (32, 64),
            "layers_per_down_block": 1,
            "layers_per_up_block": 1,
        },
        lambda b: {"sample": _picture(b, 3)},
    ),
    "AutoencoderTiny": ({}, lambda b: {"sample": _picture(b, 3, 64)}),
    "AutoencoderDC": (
        {
            "encoder_block_out_channels": (64, 128),
            "decoder_block_out_channels": (64, 128),
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
            "decoder_norm_types": "rms_norm",
            "decoder_act_fns": "silu",
        },
        lambda b: {"sample": _picture(b, 3)},
    ),
    "VQModel": (BLOCKS | CODER, lambda b: {"sample": _picture(b, 3)}),
    "Transformer2DModel": (
        HEADS | {"num_layers": 4, "in_channels": 64, "cross_attention_dim": 64},
        lambda b: {"hidden_states": _picture(b, 64), "encoder_hidden_states": _words(b, 64)},
    ),
    "DiTTransformer2DModel": (
        HEADS | {"num_layers": 6, "sample_size": 32},
        lambda b: {"hidden_states": _picture(b, 4), "timestep": _steps(b), "class_labels": _steps(b)},
    ),
    "PixArtTransformer2DModel": (
        HEADS | {"num_layers": 6, "sample_size": 32, "cross_attention_dim": 64, "caption_channels": 64},
        lambda b: {
            "hidden_states": _picture(b, 4),
            "timestep": _steps(b),
            "encoder_hidden_states": _words(b, 64),
            "added_cond_kwargs": {"resolution": torch.zeros(b, 2), "aspect_ratio": torch.zeros(b, 1)},
        },
    ),
    "SD3Transformer2DModel": (
        HEADS
        | {
            "num_layers": 6,
            "sample_size": 32,
            "joint_attention_dim": 64,
            "caption_projection_dim": 64,
            "pooled_projection_dim": 64,
            "in_channels": 4,
        },
        lambda b: {
            "hidden_states": _picture(b, 4),
            "timestep": _steps(b),
            "encoder_hidden_states": _words(b, 64),
            "pooled_projections": torch.zeros(b, 64),
        },
    ),
    "SanaTransformer2DModel": (
        {
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 64,
            "num_layers": 4,
            "caption_channels": 64,
            "sample_size": 32,
        },
        lambda b: {"hidden_states": _picture(b, 32), "timestep": _steps(b), "encoder_hidden_states": _words(b, 64)},
    ),
    "FluxTransformer2DModel": (
        HEADS
        | {
            "num_layers": 2,
            "num_single_layers": 4,
            "in_channels": 16,
            "joint_attention_dim": 64,
            "pooled_projection_dim": 64,
            "axes_dims_rope": (4, 4, 8),
        },
        lambda b: {
            "hidden_states": torch.zeros(b, 64, 16),
            "encoder_hidden_states": _words(b, 64),
            "pooled_projections": torch.zeros(b, 64),
            "timestep": torch.zeros(b),
            "img_ids": torch.zeros(64, 3),
            "txt_ids": torch.zeros(16, 3),
        },
    ),
    "PriorTransformer": (
        {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 4, "embedding_dim": 64},
        lambda b: {
            "hidden_states": torch.zeros(b, 64),
            "timestep": _steps(b),
            "proj_embedding": torch.zeros(b, 64),
            "encoder_hidden_states": torch.zeros(b, 77, 64),
        },
    ),
    "UVit2DModel": (
        {
            "hidden_size": 64,
            "cond_embed_dim": 64,
            "encoder_hidden_size": 64,
            "block_out_channels": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "micro_cond_encode_dim": 16,
            "micro_cond_embed_dim": 96,
            "vocab_size": 256,
            "codebook_size": 128,
        },
        lambda b: {
            "input_ids": torch.zeros(b, 16, 16, dtype=torch.long),
            "encoder_hidden_states": _words(b, 64),
            "pooled_text_emb": torch.zeros(b, 64),
            "micro_conds": torch.zeros(b, 6),
        },
    ),
}


def entries() -> Iterator[LibraryModel]:
    for name in MODELS:
        for backward in (False, True):
            yield LibraryModel("diffusers", name, name.lower(), backward=backward)


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    without_torchvision()
    import diffusers

    settings, call = MODELS[entry.model]
    with weightless():
        model = getattr(diffusers, entry.model)(**settings)
    return model, [call(entry.pick(1, 2, 4)), call(1)]
