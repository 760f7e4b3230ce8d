"""What a learned model of kernels is taught by: the columns of all kernels of a plan.

Shape legend: N ops, R kernels, F columns.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import F64, I64, Bool, Graph
from graphopt.core.machine import Device
from graphopt.costs.one_kernel.kernel_time import Workspace, clear, device_constants, kernel_work, workspace
from graphopt.costs.one_kernel.learned_kernel import COLUMNS, kernel_columns
from graphopt.utils.compiled import njit


def kernel_table(graph: Graph, inline: Bool, device: Device) -> tuple[I64, F64]:
    """(stored op [R], columns [R, F]) of the kernels that teach: those without an op that is held out. inline: [N]
    flags of a legal plan."""
    root, x, teaches = _table(fusible(graph), inline, graph.train_mask, device_constants([device])[0], workspace(graph))
    return root[teaches], x[teaches]


@njit(cache=True, nogil=True)
def _table(f: Fusible, inline: NDArray[np.bool_], taught: NDArray[np.bool_], device: Any, w: Workspace
           ) -> tuple[I64, F64, NDArray[np.bool_]]:  # fmt: skip
    roots = np.flatnonzero(~inline)
    x, teaches = np.empty((len(roots), len(COLUMNS))), np.ones(len(roots), np.bool_)
    for r in range(len(roots)):
        work = kernel_work(f, roots[r], inline, w)
        kernel_columns(f, roots[r], work, w, device, x[r])
        for i in range(work.size):
            teaches[r] &= taught[w.members[i]]
        clear(f, work, w)
    return roots, x, teaches
