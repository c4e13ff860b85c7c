"""What callers hand to the solvers: checked, copied, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Vector: TypeAlias = npt.NDArray[np.float64]
Matrix: TypeAlias = npt.NDArray[np.float64]
Array: TypeAlias = npt.NDArray[np.floating]
Weights: TypeAlias = Array | Tensor | Sequence[float]


def check_gram(gram: Array | Tensor) -> Matrix:
    """A float64 copy of the Gram matrix, or an error that says what is wrong with it."""
    if isinstance(gram, Tensor):
        if not gram.is_floating_point():
            raise TypeError(f"the Gram matrix must be floating, not {gram.dtype}")
        matrix: Matrix = gram.detach().to("cpu", torch.float64, copy=True).numpy()
    else:
        given = np.asarray(gram)
        if not np.issubdtype(given.dtype, np.floating):
            raise TypeError(f"the Gram matrix must be floating, not {given.dtype}")
        matrix = np.array(given, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"the Gram matrix must be a square matrix with a row for each update, not of shape {tuple(matrix.shape)}")
    if not np.isfinite(matrix).all():
        raise ValueError("the Gram matrix is not finite")
    largest = np.abs(matrix).max()
    if (np.diag(matrix) < 0).any() or (np.abs(matrix - matrix.T) > 1e-3 * largest).any():
        raise ValueError("the Gram matrix must be symmetric with squared lengths on its diagonal (hand over H @ H.T, not H)")
    matrix += matrix.T
    matrix *= 0.5
    return matrix


def check_kappa(kappa: float) -> float:
    """``kappa`` as a float, finite and not negative."""
    if isinstance(kappa, (bool, str, bytes)):
        raise TypeError(f"kappa must be a number, not {kappa!r}")
    number = float(kappa)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"kappa must be finite and not negative, not {number}")
    return number


def check_reference(reference: Weights | None, count: int, name: str = "the reference weights") -> Vector:
    """Weights for ``count`` updates, normalised; uniform for None."""
    if reference is None:
        return np.full(count, 1.0 / count)
    given = reference.detach().cpu().numpy() if isinstance(reference, Tensor) else np.asarray(reference)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be numbers, not {given.dtype}")
    weights = np.array(given, dtype=np.float64)
    if weights.shape != (count,):
        raise ValueError(f"{name} must have one entry for each of the {count} updates, not the shape {tuple(weights.shape)}")
    if not np.isfinite(weights).all():
        raise ValueError(f"{name} are not finite")
    if (weights < 0).any():
        raise ValueError(f"{name} must not be negative: entry {int(weights.argmin())} is {weights.min()}")
    largest = weights.max()
    if largest == 0:
        raise ValueError(f"{name} sum to zero")
    weights /= largest  # the sum of very large weights may not be a float
    weights /= weights.sum()
    return weights
