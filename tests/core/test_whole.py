"""Files and folders that are whole or not there, and what killed processes leave of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphopt.core.utils import whole
from graphopt.core.utils.whole import clear, whole_file, whole_folder

WRITER = """
import sys
from pathlib import Path
from graphopt.core.utils.whole import whole_file, whole_folder
with whole_folder(Path(sys.argv[1]) / "folder") as folder, whole_file(Path(sys.argv[1]) / "file") as file:
    (folder / "inner").write_text("half")
    file.write(b"half")
    file.flush()
    print("begun", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def writing_process(place: Path) -> Iterator["subprocess.Popen[str]"]:
    """In the middle of a file and of a folder."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(place)], stdin=-1, stdout=-1, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def fresh() -> None:
    """As a process that has not written anywhere."""
    whole._clear_once.cache_clear()


def test_what_a_killed_process_left_goes_at_the_next_write_into_its_folder(tmp_path: Path) -> None:
    with writing_process(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(list(tmp_path.iterdir())) == 2
    with whole_file(tmp_path / "other") as file:
        file.write(b"whole")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("other", b"whole")]


def test_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    with writing_process(tmp_path) as process:
        for _ in range(2):
            clear(tmp_path)
        process.communicate("go on\n")
        assert process.returncode == 0
    assert (tmp_path / "file").read_text() == "half" and (tmp_path / "folder" / "inner").read_text() == "half"
    assert len(list(tmp_path.iterdir())) == 2


def test_other_files_stay(tmp_path: Path) -> None:
    others = ["a.part", ".a.part", ".a.0123.part", ".a.0123456789abcdef.part.gz", "a.0123456789abcdef.part"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "aim").touch()
    (tmp_path / ".link.0123456789abcdef.part").symlink_to(tmp_path / "aim")
    (tmp_path / ".left.0123456789abcdef.part").touch()
    clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, "aim", ".link.0123456789abcdef.part"}


def test_a_part_that_was_taken_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process clears the folder between making and locking."""
    held, seen = whole._held, []

    def cleared_first(handle: int, part: Path) -> bool:
        seen.append(part)
        if len(seen) in (1, 3):
            clear(tmp_path)
        return held(handle, part)

    monkeypatch.setattr(whole, "_held", cleared_first)
    with whole_file(tmp_path / "file") as file, whole_folder(tmp_path / "folder") as folder:
        (folder / "inner").touch()
        file.write(b"whole")
    assert len(set(seen)) == 4 and (tmp_path / "file").read_bytes() == b"whole"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    with pytest.raises(ValueError, match="no"), whole_file(tmp_path / "file") as file:
        file.write(b"half")
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"), whole_folder(tmp_path / "folder") as folder:
        (folder / "inner").touch()
        raise ValueError("no")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "before"
