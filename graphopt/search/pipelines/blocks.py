"""Which items of a pipeline come before which, and which are placed as one because that never costs more.

Shape legend: N ops, M items, K blocks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csgraph, csr_array

from graphopt.core.graph import I64
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.pipelines.pipeline import Pipeline, exchange


class Blocks(NamedTuple):
    """Items that are placed as one, in the order of their first items, and what comes before what."""

    of_item: I64  # [M]
    first: csr_array  # [K, K] an entry (a, b) where block a comes before b; without cycles


def blocks(pipeline: Pipeline) -> Blocks:
    """Items that wait for each other are one block; so are those that cost nothing with their only neighbour.

    No contiguous split is lost by the former, and by the latter none that is better than all others.
    """
    first = precedence(pipeline)
    _, label = csgraph.connected_components(first, connection="strong")
    label = _merged_free(pipeline, first, _numbered(label))
    count, pairs = int(label.max(initial=-1)) + 1, first.tocoo()
    before, after = label[pairs.row], label[pairs.col]
    return Blocks(label, _ones(before[before != after], after[before != after], count))


def precedence(pipeline: Pipeline) -> csr_array:
    """[M, M] an entry (a, b) where item a comes before b.

    Where ops are marked as those of a backward pass, the forward ops of two items say which comes first: the backward
    pass mirrors them. An item of backward ops only is where its neighbours in the backward pass are, mirrored.
    """
    instance, item, items = pipeline.instance, pipeline.item, pipeline.num_items
    target = np.repeat(np.arange(len(item)), np.diff(instance.needs.ptr))
    source = instance.needs.source.astype(np.int64)
    back = backward(instance)
    late = np.ones(items, np.bool_)
    late[item[(item >= 0) & ~back]] = False  # items of backward ops only
    turned = back[source] & back[target] & (late[item[source]] | late[item[target]])
    straight = ~back[target]
    before = np.concatenate([item[source[straight]], item[target[turned]]])
    after = np.concatenate([item[target[straight]], item[source[turned]]])
    return _ones(before, after, items)


def backward(instance: SchedulingInstance) -> NDArray[np.bool_]:
    """[N] ops that their file marks as those of a backward pass."""
    attributes = instance.graph.attributes
    return np.array([bool(op.get("backward", False)) for op in attributes] or [False] * instance.graph.num_ops)


def _merged_free(pipeline: Pipeline, first: csr_array, label: I64) -> I64:
    """[M] labels, where an item of no time that deals with one other only is with that one, and one that deals with
    nobody, at no cost, with one next to it. Only where memory cannot run out."""
    flow = pipeline.stream
    if flow.weight_bytes.sum() > pipeline.kinds.capacity.min(initial=np.inf):
        return label
    free = ((flow.time == 0) & (flow.blocked == 0)).all(1) & (np.bincount(label)[label] == 1)
    beside = [set(row.tolist()) for row in np.split(*_rows(exchange(flow)))]
    before = [set(row.tolist()) for row in np.split(*_rows(csr_array(first.T)))]
    after = [set(row.tolist()) for row in np.split(*_rows(first))]
    queue, home = np.flatnonzero(free).tolist(), np.arange(len(label))
    gone = np.zeros(len(label), np.bool_)
    while queue:
        x = queue.pop()
        near = before[x] | after[x] | beside[x]
        alone = not beside[x] and not (before[x] and after[x])  # a start or an end whose transfers take no time
        if gone[x] or not near or (len(near) > 1 and not alone):
            continue
        y = min(near)
        gone[x], home[x] = True, y
        for other in near:
            for links in (before, after, beside):
                links[other].discard(x)
            if free[other]:
                queue.append(other)
    for x in range(len(home)):
        while gone[home[x]]:
            home[x] = home[home[x]]
    return _numbered(label[home])


def _rows(matrix: csr_array) -> tuple[I64, I64]:
    """What np.split makes the column numbers of each row of: entries that are not 0, none on the diagonal."""
    full = matrix.tocoo()
    kept = (full.data != 0) & (full.row != full.col)
    order = np.lexsort((full.col[kept], full.row[kept]))
    row = full.row[kept][order]
    return full.col[kept][order], np.searchsorted(row, np.arange(1, matrix.shape[0]))


def _numbered(label: I64) -> I64:
    """Labels as numbers in the order of first appearance."""
    _, place, which = np.unique(label, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(place))[which], np.int64)


def _ones(before: I64, after: I64, count: int) -> csr_array:
    pairs = coo_array((np.ones(len(before)), (before, after)), shape=(count, count)).tocsr()
    return csr_array(pairs)
