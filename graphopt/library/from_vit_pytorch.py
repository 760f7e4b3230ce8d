"""vit-pytorch: vision transformers of many papers, small ones."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from graphopt.library.catalogue import LibraryModel
from graphopt.library.no_torchvision import without_torchvision
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = "vit_pytorch", "MIT", "https://github.com/lucidrains/vit-pytorch"
SIZES = {"image_size": 128, "patch_size": 16, "num_classes": 100, "dim": 192, "heads": 4, "mlp_dim": 384}
DEEP = SIZES | {"depth": 4}
PICTURE, WIDE = (3, 128, 128), (3, 224, 224)

# module.Class -> (settings, shape of the input without its batch).
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "vit.ViT": (DEEP, PICTURE),
    "simple_vit.SimpleViT": (DEEP, PICTURE),
    "deepvit.DeepViT": (DEEP, PICTURE),
    "cait.CaiT": (DEEP | {"cls_depth": 2}, PICTURE),
    "parallel_vit.ViT": (DEEP, PICTURE),
    "learnable_memory_vit.ViT": (DEEP, PICTURE),
    "vit_for_small_dataset.ViT": (DEEP, PICTURE),
    "simple_vit_with_register_tokens.SimpleViT": (DEEP, PICTURE),
    "simple_vit_with_qk_norm.SimpleViT": (DEEP, PICTURE),
    "simple_vit_with_patch_dropout.SimpleViT": (DEEP, PICTURE),
    "simple_vit_with_hyper_connections.SimpleViT": (DEEP | {"num_residual_streams": 2}, PICTURE),
    "simple_vit_with_value_residual.SimpleViT": (DEEP, PICTURE),
    "simple_flash_attn_vit.SimpleViT": (DEEP, PICTURE),
    "vit_with_patch_merger.ViT": (DEEP | {"patch_merge_layer": 2, "patch_merge_num_tokens": 8}, PICTURE),
    "vit_with_patch_dropout.ViT": (DEEP, PICTURE),
    "normalized_vit.nViT": (DEEP, PICTURE),
    "t2t.T2TViT": (
        {
            "dim": 192,
            "image_size": 128,
            "depth": 4,
            "heads": 4,
            "mlp_dim": 384,
            "num_classes": 100,
            "t2t_layers": ((7, 4), (3, 2), (3, 2)),
        },
        PICTURE,
    ),
    "cct.CCT": (
        {
            "img_size": (128, 128),
            "embedding_dim": 192,
            "n_conv_layers": 2,
            "num_layers": 4,
            "num_heads": 4,
            "num_classes": 100,
        },
        PICTURE,
    ),
    "cross_vit.CrossViT": (
        {
            "image_size": 128,
            "num_classes": 100,
            "depth": 2,
            "sm_dim": 96,
            "lg_dim": 192,
            "sm_patch_size": 16,
            "lg_patch_size": 32,
        },
        PICTURE,
    ),
    "pit.PiT": (
        {
            "image_size": 224,
            "patch_size": 14,
            "dim": 128,
            "num_classes": 100,
            "depth": (2, 2, 2),
            "heads": 4,
            "mlp_dim": 256,
        },
        WIDE,
    ),
    "levit.LeViT": (
        {
            "image_size": 224,
            "num_classes": 100,
            "stages": 3,
            "dim": (128, 192, 256),
            "depth": 2,
            "heads": (2, 3, 4),
            "mlp_mult": 2,
        },
        WIDE,
    ),
    "cvt.CvT": ({"num_classes": 100, "s1_depth": 1, "s2_depth": 2, "s3_depth": 3}, WIDE),
    "twins_svt.TwinsSVT": ({"num_classes": 100}, WIDE),
    "regionvit.RegionViT": ({"dim": (32, 64, 128, 256), "depth": (1, 1, 2, 1), "num_classes": 100}, WIDE),
    "crossformer.CrossFormer": ({"num_classes": 100, "dim": (32, 64, 128, 256), "depth": (1, 1, 2, 1)}, WIDE),
    "scalable_vit.ScalableViT": (
        {
            "num_classes": 100,
            "dim": 32,
            "heads": (1, 2, 4, 8),
            "depth": (1, 1, 2, 1),
            "ssa_dim_key": (8, 8, 8, 8),
            "reduction_factor": (8, 4, 2, 1),
            "window_size": (64, 32, None, None),
            "dropout": 0.0,
        },
        (3, 256, 256),
    ),
    "sep_vit.SepViT": (
        {"num_classes": 100, "dim": 32, "dim_head": 16, "heads": (1, 2, 4, 8), "depth": (1, 1, 2, 1), "window_size": 7},
        WIDE,
    ),
    "max_vit.MaxViT": ({"num_classes": 100, "dim": 32, "dim_head": 16, "depth": (1, 1, 2, 1), "window_size": 7}, WIDE),
    "max_vit_with_registers.MaxViT": (
        {"num_classes": 100, "dim": 32, "dim_head": 16, "depth": (1, 1, 2, 1), "window_size": 7},
        WIDE,
    ),
    "nest.NesT": (
        {
            "image_size": 224,
            "patch_size": 4,
            "dim": 96,
            "heads": 3,
            "num_hierarchies": 3,
            "block_repeats": (2, 2, 2),
            "num_classes": 100,
        },
        WIDE,
    ),
    "mobile_vit.MobileViT": (
        {
            "image_size": (256, 256),
            "dims": [96, 120, 144],
            "num_classes": 100,
            "channels": [16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 384],
        },
        (3, 256, 256),
    ),
    "xcit.XCiT": (DEEP | {"cls_depth": 2}, PICTURE),
    "rvt.RvT": (DEEP, PICTURE),
    "vivit.ViViT": (
        SIZES | {"image_patch_size": 16, "frames": 8, "frame_patch_size": 2, "spatial_depth": 2, "temporal_depth": 2},
        (3, 8, 128, 128),
    ),
    "vit_3d.ViT": (DEEP | {"image_patch_size": 16, "frames": 8, "frame_patch_size": 2}, (3, 8, 128, 128)),
    "vit_1d.ViT": (
        {"seq_len": 256, "patch_size": 16, "num_classes": 100, "dim": 192, "depth": 4, "heads": 4, "mlp_dim": 384},
        (3, 256),
    ),
}


def entries() -> Iterator[LibraryModel]:
    for name in MODELS:
        for backward in (False, True):
            yield LibraryModel("vit_pytorch", name, name.partition(".")[0].removeprefix("simple_"), backward=backward)


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    without_torchvision()
    module, _, kind = entry.model.partition(".")
    settings, shape = MODELS[entry.model]
    if module in ("vivit", "vit_3d"):
        settings = {key: value for key, value in settings.items() if key != "patch_size"}
    found = getattr(import_module(f"vit_pytorch.{module}"), kind)
    with weightless():
        model = found(**settings)
    return model, [torch.zeros(entry.pick(1, 4, 8), *shape), torch.zeros(1, *shape)]
