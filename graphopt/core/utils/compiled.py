"""Numba's `njit`: plain Python first, compiled where that pays, with a cache on disk that is checked before it is
believed; and how long compiling has taken.

Compiling all functions of a first call of `optimize` takes far longer than computing with them. So a function runs as
plain Python while its arguments are small, until that took a third of the compiling time. Both give the same bits.

Numba unpickles what lies in its cache folder and runs the machine code in it. Here every file ends with a digest of its
content: one that is damaged is as good as not there, and is compiled and written again.

Compiling takes up to minutes in all, reading from the cache seconds. Clocks that measure searches leave both out, and
plain Python as well (`compiling_seconds`): an answer must not depend on whether the same was run before.
"""

import hashlib
import io
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numba
import numpy as np
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.registry import CPUDispatcher
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numba import njit as njit  # for mypy: untyped functions stay untyped
else:

    def njit(*, cache: bool, nogil: bool, forceinline: bool = False) -> Callable[[Callable[..., Any]], Any]:
        """The decorator, with Numba's own options."""

        def compiled(function: Callable[..., Any]) -> Any:
            dispatcher = numba.njit(nogil=nogil, forceinline=forceinline, no_cfunc_wrapper=True)(function)
            if cache:
                _keep(dispatcher, function)
            dispatcher.__class__ = _PlainFirst
            return dispatcher

        return compiled


SMALL = 10_000  # numbers in the arguments of a call
LEAST, MOST = 0.1, 5.0  # seconds in plain Python before a function is compiled, and before all are
PATIENCE = 3e-4  # further ones for each byte of bytecode: a third of compiling it
KEPT = 0.05  # of these seconds, where compiled code is kept and only has to be read
_LOCK = "numba:compiler_lock"  # its name in Numba's events: held by a thread that compiles or reads
Part = TypeVar("Part")
Result = TypeVar("Result")
Entry = TypeVar("Entry", bound=np.generic)


class _Here(threading.local):
    """Of a thread. working: inside `shared`; plain: inside a function that runs as plain Python."""

    working = plain = False


_here = _Here()


def writable(array: NDArray[Entry]) -> NDArray[Entry]:
    """The array, or a copy where it is read-only: Numba would compile every function for such arrays too."""
    return array if array.flags.writeable else array.copy()


def shared(threads: int, work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """`work` of every part, in order, by threads: compiled loops run without the interpreter's lock. One after another
    for one thread or part, and inside the work of another call."""
    if threads == 1 or len(parts) == 1 or _here.working:
        return [work(part) for part in parts]
    return list(_pool(threads).map(work, parts))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "shared", lambda: setattr(_here, "working", True))


class _PlainFirst(CPUDispatcher):  # type: ignore[misc]
    """A function until it is compiled."""

    _cache: Any  # of Numba's dispatchers
    spent = 0.0  # seconds
    spent_by_all: ClassVar[float] = 0.0

    def __call__(self, *args: Any) -> Any:
        if _here.plain:
            return self.py_func(*args)
        if self.spent > self._patience or _PlainFirst.spent_by_all > MOST or _numbers(args) > SMALL:
            self.__class__ = CPUDispatcher  # type: ignore[assignment]
            return self(*args)
        _here.plain, since = True, time.thread_time()
        event.start_event(_LOCK)  # type: ignore[no-untyped-call]
        try:
            with np.errstate(all="ignore"):
                return _as_compiled(self.py_func(*map(_with_fields, args)))
        finally:
            event.end_event(_LOCK)  # type: ignore[no-untyped-call]
            _here.plain, spent = False, time.thread_time() - since
            self.spent += spent
            _PlainFirst.spent_by_all += spent

    @cached_property
    def _patience(self) -> float:
        """Seconds. By the length of all that is compiled with it."""
        kept = Path(getattr(getattr(self._cache, "_cache_file", None), "_index_path", ""))
        seconds = LEAST + PATIENCE * sum(map(len, _bytecode(self, {}).values()))
        return seconds * KEPT if kept.is_file() else seconds


def _bytecode(function: CPUDispatcher, found: dict[CPUDispatcher, bytes]) -> dict[CPUDispatcher, bytes]:
    """Adds that of the function, and of those that it calls."""
    if function not in found:
        code = function.py_func.__code__
        found[function] = code.co_code
        for name in code.co_names:
            called = function.py_func.__globals__.get(name)
            if isinstance(called, CPUDispatcher):
                _bytecode(called, found)
    return found


def _numbers(value: Any) -> int:
    """How many numbers there are; too many for a random generator, as a search's time does not depend on them."""
    if isinstance(value, tuple):
        return sum(map(_numbers, value))
    if isinstance(value, np.random.Generator):
        return SMALL + 1
    return value.size if isinstance(value, np.ndarray) else 1


def _with_fields(value: Any) -> Any:
    """Records with attributes, as compiled functions know them: views of the same memory."""
    if isinstance(value, tuple):
        return _like(value, map(_with_fields, value))
    if not isinstance(value, np.ndarray | np.void) or value.dtype.names is None:
        return value
    return np.asarray(value).view(_record(value.dtype))[... if isinstance(value, np.ndarray) else ()]


@cache
def _record(fields: np.dtype[np.void]) -> np.dtype[Any]:
    entries = {name: property(itemgetter(name)) for name in fields.names or ()}
    return np.dtype((type("Record", (np.void,), {**entries, "__setattr__": np.void.__setitem__}), fields))


def _as_compiled(value: Any) -> Any:
    """A compiled function's result as Python numbers."""
    if isinstance(value, tuple):
        return _like(value, map(_as_compiled, value))
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.void) else value


def _like(value: tuple[Any, ...], parts: Iterable[Any]) -> tuple[Any, ...]:
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _keep(dispatcher: Any, function: Callable[..., Any]) -> None:
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError:  # no folder that can be written
        _warn_that_nothing_is_kept()


@cache
def _warn_that_nothing_is_kept() -> None:
    warnings.warn("compiled code cannot be kept; set GRAPHOPT_CACHE to a folder that can be written", stacklevel=1)


class _Cache(FunctionCache):
    """Where code cannot be kept it is compiled again next time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        plain = self._cache_file
        base = self._impl.filename_base
        self._cache_file = _SealedFile(self._cache_path, base, plain._source_stamp)  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            warnings.warn(f"compiled code cannot be kept in {self._cache_path} ({error.strerror})", stacklevel=2)


class _SealedFile(IndexDataCacheFile):
    """The index and the data files of one function; the last bytes of each are the digest of all others."""

    def _load_index(self) -> dict[Any, str]:
        if not _whole(Path(self._index_path)):
            return {}
        found: dict[Any, str] = super()._load_index()  # type: ignore[no-untyped-call]
        return found

    def _load_data(self, name: str) -> Any:
        if not _whole(Path(self._data_path(name))):  # type: ignore[no-untyped-call]
            raise FileNotFoundError(name)  # for Numba a reason to compile
        return super()._load_data(name)  # type: ignore[no-untyped-call]

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        with super()._open_for_write(filepath) as file:
            yield content
            file.write(content.getvalue() + _seal(content.getvalue()))


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) > 32 and content[-32:] == _seal(content[:-32])


class _Stopwatch(event.Listener):
    """Runs while any thread compiles, or reads compiled code; Numba reports begin and end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._lock, self._now = threading.Lock(), now
        self._inside, self._since, self._total = 0, 0.0, 0.0

    def on_start(self, event: event.Event) -> None:
        with self._lock:
            self._since = self._now() if self._inside == 0 else self._since
            self._inside += 1

    def on_end(self, event: event.Event) -> None:
        with self._lock:
            self._inside -= 1
            self._total += self._now() - self._since if self._inside == 0 else 0.0

    def read(self) -> float:
        with self._lock:
            return self._total + (self._now() - self._since if self._inside else 0.0)


_STOPWATCH = _Stopwatch(lambda: time.perf_counter())
_PROCESSOR = _Stopwatch(lambda: time.process_time())
for _each in (_STOPWATCH, _PROCESSOR):
    event.register(_LOCK, _each)  # type: ignore[no-untyped-call]


def compiling_seconds() -> float:
    """Seconds that this process has spent on compiling, and on reading compiled code, until now."""
    return _STOPWATCH.read()


def compiling_processor_seconds() -> float:
    """The same in seconds of the processors, of all threads."""
    return _PROCESSOR.read()
