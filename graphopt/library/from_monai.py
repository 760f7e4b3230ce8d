"""MONAI: networks for medical images, in two and three dimensions."""

from collections.abc import Iterator
from typing import Any

import torch

from graphopt.library.catalogue import LibraryModel
from graphopt.library.no_torchvision import without_torchvision
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = "monai", "Apache-2.0", "https://github.com/Project-MONAI/MONAI"
PAIR = {"in_channels": 1, "out_channels": 2}
DIMS = {"spatial_dims": 3, **PAIR}
FLAT = {"spatial_dims": 2, **PAIR}

# Name -> (class, family, settings, shape of the input without its batch).
MODELS: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "UNet-3d": (
        "UNet",
        "unet",
        DIMS | {"channels": (16, 32, 64), "strides": (2, 2), "num_res_units": 2},
        (1, 32, 32, 32),
    ),
    "UNet-2d": ("UNet", "unet", FLAT | {"channels": (16, 32, 64, 128), "strides": (2, 2, 2)}, (1, 64, 64)),
    "BasicUNet": ("BasicUNet", "basic_unet", DIMS, (1, 32, 32, 32)),
    "BasicUNetPlusPlus": ("BasicUNetPlusPlus", "basic_unet", DIMS, (1, 32, 32, 32)),
    "AttentionUnet": (
        "AttentionUnet",
        "attention_unet",
        DIMS | {"channels": (16, 32, 64), "strides": (2, 2)},
        (1, 32, 32, 32),
    ),
    "DynUNet": (
        "DynUNet",
        "dynunet",
        DIMS | {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]},
        (1, 32, 32, 32),
    ),
    "VNet": ("VNet", "vnet", {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}, (1, 32, 32, 32)),
    "SegResNet": ("SegResNet", "segresnet", DIMS, (1, 32, 32, 32)),
    "SegResNetDS": ("SegResNetDS", "segresnet", DIMS, (1, 32, 32, 32)),
    "SegResNetVAE": (
        "SegResNetVAE",
        "segresnet",
        {"input_image_size": (32, 32, 32), "in_channels": 1, "out_channels": 2},
        (1, 32, 32, 32),
    ),
    "HighResNet": ("HighResNet", "highresnet", DIMS, (1, 32, 32, 32)),
    "UNETR": (
        "UNETR",
        "unetr",
        PAIR | {"img_size": 32, "hidden_size": 48, "mlp_dim": 96, "num_heads": 4},
        (1, 32, 32, 32),
    ),
    "SwinUNETR": ("SwinUNETR", "swin_unetr", PAIR | {"feature_size": 12}, (1, 64, 64, 64)),
    "ViTAutoEnc": (
        "ViTAutoEnc",
        "vit_autoenc",
        {"in_channels": 1, "img_size": 64, "patch_size": 16, "hidden_size": 48, "mlp_dim": 96, "num_heads": 4},
        (1, 64, 64, 64),
    ),
    "DenseNet121": ("DenseNet121", "densenet", DIMS, (1, 32, 32, 32)),
    "SEResNet50": ("SEResNet50", "senet", {"spatial_dims": 3, "in_channels": 1, "num_classes": 2}, (1, 32, 32, 32)),
    "resnet18": ("resnet18", "resnet", {"spatial_dims": 3, "n_input_channels": 1, "num_classes": 2}, (1, 32, 32, 32)),
    "EfficientNet": (
        "EfficientNetBN",
        "efficientnet",
        {"model_name": "efficientnet-b0", "pretrained": False, "spatial_dims": 2},
        (3, 64, 64),
    ),
    "AHNet": (
        "AHNet",
        "ahnet",
        {"spatial_dims": 3, "in_channels": 1, "out_channels": 2, "psp_block_num": 0, "upsample_mode": "nearest"},
        (1, 64, 64, 64),
    ),
    "AutoEncoder": (
        "AutoEncoder",
        "autoencoder",
        DIMS | {"channels": (8, 16, 32), "strides": (2, 2, 2)},
        (1, 32, 32, 32),
    ),
    "VarAutoEncoder": (
        "VarAutoEncoder",
        "autoencoder",
        {"spatial_dims": 2, "out_channels": 1}
        | {"in_shape": (1, 32, 32), "latent_size": 16, "channels": (8, 16), "strides": (2, 2)},
        (1, 32, 32),
    ),
    "Discriminator": (
        "Discriminator",
        "discriminator",
        {"in_shape": (1, 64, 64), "channels": (8, 16, 32), "strides": (2, 2, 2)},
        (1, 64, 64),
    ),
    "QuickNAT": (
        "Quicknat",
        "quicknat",
        {"num_classes": 3, "num_channels": 1, "num_filters": 16, "se_block": "CSE"},
        (1, 64, 64),
    ),
    "FlexibleUNet": (
        "FlexibleUNet",
        "flexible_unet",
        {"in_channels": 3, "out_channels": 2, "backbone": "efficientnet-b0"},
        (3, 64, 64),
    ),
    "MedNeXt": ("MedNeXtSmall", "mednext", {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}, (1, 32, 32, 32)),
    "RegUNet": (
        "RegUNet",
        "regunet",
        {"spatial_dims": 3, "in_channels": 2, "num_channel_initial": 8, "depth": 2},
        (2, 32, 32, 32),
    ),
}


def entries() -> Iterator[LibraryModel]:
    for name, (_, family, _, _) in MODELS.items():
        for backward in (False, True):
            yield LibraryModel("monai", name, family, backward=backward)


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    without_torchvision()
    from monai.networks import nets

    kind, _, settings, shape = MODELS[entry.model]
    with weightless():
        model = getattr(nets, kind)(**settings)
    return model, [torch.zeros(entry.pick(1, 2), *shape), torch.zeros(2, *shape)]
