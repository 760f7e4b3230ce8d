"""Which source files a user's module is made of."""

import sys
from pathlib import Path

import pytest

from graphopt.datasets.torch_module import TorchModule
from graphopt.readers.pytorch.sources import source_files
from graphopt.run.cell import content_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "mine/__init__.py": "import json",
        "mine/models.py": "from . import layers\nfrom .deep import block as b\nimport numpy, torch\nimport aside.one",
        "mine/layers.py": "def x():\n    from mine import lazily",
        "mine/lazily.py": "import mine.models",
        "mine/deep/__init__.py": "from ..other import thing",
        "mine/deep/block.py": "syntax error here",
        "mine/other.py": "",
        "mine/unused.py": "",
        "aside/one.py": "import gone",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_what_a_module_imports_counts_but_for_what_is_installed(place: Path) -> None:
    found = [str(file.relative_to(place)) for file in source_files("mine.models")]
    assert found == sorted([
        "aside/one.py", "mine/__init__.py", "mine/deep/__init__.py", "mine/deep/block.py", "mine/layers.py",
        "mine/lazily.py", "mine/models.py", "mine/other.py",
    ])  # fmt: skip
    assert "mine" not in sys.modules
    assert source_files("nowhere.at_all") == source_files("") == source_files("torch.nn") == []


def test_another_source_is_another_content(place: Path) -> None:
    target = f"{TorchModule.__module__}.TorchModule"
    node = {"_target_": target, "name": "torch", "module": "mine.models:make", "backward": False}
    config = {"dataset": node, "seed": 0}
    before = content_of(config)
    assert before and before == content_of(config)
    (place / "mine" / "unused.py").write_text("x = 1")
    assert content_of(config) == before
    (place / "mine" / "lazily.py").write_text("y = 1")
    assert content_of(config) != before
