"""A quadratic program over the positive orthant, small and dense, and the linear algebra that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedomg.omg.arguments import Matrix, Vector

Mask: TypeAlias = npt.NDArray[np.bool_]


class Projection:
    """min over μ ≥ 0 of ½ μᵀRμ + linearᵀμ, for one R with unit diagonal, perhaps singular, and a series of linear terms.

    Proximal steps make every system regular, and lead to a solution of the singular problem since each starts from the last. A step is
    taken by principal pivoting, which needs a handful of solves on the support (Júdice and Pires, "A block principal pivoting algorithm
    for large-scale strictly monotone linear complementarity problems", 1994). Where that does not settle, a larger ridge makes it
    easier, and an interior point method is the last resort.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.ridge = 1e-8
        self.eased = False  # whether the last step needed a larger ridge; a second time in a row would lead nowhere
        self.multipliers = np.zeros(len(matrix))
        self.support = np.zeros(len(matrix), dtype=np.bool_)
        self.solves = 0

    def solve(self, linear: Vector) -> Vector:
        """One proximal step, which is the solution up to the ridge; the ridge shrinks from call to call."""
        attempts = [(self._pivot, self.ridge), (self._interior, self.ridge)]
        if not self.eased:
            attempts.insert(1, (self._pivot, 1e3 * self.ridge))
        for attempt, ridge in attempts:
            found = attempt(linear - ridge * len(linear) * self.multipliers, ridge * len(linear))
            if found is not None and np.isfinite(found[0]).all():
                self.multipliers, self.support = found
                self.eased = ridge > self.ridge
                if not self.eased:
                    self.ridge = max(self.ridge * 1e-2, 1e-14)
                break
        return self.multipliers

    def _pivot(self, linear: Vector, ridge: float) -> tuple[Vector, Mask] | None:
        """Principal pivoting on the support: solve on it, then exchange all entries with a wrong sign; None where this does not settle."""
        support, fewest, patience = self.support, len(linear) + 1, 3
        for _ in range(20):
            self.solves += 1
            inside = np.flatnonzero(support)
            block = self.matrix[inside][:, inside] if len(inside) < len(support) else self.matrix.copy()
            block.flat[:: len(inside) + 1] += ridge
            on_support = _solve_positive(block, -linear[inside])
            if on_support is None:
                return None
            multipliers = np.zeros(len(linear))
            multipliers[inside] = on_support
            slack = times(self.matrix, multipliers) + linear
            wrong = np.where(support, multipliers, slack) < -1e-14 * float(np.abs(multipliers).max())
            count = int(wrong.sum())
            if count == 0:
                return np.maximum(multipliers, 0.0), support
            patience = 3 if count < fewest else patience - 1
            fewest = min(fewest, count)
            if patience < 0:  # exchanging one entry, always the last, cannot go in circles
                wrong[: np.flatnonzero(wrong)[-1]] = False
            support = support ^ wrong
        return None

    def _interior(self, linear: Vector, ridge: float) -> tuple[Vector, Mask] | None:
        """Primal-dual interior point with Mehrotra's corrector: slower, but indifferent to degeneracy."""
        count = len(linear)
        matrix = self.matrix.copy()
        matrix.flat[:: count + 1] += ridge
        scale = float(np.abs(linear).max())
        inside, slack = np.full(count, scale), np.full(count, scale)
        for _ in range(60):
            self.solves += 1
            residual = times(matrix, inside) + linear - slack
            mean = float(inside @ slack) / count
            if mean <= 1e-24 * scale**2 and float(np.abs(residual).max()) <= 1e-12 * scale:
                break
            system = matrix.copy()
            system.flat[:: count + 1] += slack / inside
            lower, failed = torch.linalg.cholesky_ex(torch.from_numpy(system))
            if int(failed):
                break
            moved = _solved(lower, -residual - slack)
            change = -slack - slack / inside * moved
            reach = _reach((inside, moved), (slack, change))
            after = float((inside + reach * moved) @ (slack + reach * change)) / count
            centre = ((after / mean) ** 3 * mean - moved * change) / inside
            moved = _solved(lower, -residual - slack + centre)
            change = -slack + centre - slack / inside * moved
            reach = 0.995 * _reach((inside, moved), (slack, change))
            inside, slack = inside + reach * moved, slack + reach * change
        support = inside > slack
        return np.where(support, inside, 0.0), support


def _reach(*moves: tuple[Vector, Vector]) -> float:
    """The longest step up to 1 after which no value is negative."""
    return min(1.0, *(float(np.where(change < 0, -values / change, 1.0).min()) for values, change in moves))


def _solved(lower: Tensor, right: Vector) -> Vector:
    solution: Vector = torch.cholesky_solve(torch.from_numpy(right)[:, None], lower)[:, 0].numpy()
    return solution


def _solve_positive(matrix: Matrix, right: Vector) -> Vector | None:
    """x with matrix · x = right by Cholesky, None where the matrix is not positive definite."""
    lower, failed = torch.linalg.cholesky_ex(torch.from_numpy(matrix))
    if int(failed):
        return None
    return _solved(lower, right)


def times(matrix: Matrix, vector: Vector) -> Vector:
    product: Vector = torch.mv(torch.from_numpy(matrix), torch.from_numpy(vector)).numpy()
    return product


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads gain nothing on matrices this small, wait for each other on busy cores, and make the last bits depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
