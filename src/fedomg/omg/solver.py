"""The FedOMG problem on a Gram matrix, solved exactly, with a certificate.

FedOMG (Nguyen et al., "Federated Domain Generalization with Data-free On-server Matching Gradient", ICLR 2025) looks for the direction
that has the largest worst-case inner product with the client updates h_u, within a ball around the reference aggregate g0 = Σ b_u h_u:

    max_d  min_u ⟨h_u, d⟩    subject to   ‖d − g0‖ ≤ κ‖g0‖ .

Its dual is that of CAGrad (Liu et al., "Conflict-Averse Gradient Descent for Multi-task Learning", NeurIPS 2021) and needs only the Gram
matrix G = H Hᵀ. With q = G b and c = κ‖g0‖ it reads

    min_γ  F(γ) = qᵀγ + c √(γᵀGγ)    over   γ ≥ 0, Σγ = 1 ,

and d = g0 + c · g_γ / ‖g_γ‖ with g_γ = Σ γ_u h_u. The sign γ ≥ 0 belongs to the problem: without it F is unbounded below for κ < 1.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from fedomg.omg.arguments import Array, Matrix, Vector, Weights, check_gram, check_kappa, check_reference
from fedomg.omg.projection import Mask, Projection, one_thread, times

ArrayT = TypeVar("ArrayT", Vector, Tensor)

TOLERANCE = 1e-9
"""Largest certified gap of a converged answer, relative to the mean squared length of the rows."""
HULL_TOLERANCE = 1e-7
"""The same where zero lies in the convex hull: F has the slope c‖·‖ there, and a float64 Gram matrix knows lengths only to 1e-8."""
ZERO_ROW = 1e-12
"""Rows shorter than this share of the longest count as zero."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Solution(Generic[ArrayT]):
    """Weights and direction, with the certificate that they are optimal.

    The direction is ``coefficients @ updates``. ``gap`` = F(weights) − min_u ⟨h_u, direction⟩ is the primal-dual gap in the units of
    ``objective`` = F(weights), computed from the returned weights and coefficients themselves; it is zero at the optimum and nowhere else.
    ``converged`` says that it is below 1e-9 of the mean squared length of the rows (1e-7 where zero lies in their convex hull).
    """

    weights: ArrayT
    objective: float
    gap: float
    iterations: int
    converged: bool
    coefficients: ArrayT


@overload
def solve(gram: Tensor, reference: Weights | None = None, kappa: float = 0.5) -> Solution[Tensor]: ...
@overload
def solve(gram: Array, reference: Weights | None = None, kappa: float = 0.5) -> Solution[Vector]: ...
def solve(gram: Array | Tensor, reference: Weights | None = None, kappa: float = 0.5) -> Solution[Vector] | Solution[Tensor]:
    """Solve the FedOMG problem (paper, FedOMG-solution theorem) exactly on the U x U Gram matrix of the updates.

    ``reference`` holds the weights b of the reference aggregate, uniform if None; it is normalised. ``kappa`` is the radius of the ball
    relative to the length of the reference aggregate. A NumPy matrix gives NumPy arrays, a tensor gives float64 tensors on the CPU.

    Rows of length zero get weight 0 (they would force the value 0 and switch the method off silently) but stay in the reference
    aggregate; the certificate is then that of the problem without them.
    """
    matrix = check_gram(gram)
    solution = solve_exact(matrix, check_reference(reference, len(matrix)), check_kappa(kappa))
    return to_tensors(solution) if isinstance(gram, Tensor) else solution


def to_tensors(solution: Solution[Vector]) -> Solution[Tensor]:
    """The same solution with float64 tensors on the CPU."""
    return Solution(
        torch.from_numpy(solution.weights),
        solution.objective,
        solution.gap,
        solution.iterations,
        solution.converged,
        torch.from_numpy(solution.coefficients),
    )


# --- the problem and its certificate ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Problem:
    """F and the inner products of the rows with g0, for the Gram matrix ``gram``, q = ``inner`` and c = ``radius``."""

    gram: Matrix
    inner: Vector
    radius: float

    def length(self, weights: Vector) -> float:
        """‖Σ weights_u h_u‖; rounding may leave a square slightly below zero."""
        return math.sqrt(max(float(weights @ times(self.gram, weights)), 0.0))

    def objective(self, weights: Vector) -> float:
        return float(self.inner @ weights) + self.radius * self.length(weights)

    def worst(self, lift: Vector) -> float:
        """min_u ⟨h_u, d⟩ for d = g0 + Σ lift_u h_u."""
        return float((self.inner + times(self.gram, lift)).min())

    def lift(self, weights: Vector) -> Vector:
        """What the direction adds to the reference: c · g_γ / ‖g_γ‖ as coefficients of the rows (zero where g_γ is)."""
        length = self.length(weights)
        scale = self.radius / length if length > 0 else 0.0
        return weights * scale if math.isfinite(scale) else np.zeros_like(weights)


def certify(gram: Matrix, reference: Vector, kappa: float, weights: Vector, coefficients: Vector, rows: Mask) -> tuple[float, float]:
    """F(weights) and the gap F(weights) − min_u ⟨h_u, coefficients @ updates⟩ over the given rows."""
    inner = times(gram, reference)
    radius = kappa * math.sqrt(max(float(reference @ inner), 0.0))
    objective = _Problem(gram, inner, radius).objective(weights)
    return objective, objective - float(times(gram, coefficients)[rows].min())


# --- the exact solver -------------------------------------------------------------------------------------------------------------------


def solve_exact(gram: Matrix, reference: Vector, kappa: float) -> Solution[Vector]:
    """``solve`` on arguments that are known to be good."""
    count = len(gram)
    squares = np.diag(gram)
    rows = squares > ZERO_ROW**2 * float(squares.max())
    if not rows.any():  # nothing moved: any direction is as good as any other
        return Solution(np.full(count, 1.0 / count), 0.0, 0.0, 0, True, reference.copy())
    if not rows.all():
        _log.info("updates of length zero get weight 0: %s", np.flatnonzero(~rows).tolist())
    unit = 2.0 ** math.floor(math.log2(float(squares.max())))  # a power of two, so that scaling rounds nothing
    scaled = gram / unit
    mean_square = float(np.diag(scaled).mean())
    weights, coefficients = np.zeros(count), reference.copy()
    with one_thread(), np.errstate(all="ignore"):
        inner = times(scaled, reference)
        radius = kappa * math.sqrt(max(float(reference @ inner), 0.0))
        search = _Search(_Problem(scaled[rows][:, rows], inner[rows], radius), TOLERANCE * mean_square, reference[rows])
        search.run()
        weights[rows] = search.weights
        coefficients[rows] += search.lift
        objective, gap = certify(scaled, reference, kappa, weights, coefficients, rows)
    converged = abs(gap) <= (HULL_TOLERANCE if search.in_hull else TOLERANCE) * mean_square
    return Solution(weights, objective * unit, gap * unit, search.iterations, converged, coefficients)


class _Search:
    """Newton's method on the optimal value.

    The optimum is the largest F for which {d : ⟨h_u, d⟩ ≥ F for all u} meets the ball, that is for which the distance of g0 from this set,
    convex and increasing in F, equals c. Each distance is a projection (`Projection`). Its multipliers, normalised, are weights γ on the
    simplex, and F(γ) is the next Newton iterate: it comes down from above, and quadratically so near the end.

    At F = 0 the set is a cone. Where zero lies in the convex hull of the rows and the cone meets the ball, the optimum is 0, g_γ vanishes
    and the formula for d is 0/0. The projection on the cone is then the optimal direction that is nearest to g0.
    """

    def __init__(self, problem: _Problem, tolerance: float, reference: Vector) -> None:
        self.problem = problem
        self.tolerance = tolerance
        self.lengths = np.sqrt(np.diag(problem.gram))
        # Rows of length one: the multipliers of the projection take up the lengths, which may be a million-fold apart.
        self.cosines = problem.gram / np.outer(self.lengths, self.lengths)
        self.projection = Projection(self.cosines)
        self.cone: Vector | None = None
        self.cone_tried = False
        self.iterations = 0
        self.gap = math.inf
        self.in_hull = False
        self.weights = self._start(reference)
        self.lift = problem.lift(self.weights)

    def run(self) -> None:
        if self.problem.radius == 0.0:  # the ball is a point, the certificate the row with the smallest inner product
            lowest = np.eye(1, len(self.lengths), int(self.problem.inner.argmin()))[0]
            self._offer(lowest, np.zeros_like(lowest))
            return
        weights, multipliers, value, stalled = self.weights, np.zeros(0), math.inf, 0
        for _ in range(60):
            before = self.gap
            if not self.cone_tried and self.problem.length(weights) < 1e-3 * float(weights @ self.lengths):
                weights = self._try_cone(weights)
            self._offer_all(weights, multipliers)
            objective = self.problem.objective(weights)
            stalled = 0 if self.gap < 0.7 * before or objective < value - self._goal() else stalled + 1
            if self.gap <= self._goal() or stalled > (2 if self.gap <= self.tolerance else 6):
                return
            value = min(value, objective)
            multipliers = self._project(self.projection, value)
            if not multipliers.any():
                return
            weights = multipliers / multipliers.sum()

    def _goal(self) -> float:
        """The gap to stop at: that of the contract, or one that means something to the weighted rows where others are far longer."""
        if self.lift is self.cone:
            return self.tolerance
        return min(self.tolerance, TOLERANCE * self.problem.radius * float(self.weights @ self.lengths))

    def _start(self, reference: Vector) -> Vector:
        """The best of some weights that cost nothing."""
        vertex = np.zeros(len(self.lengths))
        vertex[(self.problem.inner + self.problem.radius * self.lengths).argmin()] = 1.0
        starts = [np.full(len(vertex), 1.0 / len(vertex)), vertex]
        if reference.any():
            starts.append(reference / reference.sum())
        return min(starts, key=self.problem.objective)

    def _project(self, projection: Projection, value: float) -> Vector:
        """Multipliers of the projection of g0 on {d : ⟨h_u, d⟩ ≥ value}."""
        before = projection.solves
        multipliers = projection.solve((self.problem.inner - value) / self.lengths) / self.lengths
        self.iterations += projection.solves - before
        return multipliers

    def _try_cone(self, weights: Vector) -> Vector:
        """Project g0 on the cone. If that leaves the ball, the optimum is negative, and what the projection gives are better weights."""
        self.cone_tried = True
        projection, multipliers = Projection(self.cosines), np.zeros_like(weights)
        for _ in range(30):
            slack = self.problem.inner + times(self.problem.gram, multipliers)
            if slack.min() >= -self.tolerance / 10 and float(multipliers @ slack) <= self.tolerance / 10:
                break
            multipliers = self._project(projection, 0.0)
        if self.problem.length(multipliers) <= self.problem.radius * (1 + 1e-9):
            self.cone = multipliers
            return weights
        self.projection = projection
        better: Vector = multipliers / multipliers.sum()
        return better

    def _offer_all(self, weights: Vector, multipliers: Vector) -> None:
        """Keep the best of what these weights and the multipliers that they come from have to offer."""
        if self.cone is not None:
            self._offer(weights, self.cone)
            if self.gap <= self.tolerance:  # others may be optimal too, but are farther from g0
                return
        self._offer(weights, self.problem.lift(weights))
        if multipliers.any() and self._on_sphere(multipliers):
            self._offer(weights, multipliers)

    def _on_sphere(self, lift: Vector) -> bool:
        """Whether a lift has the length c, as far as a float64 Gram matrix knows lengths.

        Close to the hull, scaling γ to the length c multiplies the rounding of ‖g_γ‖, which does not touch the multipliers.
        """
        resolution = 8 * float(np.finfo(np.float64).eps) * float(lift @ self.lengths) ** 2
        return abs(self.problem.length(lift) ** 2 - self.problem.radius**2) <= resolution

    def _offer(self, weights: Vector, lift: Vector) -> None:
        gap = abs(self.problem.objective(weights) - self.problem.worst(lift))  # below zero by rounding only
        if lift is self.cone and not self.in_hull and gap <= HULL_TOLERANCE / TOLERANCE * self.tolerance:
            self.in_hull, self.gap = True, math.inf  # what was offered before is no better as far as the Gram matrix can tell
        if self.in_hull and lift is not self.cone and gap > self.tolerance:
            return
        if gap < self.gap:
            self.weights, self.lift, self.gap = weights, lift, gap
