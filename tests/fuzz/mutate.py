"""Damage, drawn from a generator: of plain values (JSON, yaml), of texts and of bytes. Same draws, same damage."""

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

DEPTH = 100_000  # of a nest that a recursive reader cannot follow
CANARY = "fuzz_canary"  # a module that nobody may import: `tests/fuzz/canary/`
TARGETS = (f"{CANARY}.fire", f"{CANARY}.Fire", "os.system", "subprocess.run", "builtins.eval", "builtins.exec",
           "pathlib.Path.write_text", "shutil.rmtree", "numpy.load", "torch.load", 
           "importlib.import_module")  # fmt: skip
_NEST, _NAN, _HUGE = "@nest@", "@nan@", "@huge@"  # what no JSON writer writes: put in as text afterwards
_NUMBERS = (0, 1, -1, 2, 7, 255, 32768, -32769, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63,
            -(2**63) - 1, 2**64, 10**12, 10**30, 10**400, 0.5, -0.5, 1e-320, 1e18, 1e19, 1e300, 1.7e308, -1e300,
            float("nan"), float("inf"), float("-inf"))  # fmt: skip
_TEXTS = ("", " ", "x", "0", "-1", "nan", "1e999", "null", "\x00", "a\nb", "\x1b[2J\x1b[31m", "\u202e\u0301\U0001f600",
          "../../../etc/passwd",
          "/dev/zero", "/dev/stdin", "a" * 5000, "%s%n", "${oc.env:HOME}", "${a}", "[red]b[/]")  # fmt: skip


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
    return rng.choice((number, number, text, _other))(rng)


def _other(rng: Draw) -> Any:
    kinds: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": 0}, [0] * 3, [-1], {"a": [1]}, _NEST, _NAN,
                              _HUGE,
                              {"_target_": rng.choice(TARGETS)}, {"_target_": rng.choice(TARGETS), "_partial_": True},
                              list(range(1000)))  # fmt: skip
    return rng.choice(kinds)


# -- plain values: places are (container, key) pairs --


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a nest of dictionaries and lists."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        top = stack.pop()
        items: Iterator[Any] = iter(top.items()) if isinstance(top, dict) else enumerate(top)
        for key, inner in items:
            found.append((top, key))
            if isinstance(inner, dict | list):
                stack.append(inner)
    return found


def _set(rng: Draw, root: Any, spot: tuple[Any, Any]) -> None:
    spot[0][spot[1]] = nasty(rng)


def _drop(rng: Draw, root: Any, spot: tuple[Any, Any]) -> None:
    del spot[0][spot[1]]


def _retype(rng: Draw, root: Any, spot: tuple[Any, Any]) -> None:
    old = spot[0][spot[1]]
    kinds: tuple[Callable[[Any], Any], ...] = (
        lambda v: [v], lambda v: {"a": v}, lambda v: str(v)[:1000], lambda v: None, bool, lambda v: [v, v],
    )  # fmt: skip
    spot[0][spot[1]] = rng.choice(kinds)(old)


def _shift(rng: Draw, root: Any, spot: tuple[Any, Any]) -> None:
    old = spot[0][spot[1]]
    if isinstance(old, bool) or not isinstance(old, int | float):
        return _set(rng, root, spot)
    other = rng.choice((1, 1.0, 0.5)) if abs(old) > 1e300 else rng.choice((old * 0.5, float(old)))
    spot[0][spot[1]] = rng.choice((old + 1, old - 1, -old, old * 10**9, other, old * 2**62))
    return None


def _confuse(rng: Draw, root: Any, spot: tuple[Any, Any]) -> None:
    """A value from elsewhere in the same nest."""
    other = rng.choice(places(root))
    spot[0][spot[1]] = json.loads(json.dumps(other[0][other[1]]))


def _grow(rng: Draw, root: Any, spot: tuple[Any, Any]) -> None:
    """One item more: twice the same, or an unknown key."""
    inner = spot[0][spot[1]]
    if isinstance(inner, list):
        inner.append(rng.choice(inner) if inner and rng.random() < 0.7 else nasty(rng))
    elif isinstance(inner, dict):
        inner[rng.choice(("_target_", "x", "", "name", "\x1b[2J", "0"))] = (
            rng.choice(TARGETS) if rng.random() < 0.5 else nasty(rng)
        )
    elif isinstance(inner, str):
        spot[0][spot[1]] = inner + rng.choice(_TEXTS)


def _shuffle(rng: Draw, root: Any, spot: tuple[Any, Any]) -> None:
    inner = spot[0][spot[1]]
    if isinstance(inner, list):
        rng.shuffle(inner)


_CHANGES = (_set, _set, _set, _drop, _retype, _shift, _shift, _confuse, _grow, _shuffle)


def damaged(rng: Draw, value: Any) -> Any:
    """A copy of a plain value with one to four changes (one in twenty: none). The value itself is left alone."""
    holder = [json.loads(json.dumps(value))]
    if rng.sound:
        return holder[0]
    for _ in range(0 if rng.random() < 0.05 else rng.choice((1, 1, 1, 2, 4))):
        spots = places(holder)
        if not spots:
            break
        rng.choice(_CHANGES)(rng, holder, rng.choice(spots))
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
    return (
        {_NEST: _nest(1000), _NAN: float("nan"), _HUGE: 10**400}.get(value, value) if isinstance(value, str) else value
    )


def _nest(depth: int) -> list[Any]:
    nest: list[Any] = []
    for _ in range(depth):
        nest = [nest]
    return nest


# -- texts and bytes --

_TOKEN = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\w+|[^\w\s]")


def damaged_text(rng: Draw, source: str) -> str:
    """A text with one to three changes of its tokens and lines."""
    for _ in range(0 if rng.sound else rng.choice((1, 1, 2, 3))):
        source = rng.choice((_token, _token, _token, _lines, _cut_text, _nested))(rng, source)
    return source


def _token(rng: Draw, source: str) -> str:
    found = list(_TOKEN.finditer(source))
    if not found:
        return source + text(rng)
    at, other = rng.choice(found), rng.choice(found)
    put = rng.choice(
        (str(number(rng)) if rng.random() < 0.9 else "9" * 5000, text(rng), other.group(), "", at.group() * 2)
    )
    return source[: at.start()] + put + source[at.end() :]


def _lines(rng: Draw, source: str) -> str:
    lines = source.splitlines(keepends=True) or [""]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(4)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(other, lines[at])
    elif what == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines.insert(at, text(rng) + "\n")
    return "".join(lines)


def _cut_text(rng: Draw, source: str) -> str:
    return source[: rng.randrange(len(source) + 1)]


def _nested(rng: Draw, source: str) -> str:
    """A bracket many times over."""
    at = rng.randrange(len(source) + 1)
    pairs = [m.start() for m in re.finditer(r"[({\[<]", source)]
    if pairs:
        at = rng.choice(pairs)
    opening = source[at : at + 1] or "("
    return source[:at] + opening * rng.choice((2, 100, DEPTH)) + source[at:]


def damaged_bytes(rng: Draw, content: bytes) -> bytes:
    """Bytes with bits flipped, cut short, cut out, repeated, or replaced as a whole."""
    if rng.sound:
        return content
    if rng.random() < 0.03:
        return rng.choice(
            (
                b"",
                b"\x00" * 64,
                b"PK\x03\x04",
                b"\x1f\x8b",
                bytes(rng.randrange(256) for _ in range(200)),
                b"{}",
                b"\xff\xfe",
            )
        )
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
            buffer[at : at + length] = bytes(rng.randrange(256) for _ in range(length))
    return bytes(buffer)


# -- bombs --


@lru_cache(maxsize=4)
def deflated_zeros(megabytes: int) -> bytes:
    """A deflate stream that unpacks to so many megabytes of zeros; a thousandth of that long, and quick to make."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * megabytes + packer.flush()


def gzip_bomb(megabytes: int) -> bytes:
    """A gzip file that unpacks hugely. Its check sum is wrong, which only he learns who has unpacked it all."""
    return gzip.compress(b"")[:10] + deflated_zeros(megabytes) + bytes(8)
