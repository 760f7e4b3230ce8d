"""timm, PyTorch Image Models: of every module of architectures some models, evenly over their names."""

from collections.abc import Iterator
from typing import Any

import torch

from graphopt.library.catalogue import LibraryModel
from graphopt.library.no_torchvision import without_torchvision
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = "timm", "Apache-2.0", "https://github.com/huggingface/pytorch-image-models"
EACH, TRAINED = 4, 2  # models of a module; those of them that are captured with their gradients too


def entries() -> Iterator[LibraryModel]:
    without_torchvision()
    import timm

    for module in timm.list_modules():
        names = sorted(timm.list_models(module=module))
        chosen = sorted({names[round(i * (len(names) - 1) / (EACH - 1))] for i in range(EACH)})
        for i, name in enumerate(chosen):
            yield LibraryModel("timm", name, module)
            if i < TRAINED:
                yield LibraryModel("timm", name, module, backward=True)


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    without_torchvision()
    import timm

    with weightless():
        model = timm.create_model(entry.model)
    size = model.default_cfg["input_size"]
    batches = sorted({entry.pick(1, 1, 8, 32), 1}, reverse=True)
    return model, [torch.zeros(batch, *size) for batch in batches]
