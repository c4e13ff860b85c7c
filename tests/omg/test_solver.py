"""The exact solver: examples worked out by hand, corner cases, certificate, and agreement with a conic solver."""

from __future__ import annotations

from typing import Any

import clarabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from tests.omg.families import NAMES, Array, Problem, draw, uniform

from fedomg import omg

HALF = np.sqrt(0.5)

# updates, reference, kappa, direction, objective, weights (None where they are not unique)
EXAMPLES: dict[str, tuple[list[list[float]], list[float] | None, float, list[float], float, list[float] | None]] = {
    "E1 orthogonal": ([[1, 0], [0, 1]], None, 0.5, [0.75, 0.75], 0.75, [0.5, 0.5]),
    "E2 the shorter takes all": ([[1, 0], [3, 0]], None, 0.5, [3, 0], 3, [1, 0]),
    "E2 for a large ball": ([[1, 0], [3, 0]], None, 3, [8, 0], 8, [1, 0]),
    "E3 at a vertex": ([[1, 1], [1, -2]], None, 0.5, [1.395285, -0.104715], 1.290569, [1, 0]),
    "E4 inside an edge": ([[1, 1], [1, -2]], None, 1, [2, 0], 2, [5 / 6, 1 / 6]),
    "E5 opposed": ([[2, 0], [-1, 0]], None, 0.5, [0.25, 0], -0.25, [0, 1]),
    "E6 opposed, kappa 1": ([[2, 0], [-1, 0]], None, 1, [0, 0], 0, None),
    "E7 opposed, kappa 2": ([[2, 0], [-1, 0]], None, 2, [0, 0], 0, None),
    "E7 opposed in a corner": ([[1, 0], [-0.5, 0], [0, 1]], None, 0.5, [0, 1 / 3], 0, None),
    "E8 weighted reference": ([[1, 1], [1, -2]], [0.75, 0.25], 0.5, [1.450694, 0], 1.450694, [0.481767, 0.518233]),
    "E8 weighted, kappa 1": ([[1, 1], [1, -2]], [0.75, 0.25], 1, [2, 0], 2, [7 / 12, 5 / 12]),
    "E9 three": ([[2, 0, 0], [0, 1, 0], [0, 0, 1]], None, 0.5, [2 / 3, 0.622008, 0.622008], 0.622008, [0, 0.5, 0.5]),
    "E10 a zero row": ([[1, 0], [0, 1], [0, 0]], None, 0.5, [0.5, 0.5], 0.5, [0.5, 0.5, 0]),
    "E11 the aggregate vanishes": ([[1, 0], [-1, 0]], None, 0.5, [0, 0], 0, None),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    updates, reference, kappa, direction, objective, weights = EXAMPLES[name]
    rows = np.array(updates, dtype=np.float64)
    solution = omg.solve(rows @ rows.T, reference, kappa)
    assert solution.converged
    np.testing.assert_allclose(solution.coefficients @ rows, direction, atol=1e-6)
    assert solution.objective == pytest.approx(objective, abs=1e-6)
    if weights is not None:
        np.testing.assert_allclose(solution.weights, weights, atol=1e-6)


def test_example_3_has_the_slope_of_the_hand_calculation() -> None:
    rows = np.array([[1.0, 1.0], [1.0, -2.0]])
    solution = omg.solve(rows @ rows.T)
    np.testing.assert_allclose(rows @ (solution.coefficients @ rows), [1.290569, 1.604715], atol=1e-6)


def test_example_9_leaves_slack_for_the_long_client() -> None:
    rows = np.diag([2.0, 1.0, 1.0])
    assert (rows @ (omg.solve(rows @ rows.T).coefficients @ rows))[0] == pytest.approx(4 / 3)


# --- corner cases -----------------------------------------------------------------------------------------------------------------------


def test_one_client_moves_by_one_plus_kappa() -> None:
    solution = omg.solve(np.array([[4.0]]), None, 0.5)
    np.testing.assert_allclose(solution.weights, [1.0])
    np.testing.assert_allclose(solution.coefficients, [1.5])
    assert solution.converged


def test_kappa_zero_returns_the_reference_itself() -> None:
    rows = draw("gaussian", 7, 0)
    reference = np.array([3.0, 1, 4, 1, 5, 9, 2])
    solution = omg.solve(rows @ rows.T, reference, 0.0)
    assert solution.converged
    assert (solution.coefficients == reference / reference.sum()).all()
    assert solution.gap == 0.0


@pytest.mark.parametrize("kappa", [-0.1, float("nan"), float("inf")])
def test_kappa_below_zero_or_not_finite_is_refused(kappa: float) -> None:
    with pytest.raises(ValueError, match="kappa"):
        omg.solve(np.eye(2), None, kappa)


def test_kappa_below_one_keeps_the_direction_in_a_cone_around_the_aggregate() -> None:
    for seed in range(20):
        rows = draw("gaussian", 5, seed)
        aggregate = rows.mean(axis=0)
        for kappa in (0.3, 0.9):
            direction = omg.solve(rows @ rows.T, None, kappa).coefficients @ rows
            square = float(aggregate @ aggregate)
            assert aggregate @ direction >= (1 - kappa) * square * (1 - 1e-9)
            cosine = aggregate @ direction / np.sqrt(square * (direction @ direction))
            assert cosine >= np.sqrt(1 - kappa**2) - 1e-9


def test_kappa_of_one_or_more_may_oppose_the_aggregate() -> None:
    rows = np.array([[3.0, 0.0], [-1.0, 1.0]])
    direction = omg.solve(rows @ rows.T, None, 3.0).coefficients @ rows
    opposed = np.array([[-1.0, 1.0], [10.0, 0.0]])
    assert omg.solve(opposed @ opposed.T, None, 3.0).converged
    assert np.linalg.norm(direction - rows.mean(axis=0)) == pytest.approx(3.0 * np.linalg.norm(rows.mean(axis=0)))


def test_all_zero_updates_give_a_zero_step_and_uniform_weights() -> None:
    solution = omg.solve(np.zeros((3, 3)))
    np.testing.assert_allclose(solution.weights, uniform(3))
    assert np.isfinite(solution.coefficients).all()
    assert (solution.objective, solution.gap, solution.converged) == (0.0, 0.0, True)


def test_identical_updates_get_uniform_weights() -> None:
    rows = np.ones((4, 3))
    solution = omg.solve(rows @ rows.T, None, 0.5)
    np.testing.assert_allclose(solution.weights, uniform(4))
    np.testing.assert_allclose(solution.coefficients @ rows, 1.5 * rows[0])


def test_zero_rows_get_no_weight_but_stay_in_the_reference() -> None:
    rows = draw("gaussian", 6, 1) + 1.0
    rows[2] = 0.0
    whole = omg.solve(rows @ rows.T)
    assert whole.weights[2] == 0.0
    assert whole.coefficients[2] == pytest.approx(1 / 6)
    assert whole.converged
    assert whole.objective > 0.0


def test_a_million_million_times_shorter_row_counts_as_zero() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1e-13, 0.0]])
    assert omg.solve(rows @ rows.T).weights[2] == 0.0
    rows[2, 0] = 1e-11
    assert omg.solve(rows @ rows.T).weights[2] > 0.9


def test_zero_in_the_hull_takes_the_nearest_optimal_direction() -> None:
    rows = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    reference = np.array([0.4, 0.2, 0.2, 0.2])
    solution = omg.solve(rows @ rows.T, reference, 2.0)
    np.testing.assert_allclose(solution.coefficients @ rows, [0.0, 0.2, 0.2], atol=1e-7)
    assert solution.converged


def test_a_gram_matrix_that_is_slightly_indefinite_gives_an_answer() -> None:
    rows = draw("rank deficient", 30, 3)
    gram = rows @ rows.T
    noise = np.random.default_rng(0).standard_normal(gram.shape) * 1e-13 * gram.max()
    solution = omg.solve(gram + noise + noise.T, None, 0.5)
    assert solution.converged
    single = rows.astype(np.float32)
    rough = omg.solve((single @ single.T).astype(np.float64), None, 3.0)
    assert np.isfinite(rough.coefficients).all()
    assert np.isfinite(rough.gap)


def test_a_large_federation() -> None:
    for name in ("nearly orthogonal", "mixed norms", "conflicting", "zero in hull", "rank deficient"):
        rows = draw(name, 300, 0)
        assert omg.solve(rows @ rows.T).converged, name


# --- arguments --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gram", "reference", "error", "word"),
    [
        (np.ones((2, 3)), None, ValueError, "square"),
        (np.ones(4), None, ValueError, "square"),
        (np.zeros((0, 0)), None, ValueError, "square"),
        (np.eye(2, dtype=np.int64), None, TypeError, "floating"),
        (torch.eye(2, dtype=torch.int64), None, TypeError, "floating"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), None, ValueError, "finite"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), None, ValueError, "symmetric"),
        (-np.eye(2), None, ValueError, "symmetric"),
        (np.eye(2), [1.0], ValueError, "2 updates"),
        (np.eye(2), [1.0, -1.0], ValueError, "negative"),
        (np.eye(2), [0.0, 0.0], ValueError, "sum to zero"),
        (np.eye(2), [1.0, float("inf")], ValueError, "finite"),
        (np.eye(2), ["a", "b"], TypeError, "numbers"),
    ],
)
def test_what_is_refused(gram: Any, reference: Any, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        omg.solve(gram, reference)


def test_kappa_must_be_a_number() -> None:
    with pytest.raises(TypeError, match="kappa"):
        omg.solve(np.eye(2), None, "0.5")  # type: ignore[call-overload]


def test_arrays_come_back_as_arrays_and_tensors_as_tensors() -> None:
    rows = draw("gaussian", 4, 0)
    gram = rows @ rows.T
    kept = gram.copy()
    plain = omg.solve(gram)
    tensor = omg.solve(torch.from_numpy(gram))
    assert isinstance(plain.weights, np.ndarray)
    assert plain.weights.dtype == np.float64
    assert isinstance(tensor.coefficients, torch.Tensor)
    assert tensor.weights.dtype == tensor.coefficients.dtype == torch.float64
    np.testing.assert_array_equal(tensor.coefficients.numpy(), plain.coefficients)
    np.testing.assert_array_equal(gram, kept)
    narrow = omg.solve(torch.from_numpy(gram).to(torch.bfloat16))
    assert narrow.weights.dtype == torch.float64


def test_the_reference_is_normalised() -> None:
    rows = draw("gaussian", 4, 0)
    shares = np.array([1.0, 2.0, 3.0, 4.0])
    once, scaled = omg.solve(rows @ rows.T, shares / 10), omg.solve(torch.from_numpy(rows @ rows.T), torch.tensor([1, 2, 3, 4]))
    np.testing.assert_allclose(scaled.coefficients.numpy(), once.coefficients, rtol=1e-12)


def test_threads_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        omg.solve(np.eye(3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# --- invariants over families of matrices -----------------------------------------------------------------------------------------------


@st.composite
def problems(draws: st.DrawFn) -> Problem:
    rows = draws(st.sampled_from([1, 2, 3, 5, 8, 20, 40]))
    seed = draws(st.integers(0, 2**32 - 1))
    updates = draw(draws(st.sampled_from(NAMES)), rows, seed) * 10.0 ** draws(st.sampled_from([-8, -3, 0, 3, 8]))
    reference = uniform(rows) if draws(st.booleans()) else np.random.default_rng(seed).dirichlet(np.ones(rows))
    return Problem(updates, reference, draws(st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.9, 1.0, 2.0, 3.0])))


def solved(problem: Problem) -> tuple[Any, Array]:
    solution = omg.solve(problem.updates @ problem.updates.T, problem.reference, problem.kappa)
    return solution, solution.coefficients @ problem.updates


@settings(max_examples=400, deadline=None)
@given(problems())
def test_the_answer_is_certified(problem: Problem) -> None:
    solution, direction = solved(problem)
    assert (solution.weights >= 0).all()
    assert solution.weights.sum() == pytest.approx(1.0)
    assert np.isfinite(solution.coefficients).all()
    assert solution.converged
    assert abs(solution.gap) <= 1e-7 * problem.mean_square
    if problem.moving.any():
        # The gap once more, from the vectors themselves. Cancellation in the Gram matrix leaves 1e-8 of the lengths.
        gap = problem.objective(solution.weights) - problem.worst(direction)
        assert abs(gap - solution.gap) <= 2e-7 * (1 + problem.kappa) * problem.mean_square
        assert (solution.weights[~problem.moving] == 0).all()


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_direction_lies_in_the_ball_and_improves_on_the_aggregate(problem: Problem) -> None:
    solution, direction = solved(problem)
    slack = 3e-7 * np.sqrt(problem.mean_square * len(problem.updates))
    assert np.linalg.norm(direction - problem.aggregate) <= problem.radius + slack
    if problem.moving.any():
        tolerance = 3e-7 * (1 + problem.kappa) * problem.mean_square
        assert problem.worst(direction) >= problem.worst(problem.aggregate) - tolerance
        assert problem.worst(direction) == pytest.approx(solution.objective, abs=tolerance)
        if problem.moving.all():
            assert solution.objective <= (1 + problem.kappa) * problem.aggregate @ problem.aggregate + tolerance
    combined = float(np.linalg.norm(solution.weights @ problem.updates))
    if problem.kappa > 0 and combined > 1e-3 * float(solution.weights @ np.linalg.norm(problem.updates, axis=1)):
        assert np.linalg.norm(direction - problem.aggregate) == pytest.approx(problem.radius, rel=1e-6, abs=slack)


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_direction_follows_permutations_rotations_and_scales(problem: Problem, seed: int) -> None:
    # F is flat around the optimum: a gap of 1e-9 leaves the direction free to about its square root.
    rng = np.random.default_rng(seed)
    _, direction = solved(problem)
    tolerance = 3e-4 * (1 + problem.kappa) * float(np.sqrt(problem.mean_square * len(problem.updates)))

    order = rng.permutation(len(problem.updates))
    _, permuted = solved(Problem(problem.updates[order], problem.reference[order], problem.kappa))
    np.testing.assert_allclose(permuted, direction, rtol=0, atol=tolerance)

    rotation = np.linalg.qr(rng.standard_normal((problem.updates.shape[1],) * 2))[0]
    _, rotated = solved(Problem(problem.updates @ rotation, problem.reference, problem.kappa))
    np.testing.assert_allclose(rotated, direction @ rotation, rtol=0, atol=tolerance)

    _, scaled = solved(Problem(7.0 * problem.updates, problem.reference, problem.kappa))
    np.testing.assert_allclose(scaled, 7.0 * direction, rtol=0, atol=7 * tolerance)


def test_norms_a_million_fold_apart() -> None:
    for seed in range(30):
        rows = 0.3 * draw("gaussian", 12, seed) + 1.0
        rows[0] *= 1e3
        rows[1] *= 1e-3
        solution = omg.solve(rows @ rows.T, None, 0.5)
        assert solution.converged
        # The short row has the smallest inner product with any direction, and takes the weight.
        assert solution.weights[1] > 0.9


def test_degenerate_matrices() -> None:
    # Small integers in few dimensions: many supports are optimal, and pivoting alone goes in circles on some.
    for seed in (1555034348, 1953129614, 2019869284, 2295238260, *range(60)):
        for kappa in (0.9, 2.0, 3.0):
            rows = draw("integers", 40, seed)
            shares = np.random.default_rng(seed).dirichlet(np.ones(40))
            assert omg.solve(rows @ rows.T, shares, kappa).converged, (seed, kappa)


def conic(problem: Problem) -> tuple[float, Array]:
    """Objective and direction from the primal second-order cone program: max t with ⟨h_u, d⟩ ≥ t and ‖d − g0‖ ≤ c."""
    rows, columns = problem.updates.shape
    constraints = np.vstack(
        [
            np.hstack([-problem.updates, np.ones((rows, 1))]),
            np.zeros((1, columns + 1)),
            np.hstack([-np.eye(columns), np.zeros((columns, 1))]),
        ]
    )
    right = np.concatenate([np.zeros(rows), [problem.radius], -problem.aggregate])
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-11
    cones = [clarabel.NonnegativeConeT(rows), clarabel.SecondOrderConeT(columns + 1)]
    quadratic = sparse.csc_matrix((columns + 1, columns + 1))
    linear = np.append(np.zeros(columns), -1.0)
    answer = clarabel.DefaultSolver(quadratic, linear, sparse.csc_matrix(constraints), right, cones, options).solve()
    assert "Solved" in str(answer.status)
    point = np.array(answer.x)
    return float(point[-1]), point[:-1]


@pytest.mark.parametrize("kappa", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("some zero rows", "identical")])
def test_agrees_with_a_conic_solver(name: str, kappa: float) -> None:
    for rows, seed in ((2, 0), (3, 1), (8, 2), (25, 3)):
        updates = draw(name, rows, seed)
        updates = updates[(updates != 0).any(axis=1)]
        problem = Problem(updates, np.random.default_rng(seed).dirichlet(np.ones(len(updates))), kappa)
        solution, direction = solved(problem)
        objective, other = conic(problem)
        assert solution.objective == pytest.approx(objective, abs=1e-6 * problem.mean_square)
        # Where zero is in the hull several directions are optimal; ours is nearest to the aggregate.
        if abs(objective) > 1e-5 * problem.mean_square:
            tolerance = 1e-3 * np.sqrt(problem.mean_square)
            np.testing.assert_allclose(direction, other, rtol=0, atol=tolerance)
        else:
            slack = 1e-5 * np.sqrt(problem.mean_square)
            assert np.linalg.norm(direction - problem.aggregate) <= np.linalg.norm(other - problem.aggregate) + slack


# --- the sign ---------------------------------------------------------------------------------------------------------------------------


def test_a_step_along_the_direction_lowers_every_loss_and_against_it_raises_every_loss() -> None:
    centres = np.array([[2.0, 1.0], [1.0, -2.0]])
    start = np.zeros(2)

    def losses(point: Array) -> Array:
        return np.asarray(0.5 * ((point - centres) ** 2).sum(axis=1))

    def trained(centre: Array) -> Array:
        point = start
        for _ in range(5):
            point = point - 0.01 * (point - centre)
        return point

    updates = np.array([trained(centre) - start for centre in centres])
    solution = omg.solve(updates @ updates.T, None, 0.5)
    assert solution.objective > 0.0
    direction = solution.coefficients @ updates
    assert (losses(start + 0.1 * direction) < losses(start)).all()
    assert (losses(start - 0.1 * direction) > losses(start)).all()
