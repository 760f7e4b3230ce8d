"""Puts folders of tests on the import path, so that tests share `toy`; options of their classes; signals, threads."""

import os
import re
import signal
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from graphopt import OWN_OPTIONS

# Before torch is imported: what small networks learn depends on it to the last bit, and threads of busy cores wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where modules are not to be compiled once for all, processes that tests start share them for these tests. To compile
# them anew is most of the time that a process takes to start.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    MODULES = TemporaryDirectory(prefix="graphopt-modules-")
    os.environ["PYTHONPYCACHEPREFIX"] = MODULES.name

# After all else: what tests of one folder have, those of another may import.
FOLDERS = (folder for folder in Path(__file__).parent.iterdir() if folder.is_dir())
sys.path += sorted(str(folder) for folder in FOLDERS if not (folder / "__init__.py").exists())

# Options of classes that tests bring along, by group: name -> class. Values come from the files that name them.
OPTIONS = {
    "machine": {"pair": "graphopt.core.machine.Machine", "one": "graphopt.core.machine.Machine"},
    "task": {"split": "split_work.Split", "binary": "frame_parts.Binary"},
    "cost": {"cut": "split_work.CutCost", "cut3": "split_work.CutCost", "ones": "frame_parts.Ones"},
    "dataset": {"toys": "frame_parts.ToyGraphs"},
    "encoder": {"bias": "frame_parts.Bias"},
    "algo": {"critical": "frame_parts.Critical", "learns": "frame_parts.Learns"},
}


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """Programs that a test starts hear of Ctrl-C, whatever has switched that off before: Lightning when it was
    interrupted in another test, or a shell that runs all in the background."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def toy_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with those options, as a user has one of their own."""
    conf = tmp_path_factory.mktemp("options")
    for group, options in OPTIONS.items():
        (conf / group).mkdir()
        for name, target in options.items():
            values = {"_target_": target, "name": name} | ({"width": 4} if group == "encoder" else {})
            (conf / group / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return conf


@pytest.fixture
def toy_options(toy_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's installation has them."""
    monkeypatch.setenv(OWN_OPTIONS, str(toy_conf))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases of tests/slow.txt."""
    slow = re.compile("|".join(re.findall(r"^[^#\n].*", (Path(__file__).parent / "slow.txt").read_text(), re.M)))
    for item in items:
        if slow.match(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.slow)
