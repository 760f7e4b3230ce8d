"""Small programs whose times give the costs of operations, reads, writes and loops, as TorchInductor compiles them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch._inductor import config, cpu_vec_isa

from graphopt.graphs.readers.pytorch.program_file import save_program
from graphopt.hardware.inductor.captured import capture_step
from graphopt.hardware.inductor.lowering import compile_source, lower

TERMS = 8  # of a sum, each of which evaluates an operation once
ELEMENTS = 1 << 14  # 64 KiB
TRUTHS = 1 << 18  # more truth values than a processor remembers from the run before
ROWS, COLUMNS = 256, 512  # of reduced matrices
SIZES = tuple(1 << power for power in range(16, 27, 2))  # bytes that are copied or written
WIDTH, CHOSEN = 64, 2048  # of gathered rows
SIDE = 256  # of multiplied matrices
PARTS = 1 << 12  # rows that end in a vector that is not full
LANES = cpu_vec_isa.pick_vec_isa().nelements() if cpu_vec_isa.valid_vec_isa_list() else 1
EXTENT = {"terms": TERMS, "elements": ELEMENTS, "truths": TRUTHS, "rows": ROWS, "columns": COLUMNS, "width": WIDTH,
          "chosen": CHOSEN, "side": SIDE, "parts": PARTS, "lanes": LANES}  # fmt: skip

Example = tuple[Callable[..., list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Probe:
    """make: a function and its inputs. scalar: without vectorised loops."""

    name: str
    make: Callable[[], Example]
    scalar: bool = False


def summed(term: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Example]:
    """The sum over TERMS shifted inputs."""

    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        total = term(x + 0.5, y)
        for i in range(1, TERMS):
            total = total + term(x + (i + 1) / 2, y)
        return [total]

    return lambda: (run, [torch.rand(ELEMENTS) + 0.1, torch.rand(ELEMENTS) + 1.5])


Term = Callable[[Tensor, Tensor], Tensor]
PLAIN = "plain"
TERM: dict[str, Term] = {
    PLAIN: lambda x, y: x,
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "truediv": lambda x, y: x / y, "maximum": torch.maximum, "minimum": torch.minimum,
    "where": lambda x, y: torch.where(x > y, x, y),
    "neg": lambda x, y: -x, "abs": lambda x, y: x.abs(), "square": lambda x, y: x.square(),
    "reciprocal": lambda x, y: x.reciprocal(), "sqrt": lambda x, y: x.sqrt(), "rsqrt": lambda x, y: x.rsqrt(),
    "exp": lambda x, y: x.exp(), "log": lambda x, y: x.log(), "log1p": lambda x, y: x.log1p(),
    "sigmoid": lambda x, y: x.sigmoid(), "tanh": lambda x, y: x.tanh(), "erf": lambda x, y: x.erf(),
    "sin": lambda x, y: x.sin(), "cos": lambda x, y: x.cos(), "floor": lambda x, y: x.floor(),
    "pow": lambda x, y: x**y, "exp2": lambda x, y: x.exp2(), "expm1": lambda x, y: x.expm1(),
    "log2": lambda x, y: x.log2(), "log10": lambda x, y: x.log10(), "tan": lambda x, y: x.tan(),
    "asin": lambda x, y: (x * 0.1).asin(), "acos": lambda x, y: (x * 0.1).acos(), "atan": lambda x, y: x.atan(),
    "atan2": torch.atan2, "sinh": lambda x, y: x.sinh(), "cosh": lambda x, y: x.cosh(), "hypot": torch.hypot,
    "erfc": lambda x, y: x.erfc(), "erfinv": lambda x, y: (x * 0.1).erfinv(), "lgamma": lambda x, y: x.lgamma(),
    "digamma": lambda x, y: x.digamma(), "fmod": torch.fmod, "remainder": torch.remainder,
    "trunc": lambda x, y: x.trunc(), "round": lambda x, y: x.round(),
}  # fmt: skip


def probes() -> Iterator[Probe]:
    for mode, scalar in (("vector", False), ("scalar", True)):
        for name, term in TERM.items():
            yield Probe(f"{mode} {name}", summed(term), scalar)
        for name, kind in (("plain", torch.float32), ("wide", torch.int64)):
            yield Probe(f"{mode}_whole {name}", partial(_compared, kind), scalar)
        yield Probe(f"{mode}_truths plain", partial(_of_one, lambda x: x + 1.0), scalar)
        for values, limit in (("truths", 2.0), ("missed", 0.5)):
            yield Probe(f"{mode}_{values} write", partial(_of_one, partial(torch.lt, other=limit)), scalar)
            yield Probe(f"{mode}_{values} read", partial(_of_one, _chosen, limit), scalar)
    yield from _traffic()
    yield from _rows()
    yield from _reductions()
    yield from _gathering()
    for nests in (1, 9):
        yield Probe(f"nests {nests}", partial(_several, nests))
    yield Probe("products", lambda: (lambda x, y: [x @ y], [torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)]))


def _several(count: int) -> Example:
    """So many loops of a few elements."""
    return lambda *xs: [x + 1.0 for x in xs], [torch.rand(16 + 16 * k) for k in range(count)]


def _of_one(run: Callable[[Tensor], Tensor], limit: float | None = None) -> Example:
    """Of numbers between 0 and 1; of the truth values whether they are below the limit, where one is given."""
    given = torch.rand(TRUTHS)
    return lambda x: [run(x)], [given if limit is None else given < limit]


def _chosen(x: Tensor) -> Tensor:
    return torch.where(x, 1.0, 2.0)


def _compared(kind: torch.dtype) -> Example:
    """How many of TERMS numbers each element is not."""

    def run(x: Tensor) -> list[Tensor]:
        total = (x != 0).float()
        for i in range(1, TERMS):
            total = total + (x != i).float()
        return [total]

    return run, [torch.randint(0, TERMS, (ELEMENTS,)).to(kind)]


def _rows() -> Iterator[Probe]:
    """Rows of two vectors, and of an element less: written twice, and read in between."""

    def kept(width: int) -> Example:
        def run(x: Tensor, shift: Tensor) -> list[Tensor]:
            y = x + shift
            return [y, y - y.amax(-1, keepdim=True)]

        return run, [torch.rand(PARTS, width), torch.rand(width)]

    yield Probe("rows whole", partial(kept, 2 * LANES))
    yield Probe("rows short", partial(kept, 2 * LANES - 1))


def _traffic() -> Iterator[Probe]:
    def copied(count: int) -> Example:
        return lambda x: [x + 1.0], [torch.rand(count)]

    def filled(count: int) -> Example:
        return lambda x: [x.expand(count) + 1.0], [torch.rand(1)]

    for size in SIZES:
        yield Probe(f"copy {size}", partial(copied, size // 4))
        yield Probe(f"fill {size}", partial(filled, size // 4))


def _reductions() -> Iterator[Probe]:
    def along(reduce: Callable[..., Tensor], dim: int) -> Example:
        return lambda x: [reduce(x, dim)], [torch.rand(ROWS, COLUMNS)]

    every: dict[str, Callable[..., Tensor]] = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}
    for name, reduce in every.items():
        yield Probe(f"inner {name}", partial(along, reduce, -1))
        yield Probe(f"outer {name}", partial(along, reduce, 0))
    yield Probe("inner welford_reduce", lambda: (lambda x: [torch.var(x, -1)], [torch.rand(8, ROWS * COLUMNS // 8)]))


def _gathering() -> Iterator[Probe]:
    def gathered(run: Callable[..., Tensor], count: int = CHOSEN) -> Example:
        return lambda x, i: [run(x, i)], [torch.rand(CHOSEN, WIDTH), torch.randint(0, CHOSEN, (count,))]

    yield Probe("gathered plain", partial(gathered, lambda x, i: x + 1.0))
    yield Probe("gathered rows", partial(gathered, lambda x, i: x[i] + 1.0))
    yield Probe("gathered elements", partial(gathered, lambda x, i: x.flatten()[i] + 1.0, CHOSEN * WIDTH))
    yield Probe("gathered added", partial(gathered, lambda x, i: torch.zeros_like(x).index_add(0, i, x)))


def built(probe: Probe, folder: Path) -> tuple[str, str, str]:
    """Compiles a probe: the module's name and path, and the path of its program file."""
    torch.manual_seed(0)
    program = capture_step(*probe.make())
    path = folder / f"{probe.name.replace(' ', '_')}.program.json.gz"
    save_program(path, program)
    with config.patch({"cpp.simdlen": 1} if probe.scalar else {}):
        lowered = lower(program, {}, {})
    source = compile_source(lowered)
    return source.stem, str(source), str(path)
