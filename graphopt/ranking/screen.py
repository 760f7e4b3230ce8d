"""A filter in front of a compiler: of what was lowered, what is worth compiling by predicted time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt.measure.build_pipeline import Keep
from graphopt.measure.builds import Built
from graphopt.ranking.weights import load_weights, weights_file
from graphopt.utils.outside import WeightsFile
from graphopt.utils.ranges import Share


@dataclass(frozen=True)
class Screen:
    """weights: as of `cost=learned`. keep: share of what is priced together, at least one of it."""

    weights: WeightsFile
    keep: Share


def keep_of(screen: Screen) -> Keep:
    """Keeps those that are predicted to be fastest. Raises UserError where there are no weights."""
    model = load_weights(weights_file(screen.weights)).model

    def keep(built: Sequence[Built]) -> list[bool]:
        order = np.argsort([model.of(one["features"]) for one in built], kind="stable")
        kept = {*order[: max(1, math.ceil(screen.keep * len(built)))].tolist()}
        return [place in kept for place in range(len(built))]

    return keep
