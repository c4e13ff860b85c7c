"""The shortest vector in the convex hull of some vectors, of which the Gram matrix is known."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedomg.omg.arguments import Matrix, Vector, check_gram
from fedomg.omg.projection import Projection, one_thread

TOLERANCE = 1e-10
MOST_STEPS = 30


def shortest(gram: Tensor) -> Tensor:
    """The weights on the simplex that minimise aᵀGa (float64, CPU).

    With 11ᵀ added to G the minimiser of ½ μᵀGμ - 1ᵀμ over μ >= 0 is the answer up to its length, also where G is singular.
    """
    matrix = check_gram(gram)
    scale = matrix.diagonal().mean()
    if scale <= 0:
        return torch.full((len(matrix),), 1 / len(matrix), dtype=torch.float64)
    matrix = matrix / scale
    raised = matrix + 1.0
    lengths = np.sqrt(raised.diagonal())
    with one_thread(), np.errstate(all="ignore"):
        return torch.from_numpy(_search(matrix, Projection(raised / np.outer(lengths, lengths)), lengths))


def _search(matrix: Matrix, projection: Projection, lengths: Vector) -> Vector:
    best, smallest = np.full(len(matrix), 1 / len(matrix)), np.inf
    for _ in range(MOST_STEPS):
        multipliers = projection.solve(-1 / lengths) / lengths
        weights = multipliers / multipliers.sum()
        gap = _gap(matrix, weights)
        if gap < smallest:
            best, smallest = weights, gap
        if smallest <= TOLERANCE:
            break
    return best


def _gap(matrix: Matrix, weights: Vector) -> float:
    """Zero at the optimum: there no vector is shorter along the answer than the answer itself."""
    inner = matrix @ weights
    return float(weights @ inner - inner.min())
