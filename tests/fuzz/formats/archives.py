"""Damage to npz files: their arrays, their headers, their container."""

import io
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import mutate
from ..mutate import Draw

BOMB = 8000  # megabytes: more than a case may use


def pickled_canary() -> bytes:
    """A pickle that calls the canary when it is loaded, without having it here."""
    return f"c{mutate.CANARY}\nfire\n(S'pickle'\ntR.".encode()


_DTYPES = ("int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex128", "bool",
           "U3", "S3", "M8[s]", ">i4")  # fmt: skip


def damaged_array(rng: Draw, array: np.ndarray) -> np.ndarray:
    """The array with an other type, shape, order or values."""
    what = rng.randrange(8)
    with np.errstate(all="ignore"):
        try:
            if what == 0:
                return array.astype(rng.choice(_DTYPES))
            if what == 1:
                return array.reshape(rng.choice(((-1,), (-1, 1), (1, -1), (1, -1, 1))))
            if what == 2:
                return array[: rng.randrange(len(array) + 1)] if array.ndim else np.stack([array, array])
            if what == 3:
                return np.concatenate([array, array[: rng.randrange(1, len(array) + 1)]])
            if what == 4:
                return rng.choice(
                    (np.zeros(0, array.dtype), np.zeros((), array.dtype), np.array("x"), np.zeros((0, 3)))
                )
            flat = array.copy().reshape(-1)
            for _ in range(rng.choice((1, 1, 3))):
                at = rng.randrange(len(flat))
                flat[at] = rng.choice((-1, -2, 0, 1, int(flat[at]) + 1, len(flat), 127, mutate.number(rng)))
            return flat.reshape(array.shape)
        except (ValueError, TypeError, OverflowError, IndexError):
            return array[::-1].copy() if array.ndim else array


def packed(arrays: Mapping[str, np.ndarray | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An npz; bytes stand for themselves."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else npy(array))
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def lying_npy(rng: Draw) -> bytes:
    """The start of an array that says it is large, of a strange type, or of objects."""
    shape = rng.choice(((10**12,), (2**62, 8), (-1,), (10**9,), (3_000_000_000,), (1,) * 40, (True,), (1.5,), "x"))
    descr = rng.choice(
        ("'<i8'", "'|u1'", "'|O'", "'<U1000000'", "'V9999999'", "'x'", "[('a','<i8')]", "__import__('os')")
    )
    head = (
        f"{{'descr': {descr}, 'fortran_order': {rng.choice(('False', 'True', '0'))}, 'shape': {shape!r}, }}\n".encode()
    )
    version = rng.choice((b"\x01\x00", b"\x02\x00", b"\x09\x00"))
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", rng.choice((len(head), len(head), 2, 60_000)))
    return b"\x93NUMPY" + version + length + head + pickled_canary()


def bomb() -> bytes:
    """An archive of one array of bytes, small on disk, `BOMB` megabytes unpacked."""
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({BOMB << 20},), }}".encode().ljust(117) + b"\n"
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head
    stream = stored_block(body) + mutate.deflated_zeros(BOMB)
    return _zip("texts.npy", stream, len(body) + (BOMB << 20))


def stored_block(content: bytes) -> bytes:
    """A deflate block that holds bytes as they are, not the last one."""
    return b"\x00" + struct.pack("<HH", len(content), len(content) ^ 0xFFFF) + content


def _zip(name: str, stream: bytes, size: int) -> bytes:
    """A zip archive of one deflated file with a wrong check sum, larger than 4 GB unpacked."""
    label, extra = name.encode(), struct.pack("<HHQQ", 1, 16, size, len(stream))
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 45, 0, 8, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(label), len(extra))
    central = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 45, 45, 0, 8, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(label),
                          len(extra), 0, 0, 0, 0, 0)  # fmt: skip
    before = local + label + extra + stream
    directory = central + label + extra
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(directory), len(before), 0)
    return before + directory + end


def damaged_archive(rng: Draw, arrays: dict[str, np.ndarray], texts: Mapping[str, Any]) -> bytes:
    """An npz of arrays and of JSON texts (name -> plain value), damaged in one of many ways."""
    every: dict[str, np.ndarray | bytes] = {
        **arrays,
        **{name: json_array(mutate.damaged(rng, value)) for name, value in texts.items()},
    }
    if rng.sound:
        return packed(every)
    what = rng.random()
    if what < 0.02:
        return bomb()
    if what < 0.4:
        every |= {name: json_array(value) for name, value in texts.items()}
        name = rng.choice(list(arrays))
        every[name] = damaged_array(rng, arrays[name])
    elif what < 0.5:
        every[rng.choice(list(every))] = lying_npy(rng)
    elif what < 0.55:
        every.pop(rng.choice(list(every)))
    elif what < 0.6:
        every[rng.choice(list(every))] = npy_of_pickle()
    content = packed(every, rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)))
    return mutate.damaged_bytes(rng, content) if rng.random() < 0.2 else content


def json_array(value: Any) -> np.ndarray:
    return np.frombuffer(mutate.json_text(value).encode(errors="surrogatepass"), np.uint8)


def npy_of_pickle() -> bytes:
    """An array of objects whose pickle calls the canary."""
    head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + pickled_canary()
