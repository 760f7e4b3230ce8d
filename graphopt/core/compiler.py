"""A compiler's own decisions about a graph, and its settings that a task may decide for a whole graph.

Readers of compilers' own graphs (`graphopt.hardware.inductor`) note `stored` in the attributes of every op that the
compiler can as well compute where it is read. Knobs are declared here: a file can set nothing else of a compiler.
Equal: the same operators in the same precision. Outputs are nearly always the same bit for bit, which `cost=inductor`
checks. A sum may be taken in other parts, and a value of 16 bits is rounded between two kernels. Close: arithmetic
changes, so a user has to allow it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from graphopt.core.graph import Bool, Graph, once_per_graph

STORED = "stored"  # attribute of ops


class CompilerChoice(NamedTuple):
    """free: [N] ops that can be stored or inlined. inline: [N] those of them that the compiler inlines by default."""

    free: Bool
    inline: Bool


@once_per_graph
def compiler_choice(graph: Graph) -> CompilerChoice | None:
    """The compiler's default decision; None for graphs that no compiler was asked about."""
    said = [attributes.get(STORED) for attributes in graph.attributes]
    free = np.array([value is not None for value in said], np.bool_)
    if not free.any():
        return None
    return CompilerChoice(free, np.array([value is False for value in said], np.bool_))


Numerics = Literal["equal", "close"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Knob:
    """option: of torch._inductor.config. values: choice k is values[k]; the first, None, leaves the option alone.
    compiles: the option counts when generated source is compiled, not only when it is written. device: whose code it
    changes; None: that of all."""

    name: str
    option: str
    values: tuple[Any, ...]
    numerics: Numerics
    compiles: bool = False
    device: Device | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the choices."""
        return ("default", *map(str, self.values[1:]))


KNOBS = (
    Knob("reads_threshold", "realize_reads_threshold", (None, 1, 2, 16), "equal"),
    Knob("opcount_threshold", "realize_opcount_threshold", (None, 12, 100), "equal"),
    Knob("acc_reads_threshold", "realize_acc_reads_threshold", (None, 4), "equal"),
    Knob("simdlen", "cpp.simdlen", (None, 256), "close", compiles=True, device="cpu"),  # sums are of other parts
    Knob("decompose_tanh", "cpp.use_decompose_tanh", (None, True), "close", device="cpu"),
    Knob("two_step_variance", "cpp.use_two_step_variance_threshold", (None, 1 << 30), "close", device="cpu"),
    Knob("contract", "cpp.enable_floating_point_contract_flag", (None, "fast"), "close", compiles=True, device="cpu"),
    Knob("combo_kernels", "combo_kernels", (None, True), "equal", device="cuda"),  # loops without a common value
    Knob("nd_tiling", "triton.prefer_nd_tiling", (None, True), "equal", device="cuda"),
    Knob("persistent_reductions", "triton.persistent_reductions", (None, False), "close", device="cuda"),
    Knob("split_reductions", "split_reductions", (None, False), "close", device="cuda"),
    Knob("cooperative_reductions", "triton.cooperative_reductions", (None, True), "close", device="cuda"),
    Knob("pointwise_autotune", "max_autotune_pointwise", (None, True), "close", device="cuda"),  # more block sizes
)


def knobs(numerics: Numerics | None, device: Device = "cpu") -> tuple[Knob, ...]:
    """Those of a device's code that leave numbers equal, with `close` all; none for None."""
    return tuple(knob for knob in KNOBS
                 if knob.device in (None, device) and (numerics == "close" or knob.numerics == numerics))  # fmt: skip


def options(settings: Mapping[str, int], compiling: bool = False) -> dict[str, Any]:
    """Options of the compiler and their values, from settings: knob -> choice; compiling: only options that matter
    after the source is written. Raises ValueError for an unknown knob or choice."""
    declared = {knob.name: knob for knob in KNOBS}
    for name, choice in settings.items():
        if name not in declared or not 0 <= choice < len(declared[name].values):
            raise ValueError(f"there is no choice {str(choice)[:20]} of a knob {name[:50]!r}")
    return {declared[name].option: declared[name].values[choice] for name, choice in settings.items()
            if choice and (declared[name].compiles or not compiling)}  # fmt: skip
