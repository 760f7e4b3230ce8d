"""Files that ask for more than they hold, or more than they may have, are refused in one sentence and little memory."""

import gzip
import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.core.errors import Unreadable
from graphopt.core.utils.limits import JSON_DEPTH, MIB, depth, parse_json, read_bytes, read_gzip, read_json, read_npz
from graphopt.core.utils.terminal import printable

FEW = 4 * MIB  # bytes that a refusal may take


def npy(shape: tuple[int, ...], descr: str, data: bytes) -> bytes:
    """An .npy file whose header says what it likes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def peak_bytes(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable):
            action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_comes_back_as_numpy_wrote_it(tmp_path: Path, order: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": np.asarray(rng.normal(size=(3, 4, 2)), order=order), "b": np.arange(5, dtype=np.int16),
        "c": np.zeros((0, 3), np.uint8), "d": np.array(True), "e": rng.normal(size=3).astype(">f4"),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    back = read_npz(tmp_path / "x.npz", MIB)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        np.testing.assert_array_equal(back[name], array)


def test_npz_that_unpacks_to_more_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros(300 * MIB, np.uint8))
    assert path.stat().st_size < MIB
    assert peak_bytes(lambda: read_npz(path, 10 * MIB)) < FEW
    with pytest.raises(Unreadable, match=r"bomb\.npz holds more than 10 MiB"):
        read_npz(path, 10 * MIB)


def test_npz_whose_entry_lies_about_its_size(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", a=npy((50 * MIB,), "|u1", bytes(50 * MIB)))
    raw, claimed = path.read_bytes(), (50 * MIB + 128).to_bytes(4, "little")
    assert raw.count(claimed) == 2  # before the data, and in the directory
    path.write_bytes(raw.replace(claimed, (1000).to_bytes(4, "little")))
    assert peak_bytes(lambda: read_npz(path, 10 * MIB)) < FEW


@pytest.mark.parametrize(
    ("shape", "descr"),
    [((10**12,), "<f8"), ((2, 2), "<f8"), ((-1, -3), "<f8"), ((3,), "|O"), ((10**18,), "|V0"), ((3,), "<U8")],
)
def test_npz_whose_header_does_not_fit_its_bytes(tmp_path: Path, shape: tuple[int, ...], descr: str) -> None:
    path = npz(tmp_path / "x.npz", a=npy(shape, descr, bytes(24)))
    assert peak_bytes(lambda: read_npz(path, MIB)) < FEW
    with pytest.raises(Unreadable, match="damaged"):
        read_npz(path, MIB)


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"x" * 100])
def test_damaged_npz_and_gzip(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.arange(1000))
    (tmp_path / "x.gz").write_bytes(gzip.compress(np.arange(1000).tobytes()))
    for name, read in (("x.npz", read_npz), ("x.gz", read_gzip)):
        (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
        if (tmp_path / name).stat().st_size or name == "x.npz":  # gzip calls nothing at all empty content
            with pytest.raises(Unreadable, match="damaged"):
                read(tmp_path / name, MIB)


def test_gzip_that_unpacks_to_more_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(200 * MIB)) * 2)
    assert peak_bytes(lambda: read_gzip(path, MIB)) < 2 * FEW
    with pytest.raises(Unreadable, match="more than 1 MiB"):
        read_json(path, MIB)


def test_files_without_an_end_and_without_a_place() -> None:
    for place in ("/dev/zero", "/nonexistent/file", "."):
        with pytest.raises(Unreadable, match="there is no file"):
            read_bytes(place, 100)


def test_json_is_read_as_the_standard_reader_does(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, '][}{\\"', {"b": []}], "é": "\u2028"}
    (tmp_path / "x.json").write_text(json.dumps(value, ensure_ascii=False))
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))
    assert read_json(tmp_path / "x.json", MIB) == read_json(tmp_path / "x.json.gz", MIB) == value
    assert read_json(tmp_path / "x.json", MIB, pairs=list)[0][0] == "a"


@pytest.mark.parametrize("text", [b"[1,", b"\xff\xfe", b"", b"1" * 5000, b'"\\'])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(Unreadable, match="x is no JSON"):
        parse_json(text, "x", MIB)


@pytest.mark.parametrize("levels", [JSON_DEPTH + 1, 900, 100_000])
def test_deep_json_is_refused(levels: int) -> None:
    with pytest.raises(Unreadable, match="levels deep"):
        parse_json(b"[" * levels + b"]" * levels, "x", MIB)


def test_depth_counts_no_brackets_inside_texts() -> None:
    assert depth(b"3") == 0
    assert depth(b'[{"a": [1]}, []]') == 3
    assert depth(b'["]]]]", [[]]]') == 3  # closing ones in a text must not hide what is open
    assert depth(json.dumps(["[" * 100, '\\"[[[']).encode()) == 1
    assert parse_json(b"[" * JSON_DEPTH + b"]" * JSON_DEPTH, "x", MIB) is not None


def test_nothing_reaches_the_terminal_but_visible_characters() -> None:
    assert printable("conv_3 é 図 -") == "conv_3 é 図 -"
    assert printable("\x1b[2J\x07a\nb\u202ec\x9b\ud800") == r"\x1b[2J\x07a\nb\u202ec\x9b\ud800"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert all(printable(chr(code)).isprintable() for code in range(0x3000))
