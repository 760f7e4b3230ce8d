"""Eigenvectors of graph Laplacians: where ops lie that send each other many bytes."""

import numpy as np
from scipy.linalg import LinAlgError, eigh
from scipy.sparse import csgraph, csr_array, eye_array
from scipy.sparse.linalg import ArpackError, eigsh

from graphopt.core.graph import F64

DENSE = 160  # ops up to which a dense eigensolver is faster
RESTARTS = 100  # of Lanczos; 30 are plenty where eigenvalues lie apart, and where they do not no number is enough


def smallest_eigenvectors(edges: csr_array, count: int) -> F64:
    """[N, count] eigenvectors of the smallest eigenvalues of the normalised Laplacian, ascending.

    edges: [N, N] symmetric weights, N > count. Deterministic up to signs; where none are found, op order stands in.
    """
    ops = edges.shape[0]
    laplacian = csgraph.laplacian(edges, normed=True)
    try:
        if ops <= DENSE:
            return np.asarray(eigh(laplacian.toarray(), subset_by_index=(0, count - 1))[1])
        start = np.random.default_rng(0).random(ops)
        shifted = laplacian + 1e-3 * eye_array(ops, format="csr")
        values, vectors = eigsh(shifted.tocsc(), k=count, sigma=0.0, which="LM", v0=start, maxiter=RESTARTS)
        return np.asarray(vectors[:, np.argsort(values)])
    except (ArpackError, LinAlgError, RuntimeError):  # no convergence, or a singular factor
        return np.stack([np.arange(ops, dtype=np.float64)] * count, 1)
