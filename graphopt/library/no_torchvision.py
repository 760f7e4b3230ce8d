"""A stand-in for torchvision, whose packages do not load beside a torch for CPUs. Libraries import it at their top, for
pictures and for pretrained networks; nothing that is captured calls it."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

NAME = "torchvision"


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
        mine = fullname.partition(".")[0] == NAME
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if mine else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def without_torchvision() -> None:
    """From now on `import torchvision` gives the stand-in, in this process, unless the real one is loaded."""
    if NAME not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
