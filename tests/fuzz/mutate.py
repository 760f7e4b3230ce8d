"""Damage, drawn from a generator: of nests of values (JSON, arrays, protobuf messages), of texts, bytes and archives.
Same draws, same damage."""

import copy
import gzip
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, MutableSequence
from functools import lru_cache, singledispatch
from typing import Any

import numpy as np
from google.protobuf.message import Message

DEPTH = 100_000  # of a nest that a recursive reader cannot follow
BOMB = 8000  # megabytes: more than a case may use
CANARY = "fuzz_canary"  # a module that nobody may import: `tests/fuzz/canary/`
PICKLE = f"c{CANARY}\nfire\n(S'pickle'\ntR.".encode()  # calls the canary when it is loaded
TARGETS = (f"{CANARY}.fire", f"{CANARY}.Fire", "os.system", "subprocess.run", "builtins.eval", "builtins.exec",
           "pathlib.Path.write_text", "shutil.rmtree", "numpy.load", "torch.load", 
           "importlib.import_module")  # fmt: skip
_NEST, _NAN, _HUGE = "@nest@", "@nan@", "@huge@"  # what no JSON writer writes: put in as text afterwards
_NUMBERS = (0, 1, -1, 2, 7, 255, 32768, -32769, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63,
            -(2**63) - 1, 2**64, 10**12, 10**30, 10**400, 0.5, -0.5, 1e-320, 1e18, 1e19, 1e300, 1.7e308, -1e300,
            float("nan"), float("inf"), float("-inf"))  # fmt: skip
_TEXTS = ("", " ", "x", "0", "-1", "nan", "1e999", "null", "\x00", "a\nb", "\x1b[2J\x1b[31m",
          "\u202e\u0301\U0001f600", "../../../etc/passwd", "/dev/zero", "/dev/stdin", "a" * 5000, "%s%n",
          "${oc.env:HOME}", "${a}", "[red]b[/]")  # fmt: skip
_DTYPES = ("int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex128", "bool",
           "U3", "S3", "M8[s]", ">i4")  # fmt: skip


class Draw(random.Random):
    """A generator of damage. sound: it does none, so that what is read is what was made."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(f"{name} {seed}")
        self.sound = seed < 0


def number(rng: Draw) -> Any:
    """A number that something may not be made for."""
    return rng.choice(_NUMBERS)


def text(rng: Draw) -> str:
    """A text that something may not be made for."""
    return rng.choice(_TEXTS)


def nasty(rng: Draw) -> Any:
    """Any plain value."""
    target = {"_target_": rng.choice(TARGETS)}
    others: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": 0}, [0] * 3, [-1], {"a": [1]}, _NEST,
                               _NAN, _HUGE, target, target | {"_partial_": True}, list(range(1000)))  # fmt: skip
    return rng.choice((rng.choice(_NUMBERS), rng.choice(_NUMBERS), rng.choice(_TEXTS), rng.choice(others)))


# --- Another value of the same kind.


@singledispatch
def shifted(old: Any, rng: Draw) -> Any:
    """A value like the old one, by its type."""
    return nasty(rng)


@shifted.register
def _(old: int | float, rng: Draw) -> Any:
    if isinstance(old, bool):
        return nasty(rng)
    other = rng.choice((1, 1.0, 0.5)) if abs(old) > 1e300 else rng.choice((old * 0.5, float(old)))
    return rng.choice((old + 1, old - 1, -old, old * 10**9, other, old * 2**62, rng.randrange(-3, 30), number(rng)))


@shifted.register
def _(old: str, rng: Draw) -> str:
    return rng.choice((text(rng), old + text(rng), old[:-1]))


@shifted.register
def _(old: bytes, rng: Draw) -> bytes:
    return rng.choice((old[:-1], old * 2, b"\xff" * 8, text(rng).encode(), damaged_bytes(rng, old)))


@shifted.register
def _(old: np.ndarray, rng: Draw) -> np.ndarray:
    """The array with an other type, shape, order or values."""
    flat = old.copy().reshape(-1)
    with np.errstate(all="ignore"):
        try:
            match rng.randrange(8):
                case 0:
                    return old.astype(rng.choice(_DTYPES))
                case 1:
                    return old.reshape(rng.choice(((-1,), (-1, 1), (1, -1), (1, -1, 1))))
                case 2:
                    return old[: rng.randrange(len(old) + 1)] if old.ndim else np.stack([old, old])
                case 3:
                    return np.concatenate([old, old[: rng.randrange(1, len(old) + 1)]])
                case 4:
                    return rng.choice(
                        (np.zeros(0, old.dtype), np.zeros((), old.dtype), np.array("x"), np.zeros((0, 3)))
                    )
            for _ in range(rng.choice((1, 1, 3))):
                at = rng.randrange(len(flat))
                flat[at] = rng.choice((-1, -2, 0, 1, int(flat[at]) + 1, len(flat), 127, number(rng)))
            return flat.reshape(old.shape)
        except (ValueError, TypeError, OverflowError, IndexError):
            return old[::-1].copy() if old.ndim else old


# --- Nests: of dictionaries and lists, and of protobuf messages and their fields. A place is (container, key).


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a nest."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, Message):
            items: Any = ((field.name, inner) for field, inner in top.ListFields())
        else:
            items = top.items() if isinstance(top, Mapping) else enumerate(top)
        for key, inner in items:
            found.append((top, key))
            if isinstance(inner, Mapping | MutableSequence | Message) or _repeated(inner):
                stack.append(inner)
    return found


def _repeated(value: Any) -> bool:
    """Whether it is what a protobuf message has for a list."""
    return type(value).__name__.startswith("Repeated")


def _change(rng: Draw, root: Any, holder: Any, key: Any) -> None:
    """Of one place. Raises what a protobuf message does that cannot hold a value."""
    old = getattr(holder, key) if isinstance(holder, Message) else holder[key]
    other, at = rng.choice(places(root))
    elsewhere = copy.deepcopy(getattr(other, at) if isinstance(other, Message) else other[at])
    unknown = rng.choice(("_target_", "x", "", "name", "\x1b[2J", "0"))
    match rng.randrange(10):
        case 0 if isinstance(holder, Message):
            holder.ClearField(key)
        case 0:
            del holder[key]
        case 1 | 2:
            _set(holder, key, shifted(old, rng))
        case 3:
            kinds: tuple[Callable[[Any], Any], ...] = (
                lambda v: [v], lambda v: {"a": v}, lambda v: str(v)[:1000], lambda v: None, lambda v: [v, v],
            )  # fmt: skip
            _set(holder, key, rng.choice(kinds)(old))
        case 4:
            _set(holder, key, elsewhere)
        case 5 if isinstance(old, dict):
            old[unknown] = rng.choice((rng.choice(TARGETS), nasty(rng)))
        case 5 | 6 if (isinstance(old, list) or _repeated(old)) and len(old):
            old.append(rng.choice(old) if rng.random() < 0.7 else nasty(rng))
        case 7 if isinstance(old, list):
            rng.shuffle(old)
        case _:
            _set(holder, key, shifted(old, rng) if isinstance(holder, Message) or _repeated(holder) else nasty(rng))


def _set(holder: Any, key: Any, value: Any) -> None:
    if isinstance(value, Message):
        (getattr(holder, key) if isinstance(holder, Message) else holder[key]).CopyFrom(value)
    elif isinstance(holder, Message):
        setattr(holder, key, value)
    else:
        holder[key] = value


def damaged(rng: Draw, value: Any) -> Any:
    """A copy of a nest with one to four changes (one in twenty: none). The nest itself is left alone."""
    holder = [copy.deepcopy(value)]
    changes = 0 if rng.sound or rng.random() < 0.05 else rng.choice((1, 1, 1, 2, 4))
    for _ in range(20):
        if not changes or not (spots := places(holder)):
            break
        try:
            _change(rng, holder, *rng.choice(spots))
            changes -= 1
        except (ValueError, TypeError, AttributeError, OverflowError):
            continue  # the field of a message cannot hold that
    return holder[0] if holder else None


def json_text(value: Any) -> str:
    """JSON of a damaged value, with what `json` would not write: deep nests, NaN, numbers of 5,000 digits."""
    out = json.dumps(value)
    for mark, put in ((_NEST, "[" * DEPTH + "]" * DEPTH), (_NAN, "NaN"), (_HUGE, "9" * 5000)):
        out = out.replace(f'"{mark}"', put)
    return out


def plain(value: Any) -> Any:
    """The same for readers of values, not of texts: nests of a thousand levels, so that they can be built at all."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    nest: list[Any] = []
    for _ in range(1000 if value == _NEST else 0):
        nest = [nest]
    marks = {_NEST: nest, _NAN: float("nan"), _HUGE: 10**400}
    return marks.get(value, value) if isinstance(value, str) else value


# --- Texts and bytes.


def damaged_text(rng: Draw, source: str) -> str:
    """A text with one to three changes of its tokens and lines."""
    for _ in range(0 if rng.sound else rng.choice((1, 1, 2, 3))):
        source = rng.choice((_token, _token, _token, _lines, _cut, _nested))(rng, source)
    return source


def _token(rng: Draw, source: str) -> str:
    found = list(re.finditer(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\w+|[^\w\s]", source))
    if not found:
        return source + text(rng)
    at, other = rng.choice(found), rng.choice(found)
    some = str(number(rng)) if rng.random() < 0.9 else "9" * 5000
    put = rng.choice((some, text(rng), other.group(), "", at.group() * 2))
    return source[: at.start()] + put + source[at.end() :]


def _lines(rng: Draw, source: str) -> str:
    lines = source.splitlines(keepends=True) or [""]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    line = lines[at]
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, line)
        case 2:
            lines[at], lines[other] = lines[other], line
        case _:
            lines.insert(at, text(rng) + "\n")
    return "".join(lines)


def _cut(rng: Draw, source: str) -> str:
    return source[: rng.randrange(len(source) + 1)]


def _nested(rng: Draw, source: str) -> str:
    """A bracket many times over."""
    at = rng.choice([m.start() for m in re.finditer(r"[({\[<]", source)] or [rng.randrange(len(source) + 1)])
    return source[:at] + (source[at : at + 1] or "(") * rng.choice((2, 100, DEPTH)) + source[at:]


def damaged_bytes(rng: Draw, content: bytes) -> bytes:
    """Bytes with bits flipped, cut short, cut out, repeated, or replaced as a whole."""
    if rng.sound:
        return content
    if rng.random() < 0.03:
        return rng.choice((b"", bytes(64), b"PK\x03\x04", b"\x1f\x8b", rng.randbytes(200), b"{}", b"\xff\xfe"))
    buffer = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, length = rng.randrange(len(buffer) + 1), rng.randrange(1, 9)
        what = rng.randrange(5)
        if what <= 1 and at < len(buffer):
            buffer[at] ^= 1 << rng.randrange(8)
        elif what == 2:
            del buffer[at : len(buffer) if rng.random() < 0.3 else at + length]
        elif what == 3:
            buffer[at:at] = buffer[at : at + length]
        else:
            buffer[at : at + length] = rng.randbytes(length)
    return bytes(buffer)


def json_file(rng: Draw, value: Any) -> bytes:
    """JSON of which a value is damaged, now and then the bits."""
    return _rarely_damaged(rng, json_text(damaged(rng, value)))


def text_file(rng: Draw, source: str) -> bytes:
    """A text of which tokens and lines are damaged, now and then the bits."""
    return _rarely_damaged(rng, damaged_text(rng, source))


def _rarely_damaged(rng: Draw, source: str) -> bytes:
    content = source.encode(errors="surrogatepass")
    return damaged_bytes(rng, content) if rng.random() < 0.1 else content


# --- Archives, and what unpacks to more than a machine has.


def damaged_npz(rng: Draw, arrays: Mapping[str, np.ndarray], texts: Mapping[str, Any]) -> bytes:
    """An npz of arrays and of JSON texts, damaged in one of many ways."""
    parts = {name: npy(array) for name, array in arrays.items()} | {n: json_npy(value) for n, value in texts.items()}
    what = 0.1 if rng.sound else rng.random()
    name = rng.choice(sorted(arrays if what < 0.4 else texts if what < 0.8 else parts))
    if rng.sound or what < 0.02:
        return npz(parts) if rng.sound else bomb("texts.npy", npy_head("'|u1'", f"({BOMB << 20},)"))
    if what < 0.8:
        parts[name] = npy(shifted(arrays[name], rng)) if what < 0.4 else json_npy(damaged(rng, texts[name]))
    elif what < 0.85:
        parts.pop(name)
    elif what < 0.95:
        parts[name] = rng.choice((lying_npy(rng), npy_head("'|O'", "(1,)") + PICKLE))
    content = npz(parts, rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)))
    return damaged_bytes(rng, content) if rng.random() < 0.2 else content


def npz(parts: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    return zipped({f"{name}.npy": part for name, part in parts.items()}, method)


def zipped(parts: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def json_npy(value: Any) -> bytes:
    return npy(np.frombuffer(json_text(value).encode(errors="surrogatepass"), np.uint8))


def npy_head(kind: str, shape: str, version: bytes = b"\x01\x00", order: str = "False", length: int = 0) -> bytes:
    """The start of an array's file, true or not. length: that it states; 0: its own."""
    head = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", length or len(head))
    return b"\x93NUMPY" + version + size + head


def lying_npy(rng: Draw) -> bytes:
    """The start of an array that says it is large, of a strange type, or of objects."""
    shapes = ("(10**12,)", "(1000000000000,)", f"({2**62}, 8)", "(-1,)", "(3000000000,)", f"{(1,) * 40}", "(True,)",
              "(1.5,)", "'x'")  # fmt: skip
    kinds = ("'<i8'", "'|u1'", "'|O'", "'<U1000000'", "'V9999999'", "'x'", "[('a','<i8')]", "__import__('os')")
    versions = (b"\x01\x00", b"\x02\x00", b"\x09\x00")
    return npy_head(rng.choice(kinds), rng.choice(shapes), rng.choice(versions), rng.choice(("False", "True", "0")),
                    rng.choice((0, 0, 2, 60_000))) + PICKLE  # fmt: skip


@lru_cache(maxsize=4)
def deflated_zeros(megabytes: int) -> bytes:
    """A deflate stream that unpacks to so many megabytes of zeros; a thousandth of that long, and quick to make."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * megabytes + packer.flush()


def gzip_bomb(megabytes: int = BOMB) -> bytes:
    """A gzip file that unpacks hugely. Its check sum is wrong, which only he learns who has unpacked it all."""
    return gzip.compress(b"")[:10] + deflated_zeros(megabytes) + bytes(8)


def bomb(name: str, start: bytes = b"") -> bytes:
    """A zip archive of one file that starts so, small on disk, `BOMB` megabytes unpacked, its check sum wrong."""
    block = b"\x00" + struct.pack("<HH", len(start), len(start) ^ 0xFFFF) + start  # bytes as they are, not the last
    stream, size, label = block + deflated_zeros(BOMB), len(start) + (BOMB << 20), name.encode()
    extra = struct.pack("<HHQQ", 1, 16, size, len(stream))
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 45, 0, 8, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(label), len(extra))
    central = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 45, 45, 0, 8, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(label),
                          len(extra), 0, 0, 0, 0, 0)  # fmt: skip
    before, directory = local + label + extra + stream, central + label + extra
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(directory), len(before), 0)
    return before + directory + end
