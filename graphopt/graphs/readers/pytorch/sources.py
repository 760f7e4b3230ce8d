"""Which source files a module of the user's is made of, read from import statements; nothing is imported."""

import ast
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def source_files(name: str) -> list[Path]:
    """The files of the module `package.module`, its packages, and of their imports; installed packages are left out.
    Sorted; empty where there is no such module."""
    found = dict[Path, None]()
    ahead, seen = [name], set[str]()
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        for part, file in _own_files(name):
            if file not in found:
                found[file] = None
                ahead += _imports(part, file)
    return sorted(found)


def _own_files(name: str) -> Iterator[tuple[str, Path]]:
    """(dotted name, source file) of a module and the packages that hold it, outermost first."""
    below, parts = None, name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:count]), below)
        if spec is None:
            return
        below = list(spec.submodule_search_locations or [])
        if spec.origin is not None and spec.origin.endswith(".py"):
            file = Path(spec.origin).resolve()
            if any(file.is_relative_to(place) for place in _INSTALLED):
                return
            yield spec.name, file


def _spec(name: str, below: list[str] | None) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, below)
    except (ImportError, ValueError, KeyError):  # KeyError: a package without a file, whose parent is not imported
        return None


def _imports(name: str, file: Path) -> list[str]:
    """Names that a source imports, whole: of `from a import b` both a and a.b."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []  # who imports it will say so
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def _absolute(node: ast.ImportFrom, package: str) -> str:
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])
