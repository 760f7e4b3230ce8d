"""The catalogue: every model of another package that is captured, where it comes from, and how it is called.

`catalogue.yaml` names packages, factories, settings and inputs. A factory is a class or a function of its library's own
package, and nothing else that a name may reach is called. transformers and timm list their models themselves.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from graphopt.core.graph import GraphError
from graphopt.graphs.library.packages import weightless, without_torchvision

PACKAGES = {  # library -> its package, whose factories alone are called
    "transformers": "transformers",
    "timm": "timm",
    "diffusers": "diffusers",
    "monai": "monai",
    "vit_pytorch": "vit_pytorch",
    "x_transformers": "x_transformers",
    "segmentation": "segmentation_models_pytorch",
    "torch_geometric": "torch_geometric",
}
Built = tuple[Any, list[Any]]
"""(module, calls to try one after another: arguments as `graphopt.graphs.readers.pytorch.nested_tensors` reads them)"""


@dataclass(frozen=True)
class LibraryModel:
    """One graph to capture."""

    library: str
    model: str  # as its library calls it
    family: str  # models of one family differ in sizes
    size: str = "full"  # small: few layers, where the library's configuration says how many there are
    backward: bool = False

    @property
    def name(self) -> str:
        """What the graph is called: `timm/beit_base_patch16_224`, `transformers/bert-small+backward`."""
        size = "-small" if self.size == "small" else ""
        return f"{self.library}/{self.model}{size}{'+backward' if self.backward else ''}"

    def pick(self, *values: int) -> int:
        """One of some values, always the same for this model: sizes of batches and sequences vary over models."""
        return values[zlib.crc32(f"{self.library}/{self.model}/{self.size}".encode()) % len(values)]


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """Library -> licence, source, models."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "catalogue.yaml").read_text())
    return found


def entries(library: str) -> Iterator[LibraryModel]:
    """All that is to be captured of a library; nothing is built."""
    if library in LISTS:
        yield from LISTS[library]()
        return
    for name, said in catalogue()[library]["models"].items():
        if library == "x_transformers":
            for size in ("small", "full"):
                yield from _both(LibraryModel(library, name, f"x_{name}", size))
        elif library == "torch_geometric":
            yield from _both(LibraryModel(library, name, name.lower(), "small"))
            yield LibraryModel(library, name, name.lower())
        else:
            yield from _both(LibraryModel(library, name, said["family"]))


def _both(entry: LibraryModel) -> Iterator[LibraryModel]:
    """Without and with gradients."""
    yield entry
    yield replace(entry, backward=True)


def build(entry: LibraryModel) -> Built:
    """The module on torch's meta device, without weights, and how it may be called."""
    if entry.library in IMPORT_TORCHVISION:
        without_torchvision()
    make = BUILDERS.get(entry.library)
    return _of_table(entry) if make is None else make(entry)


def factory(library: str, label: str) -> Any:
    """The class or function that `module:name` names, of the library's own package. Raises GraphError for all else."""
    place, _, name = label.partition(":")
    package = PACKAGES[library]
    if place.partition(".")[0] == package:
        found = getattr(import_module(place), name, None)
        own = str(getattr(found, "__module__", "")).partition(".")[0] == package
        if own and (isfunction(found) or (isinstance(found, type) and issubclass(found, nn.Module))):
            return found
    raise GraphError(f"{label} is no model of {package}")


def _of_table(entry: LibraryModel) -> Built:
    of_library = catalogue()[entry.library]
    said = of_library["models"][entry.model]
    make = factory(entry.library, said["factory"])
    with weightless():
        model = make(**_frozen(said.get("settings", {})))
    batches = [entry.pick(*of_library["batch"]), *([of_library["otherwise"]] if "otherwise" in of_library else [])]
    return model, [_inputs(said["inputs"], batch) for batch in batches]


def _frozen(said: Any) -> Any:
    """Lists as tuples."""
    if isinstance(said, Mapping):
        return {key: _frozen(value) for key, value in said.items()}
    return tuple(map(_frozen, said)) if isinstance(said, list) else said


def _inputs(said: Any, batch: int) -> Any:
    """Zeros of stated shapes, by name or in order."""
    if isinstance(said, Mapping):
        return {name: _inputs(shape, batch) for name, shape in said.items()}
    if any(isinstance(one, list) for one in said):
        return tuple(_inputs(shape, batch) for shape in said)
    whole = "int64" in said
    sizes = [batch if size == "b" else size for size in said if size != "int64"]
    return torch.zeros(sizes, dtype=torch.int64 if whole else torch.float32)


# --- timm: of every module of architectures some models, evenly over their names.

EACH, WITH_GRADIENTS = 4, 2  # models of a module; those of them that are captured with their gradients too


def _timm_entries() -> Iterator[LibraryModel]:
    without_torchvision()
    import timm

    for module in timm.list_modules():
        names = sorted(timm.list_models(module=module))
        chosen = sorted({names[round(i * (len(names) - 1) / (EACH - 1))] for i in range(EACH)})
        for i, name in enumerate(chosen):
            yield LibraryModel("timm", name, module)
            if i < WITH_GRADIENTS:
                yield LibraryModel("timm", name, module, backward=True)


def _timm(entry: LibraryModel) -> Built:
    import timm

    with weightless():
        model = timm.create_model(entry.model)
    size = model.default_cfg["input_size"]
    batches = sorted({entry.pick(1, 1, 8, 32), 1}, reverse=True)
    return model, [torch.zeros(batch, *size) for batch in batches]


# --- transformers: every type of model that its configuration alone makes.

LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth"),
    *("num_encoder_layers", "num_decoder_layers", "num_encoder_blocks", "num_blocks", "layers", "n_enc_layers"),
)  # what configurations call their number of layers
SMALL = 2
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def _transformers_entries() -> Iterator[LibraryModel]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for model in sorted(set(CONFIG_MAPPING_NAMES) & set(MODEL_MAPPING_NAMES)):
        yield from _both(LibraryModel("transformers", model, model, "small"))
        full = LibraryModel("transformers", model, model)
        yield full
        if full.pick(0, 0, 0, 1):  # of every fourth: they take as long as all the others
            yield replace(full, backward=True)


def _transformers(entry: LibraryModel) -> Built:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(entry.model)
    parts = list(_parts(config))
    for part in parts:
        if entry.size == "small":
            _shrink(part)
        for key in ("dtype", "torch_dtype"):
            if getattr(part, key, None) is not None:
                setattr(part, key, torch.float32)
        if hasattr(part, "use_cache"):
            part.use_cache = False
    # Experts as one batched product: the kernel for groups of tokens takes bfloat16 alone, the loop reads values.
    routed = any(getattr(part, key, None) for part in parts for key in EXPERTS)
    experts = {"experts_implementation": "batched_mm"} if routed else {}
    with weightless():
        model = AutoModel.from_config(config, dtype=torch.float32, **experts)
    return model, list(_calls(config, model, entry))


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and those inside it (of a text or a vision tower)."""
    yield config
    for value in list(vars(config).values()):
        if type(value).__name__.endswith("Config") and hasattr(value, "to_dict"):
            yield from _parts(value)


def _shrink(part: Any) -> None:
    """Few layers."""
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


# --- x-transformers: one transformer with the variations of many papers.


def _x_transformers(entry: LibraryModel) -> Built:
    from x_transformers import Decoder, TransformerWrapper

    settings = _frozen(catalogue()["x_transformers"]["models"][entry.model])
    with weightless():
        layers = Decoder(dim=256, depth=2 if entry.size == "small" else 8, heads=8, **settings)
        model = TransformerWrapper(num_tokens=1000, max_seq_len=256, attn_layers=layers)
    return model, [torch.zeros(entry.pick(1, 4), entry.pick(256, 128), dtype=torch.long)]


# --- torch-geometric: stacks of the convolutions of many papers, on a graph of given size.

NODES, WIDTH = 500, 64


class Stack(nn.Module):
    """Convolutions with a nonlinearity between them: features [N, 64] and edges [2, E] to features [N, 64]."""

    def __init__(self, kind: str, layers: int) -> None:
        super().__init__()
        settings = _frozen(catalogue()["torch_geometric"]["models"][kind])
        made = factory("torch_geometric", f"torch_geometric.nn:{kind}")
        self.layers = nn.ModuleList(made(WIDTH, WIDTH, **settings) for _ in range(layers))

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            features = layer(features, edges).relu()
        result: Tensor = self.layers[-1](features, edges)
        return result


def _torch_geometric(entry: LibraryModel) -> Built:
    with weightless():
        model = Stack(entry.model, 2 if entry.size == "small" else 8)
    edges = torch.zeros(2, NODES * entry.pick(4, 8), dtype=torch.long)
    return model, [(torch.zeros(NODES, WIDTH), edges)]


LISTS = {"timm": _timm_entries, "transformers": _transformers_entries}
BUILDERS = {"timm": _timm, "transformers": _transformers, "x_transformers": _x_transformers,
            "torch_geometric": _torch_geometric}  # fmt: skip
IMPORT_TORCHVISION = ("timm", "diffusers", "monai", "vit_pytorch", "segmentation")
