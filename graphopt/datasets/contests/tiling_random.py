"""Random tiling problems: layers of products and pointwise ops on matrices of a few sizes, and a small core."""

from collections.abc import Sequence

import numpy as np

from graphopt.datasets.contests.tiling_generator import TilingGenerator
from graphopt.tiling.tile_workload import TileWorkload
from graphopt.utils.ranges import Ops, Seed, Share


class TilingRandom(TilingGenerator):
    """products: share of ops that are products of matrices."""

    def __init__(self, *, name: str, train: list[Ops], val: list[Ops], test: list[Ops], sizes: list[Ops],
                 products: Share, graph_seed: Seed) -> None:  # fmt: skip
        super().__init__(name=name, train=train, val=val, test=test, sizes=sizes, graph_seed=graph_seed)
        self._products = products

    def workload(self, rng: np.random.Generator, ops: int, name: str) -> TileWorkload:
        return random_workload(rng, ops, self.sizes, self._products, name)


def random_workload(
    rng: np.random.Generator, ops: int, sizes: Sequence[int], products: float, name: str
) -> TileWorkload:
    """Each op reads recent results, or new inputs of the graph where no result fits."""
    widths, heights, results = list[int](), list[int](), list[int]()
    inputs, output, costs, matmul = list[tuple[int, ...]](), list[int](), list[float](), list[bool]()

    def tensor(width: int, height: int) -> int:
        widths.append(width)
        heights.append(height)
        return len(widths) - 1

    def recent(fits: Sequence[int]) -> int | None:
        return int(fits[-1 - min(int(rng.geometric(0.5)) - 1, len(fits) - 1)]) if len(fits) else None

    for _ in range(ops):
        side, other = (int(rng.choice(sizes)) for _ in range(2))
        first = recent(results) if results and rng.random() < 0.9 else None
        first = tensor(side, other) if first is None else first
        matmul.append(bool(rng.random() < products))
        if matmul[-1]:
            right = recent([t for t in results if heights[t] == widths[first]]) if rng.random() < 0.2 else None
            right = tensor(side, widths[first]) if right is None else right
            inputs.append((first, right))
            output.append(tensor(widths[right], heights[first]))
        else:
            alike = [t for t in results if (widths[t], heights[t]) == (widths[first], heights[first]) and t != first]
            more = recent(alike) if rng.random() < 0.5 else None
            inputs.append((first,) if more is None else (first, more))
            output.append(tensor(widths[first], heights[first]))
        costs.append(float(rng.choice([100, 500, 1000, 2000, 5000])))
        results.append(output[-1])
    capacity = float(rng.choice([2.0, 3.0, 6.0, 20.0])) * 128 * 128
    return TileWorkload(
        name=name, widths=tuple(widths), heights=tuple(heights), inputs=tuple(inputs), output=tuple(output),
        base_costs=tuple(costs), is_matmul=tuple(matmul), capacity=capacity,
        bandwidth=float(rng.choice([10, 20, 50, 100])), native=(128, 128),
    )  # fmt: skip
