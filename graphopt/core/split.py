"""`Step`: one training step as two programs. It says which values the forward program saves, and which the backward
program computes again, in which order. It also says how many bytes are held at every moment.

A step is a graph of forward and gradients at once. Each op carries attributes: `late` (it needs a gradient, so that
only the backward program can run it), `alias` (per result: the operand whose storage it is a view of, or -1),
`returned` (per result: 1 by the forward program, 2 by the backward one, 3 by both), `fixed` (computed once and never
again: random, or with side effects), `saved` (by the compiler itself, when only time counts). The backward program
computes an early op again when one of its results is needed there and the op is not saved. It does so as late as
possible and at most once, as torch's partitioner does.

Shape legend: N ops, S storages, E reads.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I32, I64, Bool, Graph, GraphError, once_per_graph
from graphopt.core.utils.compiled import njit

FORWARD, BACKWARD = 1, 2  # bits of `returned`
STEP_ATTRIBUTES = ("late", "alias", "returned", "fixed", "saved")


class Step(NamedTuple):
    """A step as arrays. Graph inputs and weights have no storage here: they are there before and after."""

    late: Bool  # [N]
    fixed: Bool  # [N]
    choice: Bool  # [N] the op can be saved and can be computed again: it makes a storage, early, and is not fixed
    saved: Bool  # [N] by the compiler itself
    source_ptr: I64  # [N+1] ops that an op reads, without repetition
    source: I32
    read_ptr: I64  # [N+1] storages that an op reads or makes, without repetition
    read: I32
    made_ptr: I64  # [N+1] storages s of an op are made_ptr[n] .. made_ptr[n+1]-1
    num_bytes: I64  # [S]
    returned: NDArray[np.uint8]  # [S] bits FORWARD, BACKWARD
    returns: NDArray[np.uint8]  # [N] the same, of the op's results, views included
    fleeting: Bool  # [S] takes no memory unless it is saved or returned: fused kernels compute it where they read it


class Footprint(NamedTuple):
    """The cost of a split. Bytes are those that the step adds to weights and inputs."""

    forward: int  # bytes at the worst moment of the forward program
    backward: int  # the same of the backward program, gradients included
    saved: int  # bytes handed from one program to the other
    again: float  # sum of `work` over ops that run twice

    @property
    def peak(self) -> int:
        return max(self.forward, self.backward)


def is_step(graph: Graph) -> bool:
    return bool(graph.attributes) and all(set(STEP_ATTRIBUTES) <= set(a) for a in graph.attributes)


@once_per_graph
def step_of(graph: Graph) -> Step:
    """A graph as a step. Raises GraphError where its ops lack the attributes of a step's ops."""
    if not is_step(graph):
        raise GraphError(f"graph {graph.name!r} is no training step; capture one with dataset=training_step")
    n, made = graph.num_ops, graph.producer >= 0
    late, fixed, saved = (np.array([bool(a[key]) for a in graph.attributes]) for key in ("late", "fixed", "saved"))
    storage, returned = _storages(graph)
    count = int(storage.max(initial=-1)) + 1
    owner = np.zeros(count, np.int64)
    num_bytes, bits = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    returns = np.zeros(n, np.uint8)
    np.bitwise_or.at(returns, graph.producer[made], returned[made])
    mine = made & (storage >= 0)
    np.bitwise_or.at(bits, storage[mine], returned[mine])
    first = np.unique(storage[mine], return_index=True)[1]
    tensors = np.flatnonzero(mine)[first]  # the tensor that is the storage itself comes first
    owner[:], num_bytes[:] = graph.producer[tensors], graph.tensor_bytes[tensors]
    made_ptr = np.searchsorted(owner, np.arange(n + 1)).astype(np.int64)
    touched = [_touched(graph, storage, op) for op in range(n)]
    read_ptr = np.cumsum([0, *(len(t) for t in touched)]).astype(np.int64)
    ptr, source = graph.predecessors
    choice = ~late & ~fixed & (np.diff(made_ptr) > 0)
    read = np.array([s for t in touched for s in t], np.int32)
    never = np.zeros(count, np.bool_)
    return Step(late, fixed, choice, saved & choice, ptr, source, read_ptr, read, made_ptr, num_bytes, bits, returns,
                never)  # fmt: skip


def _storages(graph: Graph) -> tuple[I64, NDArray[np.uint8]]:
    """Per tensor its storage (-1: an input's) and who returns it; storages are numbered in the order they are made."""
    storage = np.full(graph.num_tensors, -1, np.int64)
    returned = np.zeros(graph.num_tensors, np.uint8)
    count = 0
    for op, attributes in enumerate(graph.attributes):
        operands = graph.operands(op)
        for place, tensor in enumerate(graph.results(op)):
            alias, returned[tensor] = int(attributes["alias"][place]), int(attributes["returned"][place]) & 3
            if not -1 <= alias < len(operands):
                raise GraphError(f"graph {graph.name!r}: op {graph.op_names[op]!r} is a view of an operand it lacks")
            storage[tensor] = count if alias < 0 else storage[operands[alias]]
            count += alias < 0
    return storage, returned


def _touched(graph: Graph, storage: I64, op: int) -> list[int]:
    seen = {int(storage[t]) for t in (*graph.operands(op), *graph.results(op))}
    return sorted(seen - {-1})


def complete(step: Step, saved: Bool) -> Bool:
    """[N] ops that are saved: of ops with a choice, the requested ones that the backward program needs; and fixed ops
    that it needs."""
    kept, _ = _needed(step, saved)
    return kept


def runs_twice(step: Step, saved: Bool) -> Bool:
    """[N] ops that both programs run."""
    kept, runs = _needed(step, saved)
    return runs & _forward_runs(step, kept)


def footprint(step: Step, saved: Bool, work: NDArray[np.float64]) -> Footprint:
    """The split that saves the ops of `saved` [N]; `work` [N] is the cost of running an op once more."""
    forward, backward, handed, again = evaluate(step, saved, work)
    return Footprint(int(forward), int(backward), int(handed), float(again))


@njit(cache=True, nogil=True)
def _needed(step: Step, saved: Bool) -> tuple[Bool, Bool]:
    """(saved indeed [N], run by the backward program [N])."""
    n = len(step.late)
    need = (step.returns & 2) > 0
    kept, runs = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    for op in range(n - 1, -1, -1):
        if not step.late[op]:
            stays = step.fixed[op] or (saved[op] and step.choice[op])
            kept[op] = need[op] and stays
            runs[op] = need[op] and not stays
        else:
            runs[op] = True
        if runs[op]:
            for e in range(step.source_ptr[op], step.source_ptr[op + 1]):
                need[step.source[e]] = True
    return kept, runs


@njit(cache=True, nogil=True)
def _forward_runs(step: Step, kept: Bool) -> Bool:
    n = len(step.late)
    runs = np.zeros(n, np.bool_)
    for op in range(n - 1, -1, -1):
        if step.late[op]:
            continue
        if kept[op] or (step.returns[op] & 1) > 0 or step.fixed[op]:
            runs[op] = True
        if runs[op]:
            for e in range(step.source_ptr[op], step.source_ptr[op + 1]):
                runs[step.source[e]] = True
    return runs


@njit(cache=True, nogil=True)
def _backward_order(step: Step, runs: Bool) -> I32:
    """Ops of the backward program: from the first late op on in the step's order, each preceded by its inputs."""
    n = len(step.late)
    order, placed = np.empty(n, np.int32), np.zeros(n, np.bool_)
    stack, pulled = np.empty(len(step.source) + n + 1, np.int32), np.empty(n, np.int32)
    count, first = 0, 0
    while first < n and not step.late[first]:
        first += 1
    for target in range(first, n + 1):
        top, found = 0, 0
        if target < n:
            if not runs[target] or placed[target]:
                continue
            stack[0] = target
            top = 1
        else:  # results of the backward program without any gradient
            for op in range(first):
                if (step.returns[op] & 2) > 0 and runs[op] and not placed[op]:
                    stack[top] = op
                    top += 1
        while top > 0:
            top -= 1
            op = stack[top]
            if placed[op]:
                continue
            placed[op] = True
            pulled[found] = op
            found += 1
            for e in range(step.source_ptr[op], step.source_ptr[op + 1]):
                if runs[step.source[e]] and not placed[step.source[e]]:
                    stack[top] = step.source[e]
                    top += 1
        order[count : count + found] = np.sort(pulled[:found])
        count += found
    return order[:count]


@njit(cache=True, nogil=True)
def _highest(step, order, stay, there, held, written):  # type: ignore[no-untyped-def]
    """Bytes at the worst moment while ops run in `order`: each allocates its storages, and storages without a later
    reader are freed, except those in `stay` [S]. there: [S] storages that exist from the beginning, `held` bytes in
    all. written: [S] storages that take memory. An op that makes others alone runs within their readers, and reads as
    late."""
    n = len(order)
    last = np.full(len(step.num_bytes), -1, np.int64)
    for i in range(n - 1, -1, -1):
        op = order[i]
        at, first, end = i, step.made_ptr[op], step.made_ptr[op + 1]
        if end > first and not written[first:end].any():
            at = max(at, last[first:end].max())
        for e in range(step.read_ptr[op], step.read_ptr[op + 1]):
            last[step.read[e]] = max(last[step.read[e]], at)
    head, behind = np.full(n, -1, np.int64), np.full(len(last), -1, np.int64)  # storages that go after a place
    for going in np.flatnonzero((last >= 0) & ~stay):
        behind[going] = head[last[going]]
        head[last[going]] = going
    highest = held
    for i in range(n):
        op = order[i]
        for s in range(step.made_ptr[op], step.made_ptr[op + 1]):
            if written[s] and not there[s]:
                held += step.num_bytes[s]
                there[s] = True
        if held > highest:
            highest = held
        gone = head[i]
        while gone >= 0:
            held -= step.num_bytes[gone] * there[gone]
            there[gone] = False
            gone = behind[gone]
    return highest


@njit(cache=True, nogil=True)
def evaluate(step, saved, work):  # type: ignore[no-untyped-def]
    """`Footprint` as a tuple, for compiled callers."""
    kept, runs = _needed(step, saved)
    first = _forward_runs(step, kept)
    used = np.zeros(len(step.num_bytes), np.bool_)
    again = 0.0
    for op in range(len(runs)):
        if runs[op]:
            if first[op]:
                again += work[op]
            for e in range(step.read_ptr[op], step.read_ptr[op + 1]):
                used[step.read[e]] = True
    stay, there = (step.returned & 1) > 0, np.zeros(len(used), np.bool_)
    handed = 0
    for maker in np.flatnonzero(kept):
        for s in range(step.made_ptr[maker], step.made_ptr[maker + 1]):
            if used[s]:
                handed += step.num_bytes[s]
                there[s] = True
    held = (step.num_bytes * (there | stay)).sum()
    ops = np.flatnonzero(first).astype(np.int32)
    written = ~step.fleeting | there | stay
    forward = _highest(step, ops, there | stay, np.zeros(len(used), np.bool_), np.int64(0), written)
    ends = (step.returned & 2) > 0
    backward = _highest(step, _backward_order(step, runs), ends | stay, there | stay, held, written | ends)
    return forward, backward, handed, again
