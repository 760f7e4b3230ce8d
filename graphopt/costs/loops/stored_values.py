"""Which values TorchInductor stores under a plan: what is asked of it, and its own rules (torch 2.13,
`GraphLowering.run_node`, `StorageBox`) where nothing is, for these depend on what was stored before."""

from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.costs.loops.loop_bodies import Bodies

LARGEST_TREE = 150  # of an inlined expression, see graphopt.inductor.hooks
TOO_LARGE = 100  # operations that are stored even if inlining was asked for


@dataclass(frozen=True, slots=True)
class Rules:
    """reads: buffers that a value with several readers may read without being stored. size: operations it may take.
    gathered: reads of a value with one reader."""

    reads: int = 4
    size: int = 50
    gathered: int = 12


def stored_loops(bodies: Bodies, asked: Mapping[str, bool], rules: Rules) -> int:
    """Bits of the loops with a choice that are stored. asked: op -> whether it is to be."""
    of: dict[str, list[int]] = {}
    for loop in bodies.bit:
        of.setdefault(bodies.loops[loop].op, []).append(loop)
    stored = 0
    known = 0  # loops that exist by now: later ones cannot be read
    for hint in bodies.program.hints:
        for loop in of.get(hint.op, ()):
            bit = bodies.bit[loop]
            if not stored & bit and _stores(bodies, loop, stored, asked.get(hint.op), hint.kind, rules):
                stored |= bit
            known |= bit
    return stored


def _stores(bodies: Bodies, loop: int, stored: int, asked: bool | None, kind: str, rules: Rules) -> bool:
    if kind == "made" and asked:
        return True
    body = bodies.body(loop, stored)
    if kind == "made":
        return body.size > (max(TOO_LARGE, rules.size) if asked is None else TOO_LARGE)
    if asked is False:
        return False
    if kind in ("reuse", "spread"):
        return body.heavy or body.size > rules.size or (kind == "reuse" and len(body.reads) > rules.reads)
    several = len(body.reads) > 1
    return several and (kind == "will" or len(body.reads) > rules.gathered or body.size > rules.size)
