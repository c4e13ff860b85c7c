"""The paper's theory on small problems (Nguyen et al., ICLR 2025, sections 3 to 5), and where it does not hold as stated."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedomg import omg

Array = NDArray[np.float64]
seeds = st.integers(0, 10**6)
kappas = st.floats(0.05, 2.0)


def _updates(seed: int, clients: int = 5, size: int = 8, common: float = 1.0) -> Array:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((clients, size)) + common * draw.standard_normal(size)


@given(seeds, st.integers(2, 50))
def test_the_cosine_triangle_lemma(seed: int, size: int) -> None:
    """For unit vectors: ab - sqrt((1 - a^2)(1 - b^2)) <= <u, v> <= ab + the same, with a = <u, g> and b = <g, v>."""
    u, v, g = (vector / np.linalg.norm(vector) for vector in np.random.default_rng(seed).standard_normal((3, size)))
    a, b = u @ g, g @ v
    slack = math.sqrt(max(0.0, 1 - a * a) * max(0.0, 1 - b * b))
    assert a * b - slack - 1e-12 <= u @ v <= a * b + slack + 1e-12


@given(seeds, kappas)
def test_the_average_inner_product_is_at_least_the_worst(seed: int, kappa: float) -> None:
    updates = _updates(seed)
    inner = updates @ (omg.solve(updates @ updates.T, kappa=kappa).coefficients @ updates)
    assert inner.mean() >= inner.min()


@given(seeds, kappas)
def test_strong_duality(seed: int, kappa: float) -> None:
    """The dual optimum is the worst inner product of the direction, and no other point of the ball does better."""
    updates = _updates(seed)
    solution = omg.solve(updates @ updates.T, kappa=kappa)
    direction, mean = solution.coefficients @ updates, updates.mean(axis=0)
    scale = (updates**2).sum(axis=1).mean()
    assert (updates @ direction).min() == pytest.approx(solution.objective, abs=1e-8 * scale)
    offsets = np.random.default_rng(seed).standard_normal((200, updates.shape[1]))
    offsets *= kappa * np.linalg.norm(mean) / np.linalg.norm(offsets, axis=1, keepdims=True)
    assert ((mean + offsets) @ updates.T).min(axis=1).max() <= solution.objective + 1e-8 * scale


@given(seeds, st.floats(1e-6, 0.9))
def test_the_direction_stays_in_the_ball_and_goes_to_the_reference(seed: int, kappa: float) -> None:
    updates = _updates(seed)
    mean = updates.mean(axis=0)
    direction = omg.solve(updates @ updates.T, kappa=kappa).coefficients @ updates
    assert np.linalg.norm(direction - mean) == pytest.approx(kappa * np.linalg.norm(mean), rel=1e-6)


@given(seeds, st.floats(0.0, 0.9))
def test_below_one_the_direction_agrees_with_the_reference(seed: int, kappa: float) -> None:
    """<g0, d> >= (1 - kappa) |g0|^2 and cos(g0, d) >= sqrt(1 - kappa^2)."""
    updates = _updates(seed, common=0.0)
    mean = updates.mean(axis=0)
    direction = omg.solve(updates @ updates.T, kappa=kappa).coefficients @ updates
    along = mean @ direction
    assert along >= (1 - kappa) * (mean @ mean) - 1e-9
    assert along / np.linalg.norm(mean) / np.linalg.norm(direction) >= math.sqrt(1 - kappa**2) - 1e-7


@given(seeds, st.floats(0.05, 0.95))
def test_the_objective_falls_short_of_the_mean_by_no_more_than_kappa(seed: int, kappa: float) -> None:
    """Continuity in kappa: between neighbouring radii the objective moves by at most the radius times the longest update."""
    updates = _updates(seed)
    near = [omg.solve(updates @ updates.T, kappa=k).objective for k in (kappa, kappa + 1e-4)]
    longest = np.linalg.norm(updates, axis=1).max()
    assert 0 <= near[1] - near[0] + 1e-9 <= 1e-4 * np.linalg.norm(updates.mean(axis=0)) * longest + 1e-8


def _quadratic(seed: int, size: int = 4) -> tuple[Array, Array, float]:
    """A strongly convex f(w) = (w - c)' A (w - c) / 2: the matrix, the minimiser, and the modulus mu."""
    draw = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(draw.standard_normal((size, size)))
    values = draw.uniform(0.5, 5, size)
    return basis @ np.diag(values) @ basis.T, draw.standard_normal(size), float(values.min())


@given(seeds, seeds)
def test_gradient_divergence_bounds_the_excess_loss_on_strongly_convex_domains(one: int, other: int) -> None:
    """At A's optimum: E_B - min E_B <= |grad E_A - grad E_B|^2 / (2 mu), and the optima are at most |grad E_A - grad E_B| / mu apart."""
    assume(one != other)
    (_, at, _), (hessian, best, mu) = _quadratic(one), _quadratic(other)
    divergence = np.linalg.norm(hessian @ (at - best))  # A's own gradient is zero here
    excess = (at - best) @ hessian @ (at - best) / 2
    assert excess <= divergence**2 / (2 * mu) * (1 + 1e-12)
    assert np.linalg.norm(at - best) <= divergence / mu * (1 + 1e-12)


def test_the_papers_bound_on_the_loss_gap_itself_does_not_hold() -> None:
    """|E_A - E_B| <= |grad E_A - grad E_B| / mu, the step in its appendix, fails: a constant has no gradient."""
    gap, divergence, mu = abs((0.5 * 3.0**2 + 1.0) - 0.5 * 3.0**2), abs(3.0 - 3.0), 1.0
    assert gap > divergence / mu


@given(seeds)
def test_one_round_of_omg_lowers_every_domain_where_the_worst_inner_product_is_positive(seed: int) -> None:
    """Small steps on quadratics: with the sign as the server takes it, all losses fall; with the opposite sign none does."""
    domains = [_quadratic(seed + index) for index in range(3)]
    start, rate = np.random.default_rng(seed).standard_normal(4) * 3, 1e-3
    updates = np.stack([-rate * hessian @ (start - best) for hessian, best, _ in domains])
    solution = omg.solve(updates @ updates.T, kappa=0.9)
    step = 1e-3 * solution.coefficients @ updates
    assume(solution.objective > 1e-3 * (updates**2).sum(axis=1).mean())

    def losses(at: Array) -> Array:
        return np.array([(at - best) @ hessian @ (at - best) / 2 for hessian, best, _ in domains])

    assert (losses(start + step) < losses(start)).all()
    assert (losses(start - step) > losses(start)).all()


def test_directions_are_those_of_the_solver() -> None:
    updates = torch.from_numpy(_updates(0))
    expected = omg.solve(updates @ updates.T, kappa=0.5).coefficients @ updates
    torch.testing.assert_close(omg.direction(updates, kappa=0.5), expected)
