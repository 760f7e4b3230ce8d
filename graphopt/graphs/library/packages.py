"""Models of packages that are no dependencies: imported without torchvision, made without memory, or small enough to
be run."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from graphopt.core.graph import GraphError

# --- A stand-in for torchvision, whose packages do not load beside a torch for CPUs. Libraries import it at their top,
# for pictures and for pretrained networks; nothing that is captured calls it.

TORCHVISION = "torchvision"


class _Anything(type):
    """Classes that have every attribute; using one does nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)


def _nothing(name: str) -> Any:
    return _Anything(name, (), {"__init__": lambda self, *args, **settings: None})


class _Module(types.ModuleType):
    __version__ = "0"
    __path__ = []  # noqa: RUF012 (as packages have it)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _nothing(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        mine = fullname.partition(".")[0] == TORCHVISION
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if mine else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def without_torchvision() -> None:
    """From now on `import torchvision` gives the stand-in, in this process, unless the real one is loaded."""
    if TORCHVISION not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# --- Modules without memory: made on torch's meta device.

READ_AT_ONCE = (torch.linspace,)  # constructors ask these for numbers, such as rates by depth


class _Readable(TorchFunctionMode):
    """Values that constructors read are computed; all else is left to the mode around."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        settings = dict(kwargs or {})
        if func in READ_AT_ONCE:
            settings.setdefault("device", "cpu")
        return func(*args, **settings)


@contextmanager
def weightless() -> Iterator[None]:
    """Tensors that are made inside have shapes and no values."""
    with torch.device("meta"), _Readable():
        yield


# --- Models of timm and transformers at sizes of one's own: small enough to be run, activations outweighing weights.

Built = tuple[Any, dict[str, Any]]


def sized(source: Literal["timm", "transformers"], entry: Mapping[str, Any], *, weights: bool) -> Built:
    """(module, arguments) of an entry {SOURCE: NAME, batch: 1, size: 64, settings: {}}: pictures [batch, 3, size, size]
    or tokens [batch, size], which the decoder of a pair gets too. settings: arguments of the architecture, or fields of
    its configuration. weights: whether it has some, random ones, with random inputs, and is as in training but for
    dropout: results are the same every time.

    Raises GraphError where the package is not installed, or makes no such model.
    """
    try:
        batch, size = entry.get("batch", 1), entry.get("size", 64)
        module, arguments = _sized(source, entry[source], batch, size, entry.get("settings", {}), weights)
        return _as_trained(module, arguments) if weights else (module, arguments)
    except ImportError as error:
        raise GraphError(f"entry {entry[source]} needs {source} ({error}): pip install graphopt[models]") from error
    except Exception as error:  # any exception of constructors
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise GraphError(f"{source} makes no {entry[source]} of these settings: {said}") from error


def _sized(source: str, model: str, batch: int, size: int, settings: Mapping[str, Any], weights: bool) -> Built:
    without_torchvision()
    memory = nullcontext() if weights else weightless()
    picture = torch.zeros(batch, 3, size, size)
    if source == "timm":
        import timm

        with memory:
            return timm.create_model(model, **settings), {"x": picture}
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(model, **settings)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with memory:
        module = AutoModel.from_config(config, dtype=torch.float32)
    if getattr(module, "main_input_name", "") == "pixel_values":
        return module, {"pixel_values": picture}
    tokens = {"input_ids": torch.zeros(batch, size, dtype=torch.long)}
    both = {"decoder_input_ids": tokens["input_ids"]} if getattr(config, "is_encoder_decoder", False) else {}
    return module, tokens | both


def _as_trained(module: Any, arguments: Mapping[str, Any]) -> Built:
    module.eval()
    for part in module.modules():
        part.training = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
    made = {name: torch.randint(0, 100, t.shape) if t.dtype is torch.long else torch.randn(t.shape)
            for name, t in arguments.items()}  # fmt: skip
    return module, made
