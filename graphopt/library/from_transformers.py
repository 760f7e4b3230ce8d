"""Hugging Face's transformers: every type of model that its configuration alone makes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from graphopt.library.catalogue import LibraryModel
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = "transformers", "Apache-2.0", "https://github.com/huggingface/transformers"
LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth"),
    *("num_encoder_layers", "num_decoder_layers", "num_encoder_blocks", "num_blocks", "layers", "n_enc_layers"),
)  # what configurations call their number of layers
SMALL = 2
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def entries() -> Iterator[LibraryModel]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for model in sorted(set(CONFIG_MAPPING_NAMES) & set(MODEL_MAPPING_NAMES)):
        for backward in (False, True):
            yield LibraryModel("transformers", model, model, "small", backward)
        full = LibraryModel("transformers", model, model)
        yield full
        if full.pick(0, 0, 0, 1):  # of every fourth: they take as long as all the others
            yield replace(full, backward=True)


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(entry.model)
    if entry.size == "small":
        _shrink(config)
    for part in _parts(config):
        for key in ("dtype", "torch_dtype"):
            if getattr(part, key, None) is not None:
                setattr(part, key, torch.float32)
        if hasattr(part, "use_cache"):
            part.use_cache = False
    with weightless():
        model = AutoModel.from_config(config, dtype=torch.float32, **_experts(config))
    return model, list(_calls(config, model, entry))


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and those inside it (of a text or a vision tower)."""
    yield config
    for value in list(vars(config).values()):
        if type(value).__name__.endswith("Config") and hasattr(value, "to_dict"):
            yield from _parts(value)


def _shrink(config: Any) -> None:
    for part in _parts(config):
        for key in LAYERS:
            count = getattr(part, key, None)
            if type(count) is int and count > SMALL:
                setattr(part, key, SMALL)
        kinds = getattr(part, "layer_types", None)
        if isinstance(kinds, list):
            part.layer_types = kinds[:SMALL]


def _calls(config: Any, model: Any, entry: LibraryModel) -> Iterator[dict[str, Any]]:
    """Ways to call the model that may fit, the one that its main input names first."""
    batch, length = entry.pick(1, 1, 2, 4), entry.pick(128, 64, 256)
    tokens = {"input_ids": torch.zeros(batch, length, dtype=torch.long)}
    answers = {"decoder_input_ids": torch.zeros(batch, length // 2, dtype=torch.long)}
    vision = getattr(config, "vision_config", config)
    side, channels = getattr(vision, "image_size", None) or 224, getattr(vision, "num_channels", None) or 3
    height, width = side if isinstance(side, list | tuple) else (side, side)
    pixels = {"pixel_values": torch.zeros(batch, channels if type(channels) is int else 3, height, width)}
    sound = {"input_values": torch.zeros(batch, 16000)}
    bins = next((getattr(config, key) for key in ("num_mel_bins", "feature_size", "input_feat_per_channel")
                 if type(getattr(config, key, None)) is int), 80)  # fmt: skip
    spectra = [{"input_features": torch.zeros(batch, bins, 3000)}, {"input_features": torch.zeros(batch, 128, bins)},
               {"input_values": torch.zeros(batch, 1024, bins)}]  # fmt: skip
    frames = {"pixel_values": torch.zeros(1, getattr(config, "num_frames", None) or 8, 3, height, width)}
    steps = int(getattr(config, "context_length", 0) or getattr(config, "prediction_length", 0) or 64)
    series = {"past_values": torch.zeros(batch, steps, int(getattr(config, "num_input_channels", 1) or 1))}
    both = [tokens | answers] if getattr(config, "is_encoder_decoder", False) else []
    first = {"pixel_values": [pixels, frames, pixels | tokens], "input_values": [sound, spectra[2]],
             "input_features": [*spectra, *(s | answers for s in spectra)], "past_values": [series],
             "pixel_values_videos": [{"pixel_values_videos": frames["pixel_values"]}]}  # fmt: skip
    yield from first.get(str(getattr(model, "main_input_name", "input_ids")), [])
    yield from [*both, tokens, tokens | pixels, pixels, sound, *spectra]


def _experts(config: Any) -> dict[str, str]:
    """Experts as one batched product: the kernel for groups of tokens takes bfloat16 alone, the loop reads values."""
    routed = any(getattr(part, key, None) for part in _parts(config) for key in EXPERTS)
    return {"experts_implementation": "batched_mm"} if routed else {}
