"""`TileFootprint`: the reads, stored results and work of one subgraph per tile, for any size of its tiles.

It is the rules of docs/contests.md as numbers: from it follow the working set and the latency of every tile size in
closed form. Rules that no tile size can satisfy are a sentence instead.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from graphopt.contests.tiling.tile_workload import TileWorkload

NOTHING: frozenset[int] = frozenset()


class TileFootprint(NamedTuple):
    """Elements and counts, as floats for compiled code. `depth` is what `k` slices, 0 without a product.

    Of operands `*_slices` counts and `*_depth` sums their depths: of a left operand that is its elements per row of the
    tile, of a right one per column. `*_used` and `*_uses` are slices that take room in fast memory: each distinct one,
    or one for every operand (`TileWorkload.shared_slices`).
    """

    width: int  # of the grid, elements
    height: int
    depth: int
    may_split: bool  # the depth may be taken in several steps
    square: int  # the width and depth that tiles must have, 0: any
    pointwise_cost: float  # per native tile
    product_cost: float
    tiles_read: float  # distinct tensors read tile by tile
    tiles_used: float
    made: float  # tensors written to slow memory
    resident: float  # elements that lie in fast memory throughout
    row_fixed: float  # of a chain: its left operand's depth, kept for a row of tiles
    column_fixed: float  # likewise, for a column
    streamed: float  # of a chain: elements per unit of depth, the same for all tiles
    row_slices: float  # left operands, read anew when the row changes
    row_depth: float
    column_slices: float  # right operands, when the column changes
    column_depth: float
    row_again: float  # those of tensors that are also read in another shape: never kept
    row_again_depth: float
    column_again: float
    column_again_depth: float
    row_uses: float
    row_uses_depth: float
    column_uses: float
    column_uses_depth: float


@dataclass
class _Reads:
    """Reads of products from outside: (tensor, depth) for each, and the parts of a chain."""

    depth: int = 0
    may_split: bool = True
    square: int = 0
    rows: list[tuple[int, int]] = field(default_factory=list)
    columns: list[tuple[int, int]] = field(default_factory=list)
    chain: tuple[int, ...] = ()  # tensors of a chain, from outside
    row_fixed: int = 0
    column_fixed: int = 0
    streamed: int = 0


def footprint(workload: TileWorkload, ops: Sequence[int], resident: Set[int] = NOTHING,
              retained: Set[int] = NOTHING) -> TileFootprint | str:  # fmt: skip
    """Of a subgraph; resident: tensors that the step before it has kept, retained: those that it keeps itself."""
    inside = {*ops}
    ephemeral = {workload.output[op] for op in ops if not inside.isdisjoint(workload.readers[workload.output[op]])}
    written = [workload.output[op] for op in ops if workload.output[op] not in ephemeral]
    wrong = _outputs(workload, ephemeral, written, retained) or _connected(workload, ops)
    if wrong:
        return wrong
    free = {*resident} | ephemeral
    products = [op for op in ops if workload.is_matmul[op]]
    reads = _products(workload, products, ephemeral, free)
    if isinstance(reads, str):
        return reads
    pointwise = [op for op in ops if not workload.is_matmul[op]]
    tiles = [tensor for op in pointwise for tensor in workload.inputs[op] if tensor not in free]
    other = [*tiles, *(tensor for tensor, _ in (*reads.rows, *reads.columns))]
    if reads.chain and (len({*reads.chain}) < len(reads.chain) or not {*reads.chain}.isdisjoint(other)):
        return "a chain of two MatMuls reads one tensor in two ways"
    width, height = workload.shape(written[0])
    once = workload.shared_slices == "once"
    return TileFootprint(
        width, height, reads.depth, reads.may_split, reads.square,
        float(sum(workload.base_costs[op] for op in pointwise)),
        float(sum(workload.base_costs[op] for op in products)),
        float(len({*tiles})), float(len({*tiles} if once else tiles)), float(len(written) - len(retained)),
        float(sum(map(workload.elements, resident)) + len(retained) * width * height),
        float(reads.row_fixed), float(reads.column_fixed), float(reads.streamed), *_cuts(reads, tiles, once),
    )  # fmt: skip


def _outputs(workload: TileWorkload, ephemeral: Set[int], written: Sequence[int], retained: Set[int]) -> str:
    if not {*retained} <= {*written}:
        tensor = min({*retained} - {*written})
        why = "is read inside it, so it passes by" if tensor in ephemeral else "is not made there"
        return f"tensor {tensor} cannot be retained: it {why}"
    outputs = [tensor for tensor in retained if not workload.readers[tensor]]
    if outputs:
        return f"tensor {outputs[0]} cannot be retained: an output of the graph has to go to slow memory"
    shapes = {workload.shape(tensor) for tensor in written}
    if len(shapes) > 1:
        sizes = " and ".join(sorted(f"{width}x{height}" for width, height in shapes))
        return f"its results do not share one grid: {sizes}"
    return ""


def _connected(workload: TileWorkload, ops: Sequence[int]) -> str:
    """Ops of a subgraph are joined by the tensors that they read or make."""
    if len(ops) == 1:
        return ""
    of: dict[int, list[int]] = {}
    for op in ops:
        for tensor in (*workload.inputs[op], workload.output[op]):
            of.setdefault(tensor, []).append(op)
    seen, todo = {ops[0]}, [ops[0]]
    while todo:
        op = todo.pop()
        for tensor in (*workload.inputs[op], workload.output[op]):
            new = [other for other in of.pop(tensor, ()) if other not in seen]
            seen.update(new)
            todo += new
    apart = {*ops} - seen
    return f"op {min(apart)} shares no tensor with the others" if apart else ""


def _products(workload: TileWorkload, products: Sequence[int], ephemeral: Set[int],
              free: Set[int]) -> _Reads | str:  # fmt: skip
    """The reads of the products of a subgraph, or why they do not go together."""
    depths = [workload.depth(op) for op in products]
    fed, feeds = _links(workload, products, ephemeral)
    torn = [op for op in products if len(feeds[op]) > 1]
    if torn:
        return f"the result of MatMul {torn[0]} is a left and a right operand"
    reads = _Reads(max(depths, default=0), len(products) <= 1)
    if len(products) == 2 and any(feeds.values()):
        return _chain(workload, sorted(products, key=lambda op: not feeds[op]), fed, feeds, free, reads)
    if len(products) > 2:
        if len({*depths}) > 1:
            return "three MatMuls or more need one depth"
        reads.square = depths[0]
    for op, depth in zip(products, depths, strict=True):
        left, right = workload.inputs[op]
        reads.rows += [(left, depth)] if left not in free else []
        reads.columns += [(right, depth)] if right not in free else []
    reads.may_split &= not fed
    return reads


def _links(workload: TileWorkload, products: Sequence[int], ephemeral: Set[int]) -> tuple[bool, dict[int, set[int]]]:
    """(whether a product reads the result of a pointwise op here, product -> sides on which other products read it)."""
    feeds: dict[int, set[int]] = {op: set() for op in products}
    fed = False
    for op in products:
        for side, tensor in enumerate(workload.inputs[op]):
            if tensor in ephemeral:
                maker = workload.producer[tensor]
                if maker in feeds:
                    feeds[maker].add(side)
                else:
                    fed = True
    return fed, feeds


def _chain(workload: TileWorkload, pair: Sequence[int], fed: bool, feeds: dict[int, set[int]], free: Set[int],
           reads: _Reads) -> _Reads:  # fmt: skip
    """Of two products of which the second reads the first's result, as example 5 has it. The first's result is as wide
    as the step of the second is deep. So its outer operand stays and its inner one passes by."""
    head, tail = pair
    depth, (left, right), (side,) = workload.depth(head), workload.inputs[head], feeds[head]
    stays, passes = (left, right) if side == 0 else (right, left)
    reads.depth, reads.may_split = workload.depth(tail), not fed
    reads.chain = tuple(tensor for tensor in (left, right) if tensor not in free)
    if stays not in free:
        reads.row_fixed, reads.column_fixed = (depth, 0) if side == 0 else (0, depth)
    reads.streamed = depth if passes not in free else 0
    other = workload.inputs[tail][1 - side]
    if other not in free:
        (reads.columns if side == 0 else reads.rows).append((other, reads.depth))
    return reads


def _cuts(reads: _Reads, tiles: Sequence[int], once: bool) -> tuple[float, ...]:
    """The fields of `TileFootprint` from `row_slices` on. once: only distinct slices take room."""
    rows, columns, pointwise = dict(reads.rows), dict(reads.columns), {*tiles}
    again = {t for t in (*rows, *columns) if (t in rows) + (t in columns) + (t in pointwise) > 1}
    found: list[float] = []
    for several in (False, True):
        for cut in (rows, columns):
            depths = [depth for tensor, depth in cut.items() if (tensor in again) is several]
            found += [float(len(depths)), float(sum(depths))]
    for used in (rows.items(), columns.items()) if once else (reads.rows, reads.columns):
        found += [float(len(used)), float(sum(depth for _, depth in used))]
    return tuple(found)
