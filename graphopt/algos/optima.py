"""What a long search decides about a training graph, and what it costs to decide otherwise at each op: labels for
policies of fusion. They are kept in the cache folder, since every training asks for them again.

Shape legend: N ops.
"""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphopt import cache_dir
from graphopt.advantages.store import fingerprint
from graphopt.core.graph import F64, Graph
from graphopt.errors import ConfigError, Unreadable
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import solve
from graphopt.problems.pricing import PricedFlips, Pricing
from graphopt.problems.task import AssignTask
from graphopt.search.fusion.motif_scan import MotifScan
from graphopt.utils.limits import MIB, parse_npz, read_bytes
from graphopt.utils.whole import whole_file

DEPTH = 3  # hops of the classes that the search flips
MOST = 64 * MIB


@dataclass(frozen=True)
class Optimum:
    """inline: [N] what the search ended with, as kernels are legal. worse: [N] what flipping each op alone adds to the
    price, as a share of it; 0 where an op has no choice. evals: prices that it took, whether or not it was cached."""

    inline: NDArray[np.bool_]
    worse: F64
    evals: int


def optimum(graph: Graph, task: AssignTask, cost: CostModel, evals: int) -> Optimum:
    """By `motif_scan` with so many evaluations, then the price of every flip."""
    path = _path(graph, task, cost, evals)
    return _read(path, graph.num_ops) or _kept(path, _search(graph, task, cost, evals))


def flips_at(pricing: Pricing, inline: NDArray[np.bool_]) -> PricedFlips:
    """Exact flips around a request, made legal. Raises ConfigError where there are none."""
    decision = pricing.task.initial(pricing.graph)
    decision[:, 0] = np.where(pricing.task.mask(pricing.graph)[:, 0], inline, decision[:, 0])
    flips = pricing.flips(pricing.task.canonical(pricing.graph, decision))
    if flips is None:
        raise ConfigError("algo=motif_policy learns from exact prices of store-or-inline flips; choose task=fusion "
                          "task.decision=binary cost=simulator")  # fmt: skip
    return flips


def _search(graph: Graph, task: AssignTask, cost: CostModel, evals: int) -> Optimum:
    problem, _ = solve(MotifScan(name="motif_scan", depth=DEPTH), graph, task, cost, evals=evals)
    flips, free = flips_at(Pricing(graph, task, cost), problem.best[:, 0] > 0), task.mask(graph)[:, 0]
    worse = np.zeros(graph.num_ops)
    worse[free] = flips.price(np.flatnonzero(free)) / flips.cost - 1.0
    return Optimum(flips.decision[:, 0] > 0, worse, problem.evals + int(free.sum()))


def _path(graph: Graph, task: AssignTask, cost: CostModel, evals: int) -> Path:
    said = [graph.hash, str(task.limits), cost.name, cost.objective, fingerprint(graph, task, cost), str(evals)]
    return cache_dir() / "optima" / f"{hashlib.sha256('|'.join(said).encode()).hexdigest()[:24]}.npz"


def _read(path: Path, ops: int) -> Optimum | None:
    """None where it is not there, or is none."""
    try:
        found = parse_npz(read_bytes(path, MOST), str(path), MOST)
        inline, worse, evals = found["inline"], found["worse"], found["evals"]
        whole = inline.shape == worse.shape == (ops,) and inline.dtype == np.bool_ and np.isfinite(worse).all()
        return Optimum(inline, worse.astype(np.float64), int(evals)) if whole else None
    except (Unreadable, KeyError, TypeError, ValueError):
        return None


def _kept(path: Path, found: Optimum) -> Optimum:
    """Where the cache cannot be written, the next training searches again."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, inline=found.inline, worse=found.worse, evals=np.int64(found.evals))
    try:
        with whole_file(path) as file:
            file.write(buffer.getvalue())
    except OSError:
        pass
    return found
