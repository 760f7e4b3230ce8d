"""segmentation-models-pytorch: decoders of many papers on encoders of timm."""

from collections.abc import Iterator
from typing import Any

import torch

from graphopt.library.catalogue import LibraryModel
from graphopt.library.no_torchvision import without_torchvision
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = (
    "segmentation_models_pytorch",
    "MIT",
    "https://github.com/qubvel-org/segmentation_models.pytorch",
)
DECODERS = ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "Linknet", "MAnet", "PAN", "DeepLabV3", "DeepLabV3Plus", "UPerNet",
            "Segformer", "DPT")  # fmt: skip
ENCODERS = {"tu-resnet18": "resnet18", "tu-mobilenetv3_small_100": "mobilenet", "tu-convnext_atto": "convnext"}
TRANSFORMER = "tu-vit_small_patch16_224.augreg_in21k"


def entries() -> Iterator[LibraryModel]:
    for decoder in DECODERS:
        encoders = {TRANSFORMER: "vit"} if decoder == "DPT" else ENCODERS
        for short in encoders.values():
            for backward in (False, True):
                yield LibraryModel("segmentation", f"{decoder}-{short}", decoder.lower(), backward=backward)


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    without_torchvision()
    import segmentation_models_pytorch as smp

    decoder, _, short = entry.model.rpartition("-")
    encoder = next(name for name, said in (ENCODERS | {TRANSFORMER: "vit"}).items() if said == short)
    with weightless():
        model = getattr(smp, decoder)(encoder_name=encoder, encoder_weights=None, classes=4)
    side = 224 if decoder == "DPT" else 128
    return model, [torch.zeros(entry.pick(2, 4), 3, side, side)]
