"""Eigenvectors of Laplacians against a dense solver, below and above the size from which a sparse one is used."""

import numpy as np
import pytest
from scipy.sparse import csgraph, csr_array

from graphopt.core.spectral import DENSE, smallest_eigenvectors


@pytest.mark.parametrize("ops", [20, 2 * DENSE])
def test_vectors_are_those_of_the_smallest_eigenvalues(ops: int) -> None:
    rng = np.random.default_rng(0)
    weight = np.triu(rng.random((ops, ops)) * (rng.random((ops, ops)) < 0.1), 1) + np.diag(np.ones(ops - 1), 1)
    edges = csr_array(weight + weight.T)
    found = smallest_eigenvectors(edges, 3)
    values, vectors = np.linalg.eigh(csgraph.laplacian(edges, normed=True).toarray())
    np.testing.assert_allclose(np.abs(np.sum(found * vectors[:, :3], 0)), 1.0, atol=1e-6)
    assert values[0] == pytest.approx(0.0, abs=1e-9)


def test_two_parts_with_a_thin_bridge_have_different_signs() -> None:
    block = np.ones((5, 5)) - np.eye(5)
    weight = np.zeros((10, 10))
    weight[:5, :5], weight[5:, 5:], weight[4, 5], weight[5, 4] = block, block, 0.01, 0.01
    side = smallest_eigenvectors(csr_array(weight), 2)[:, 1] > 0
    assert len(set(side[:5].tolist())) == len(set(side[5:].tolist())) == 1 and side[0] != side[9]
