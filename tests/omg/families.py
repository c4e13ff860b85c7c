"""Families of update matrices that the tests of the solver go through, and an independent statement of the problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

NAMES = (
    "gaussian",
    "common",
    "rank deficient",
    "duplicated",
    "nearly duplicated",
    "mixed norms",
    "mixed rank deficient",
    "conflicting",
    "nearly orthogonal",
    "integers",
    "zero in hull",
    "opposite pairs",
    "identical",
    "some zero rows",
)


def draw(name: str, rows: int, seed: int) -> Array:
    """A matrix of updates of the given family, of order one."""
    rng = np.random.default_rng(seed)
    columns = 2 * rows + 3
    plain: Array = rng.standard_normal((rows, columns))
    matrix = plain
    if name == "common":
        matrix = plain + 1.0
    elif name == "rank deficient":
        matrix = rng.standard_normal((rows, max(1, rows // 3)))
    elif name in ("duplicated", "nearly duplicated"):
        half = rows // 2
        matrix[half : 2 * half] = matrix[:half]
        if name == "nearly duplicated":
            matrix = matrix + 1e-7 * rng.standard_normal(matrix.shape)
    elif name == "mixed norms":
        matrix = (plain + rng.standard_normal(columns)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))
    elif name == "mixed rank deficient":
        matrix = rng.standard_normal((rows, max(1, rows // 3))) * 10.0 ** rng.uniform(-3, 3, (rows, 1))
    elif name == "conflicting":
        matrix = 0.1 * plain + rng.choice([-1.0, 1.0], (rows, 1)) * rng.standard_normal(columns)
    elif name == "nearly orthogonal":
        matrix = np.linalg.qr(rng.standard_normal((columns, rows)))[0].T * (1 + 0.01 * rng.standard_normal((rows, 1)))
    elif name == "integers":
        matrix = rng.integers(-2, 3, (rows, max(2, rows // 2))).astype(np.float64)
    elif name == "zero in hull" and rows > 1:
        matrix[-1] = -rng.dirichlet(np.ones(rows - 1)) @ matrix[:-1]
    elif name == "opposite pairs":
        half = rows // 2
        matrix[half : 2 * half] = -matrix[:half] * rng.uniform(0.3, 3, (half, 1))
    elif name == "identical":
        matrix = np.repeat(plain[:1], rows, axis=0)
    elif name == "some zero rows":
        matrix[rng.random(rows) < 0.3] = 0.0
    return matrix


@dataclass(frozen=True)
class Problem:
    """The problem of an update matrix, straight from its definition."""

    updates: Array
    reference: Array
    kappa: float

    @property
    def aggregate(self) -> Array:
        return self.reference @ self.updates

    @property
    def radius(self) -> float:
        return self.kappa * float(np.linalg.norm(self.aggregate))

    @property
    def mean_square(self) -> float:
        return float((self.updates**2).sum(axis=1).mean())

    @property
    def moving(self) -> npt.NDArray[np.bool_]:
        return np.asarray((self.updates != 0).any(axis=1))

    def objective(self, weights: Array) -> float:
        combined = weights @ self.updates
        return float(combined @ self.aggregate) + self.radius * float(np.linalg.norm(combined))

    def worst(self, direction: Array) -> float:
        """min_u ⟨h_u, d⟩ over the rows that are not zero."""
        return float((self.updates @ direction)[self.moving].min())


def uniform(rows: int) -> Array:
    return np.full(rows, 1.0 / rows)
