"""From updates to the direction: accuracy, dtypes, memory and broken rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.omg.families import NAMES, Problem, draw, uniform
from torch import Tensor

from fedomg import omg
from fedomg.omg.direction import combine, gram_matrix

HALVES = (torch.float16, torch.bfloat16)


def updates_like_a_model(rows: int = 5, columns: int = 300_000, seed: int = 0) -> Tensor:
    """More columns than a block has."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def cosine_error(gram: Tensor, updates: Tensor) -> float:
    exact = updates.double() @ updates.double().T
    lengths = exact.diagonal().sqrt()
    return float(((gram - exact).abs() / torch.outer(lengths, lengths)).max())


# --- the Gram matrix --------------------------------------------------------------------------------------------------------------------


def test_blocks_add_up_to_the_whole() -> None:
    updates = updates_like_a_model().double()
    gram = gram_matrix(updates)
    assert gram.dtype == torch.float64
    torch.testing.assert_close(gram, updates @ updates.T, rtol=1e-12, atol=1e-12)
    left, right = gram_matrix(updates[:, :123_457]), gram_matrix(updates[:, 123_457:])
    torch.testing.assert_close(left + right, gram, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-7), (torch.float16, 1e-6), (torch.bfloat16, 1e-6)])
def test_narrow_types_are_accurate(dtype: torch.dtype, error: float) -> None:
    updates = updates_like_a_model().to(dtype)
    assert cosine_error(gram_matrix(updates), updates) < error


def test_accuracy_holds_where_norms_are_a_million_fold_apart() -> None:
    updates = updates_like_a_model() + 0.3
    updates[0] *= 1e6
    updates[1] *= 1e-6
    assert cosine_error(gram_matrix(updates), updates) < 1e-7


@pytest.mark.parametrize("scale", [1e-35, 1e-22, 1e25, 1e30])
def test_squares_beyond_float32_are_no_trouble(scale: float) -> None:
    updates = updates_like_a_model(3, 1000)
    updates[1] *= scale
    gram = gram_matrix(updates)
    assert cosine_error(gram, updates) < 1e-6
    assert torch.isfinite(omg.direction(updates)).all()


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("name", NAMES)
def test_float32_updates_get_a_direction_near_the_best_and_an_honest_flag(name: str, kappa: float) -> None:
    # Rounding in float32 leaves squared lengths good to 1e-7, so values near a length of zero to its square root.
    for count, seed in ((2, 0), (7, 1), (25, 2)):
        rows = draw(name, count, seed).astype(np.float32)
        gram = gram_matrix(torch.from_numpy(rows)).numpy()
        solution = omg.solve(gram, None, kappa)
        problem = Problem(rows.astype(np.float64), uniform(count), kappa)
        assert (solution.weights >= 0).all()
        assert solution.weights.sum() == pytest.approx(1.0)
        assert np.isfinite([solution.objective, solution.gap, *solution.coefficients]).all()
        assert not solution.converged or abs(solution.gap) <= 1e-7 * gram.diagonal().mean()
        if not problem.moving.any():
            continue
        best = omg.solve(problem.updates @ problem.updates.T, None, kappa).coefficients @ problem.updates
        assert problem.worst(solution.coefficients @ problem.updates) >= problem.worst(best) - 1e-3 * (1 + kappa) * problem.mean_square


def test_a_row_that_is_not_finite_spoils_only_its_own_entries() -> None:
    for bad in (float("nan"), float("inf")):
        updates = updates_like_a_model(4, 5000)
        clean = gram_matrix(updates)
        updates[2, 17] = bad
        gram = gram_matrix(updates)
        kept = [0, 1, 3]
        assert not torch.isfinite(gram[2, 2])
        torch.testing.assert_close(gram[kept][:, kept], clean[kept][:, kept])


@pytest.mark.parametrize("transform", [lambda h: h.T.contiguous().T, lambda h: h[:, ::2], lambda h: h.requires_grad_()])
def test_any_layout_will_do(transform: Any) -> None:
    updates = transform(updates_like_a_model(4, 3000))
    plain = updates.detach().clone()
    torch.testing.assert_close(gram_matrix(updates), gram_matrix(plain), rtol=1e-6, atol=1e-3)
    direction = omg.direction(updates)
    assert not direction.requires_grad
    torch.testing.assert_close(direction, omg.direction(plain), rtol=1e-4, atol=1e-5)


def test_no_columns() -> None:
    assert gram_matrix(torch.zeros(3, 0)).tolist() == [[0.0] * 3] * 3
    assert omg.direction(torch.zeros(3, 0)).shape == (0,)


# --- the weighted sum -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_the_weighted_sum(dtype: torch.dtype) -> None:
    updates = updates_like_a_model().to(dtype)
    coefficients = torch.tensor([0.5, 0.0, -1.0, 2.0, 0.25], dtype=torch.float64)
    total = combine(coefficients, updates)
    assert total.dtype == (torch.float32 if dtype in HALVES else dtype)
    torch.testing.assert_close(total.double(), coefficients @ updates.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(total, combine(coefficients, updates))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_weight_may_be_broken(dtype: torch.dtype) -> None:
    updates = torch.ones(4, 7, dtype=dtype)
    updates[0], updates[2] = float("nan"), float("inf")
    total = combine(torch.tensor([0.0, 2.0, 0.0, 3.0], dtype=torch.float64), updates)
    assert total.tolist() == [5.0] * 7
    assert combine(torch.zeros(4, dtype=torch.float64), updates).tolist() == [0.0] * 7


def test_one_coefficient_a_row() -> None:
    with pytest.raises(ValueError, match="one coefficient"):
        combine(torch.ones(3), torch.ones(4, 2))


# --- memory -----------------------------------------------------------------------------------------------------------------------------

MEASURE = """
import pathlib, torch
from fedomg import omg

def peak():
    return int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

omg.direction(torch.ones(4, 100_000, dtype=torch.{dtype}))
updates = torch.empty(16, 1 << 22, dtype=torch.{dtype}).normal_()
before = peak()
omg.direction(updates)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of the memory from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_of_the_memory_is_one_result_and_some_blocks(dtype: str) -> None:
    # The result has 16 MiB; a copy of the matrix in float32 would have 256.
    answer = subprocess.run([sys.executable, "-c", MEASURE.format(dtype=dtype)], capture_output=True, text=True, check=True)
    assert float(answer.stdout) < 48


# --- direction --------------------------------------------------------------------------------------------------------------------------


def test_the_direction_is_the_bare_theorem() -> None:
    rows = draw("conflicting", 6, 0)
    shares = np.array([1.0, 2, 3, 1, 2, 3])
    expected = omg.solve(rows @ rows.T, shares, 0.4).coefficients @ rows
    direction = omg.direction(torch.from_numpy(rows), shares, 0.4)
    np.testing.assert_allclose(direction.numpy(), expected, atol=1e-9)
    rescaled = omg.direction(torch.from_numpy(rows), torch.from_numpy(shares), 0.4, rescale=True)
    np.testing.assert_allclose(rescaled.numpy(), expected / 1.16, atol=1e-9)


def test_the_reference_solver_obeys_reference_and_rescale() -> None:
    rows = draw("conflicting", 6, 0)
    shares = np.array([1.0, 2, 3, 1, 2, 3]) / 12
    expected = omg.solve_reference(rows @ rows.T, 0.5, reference=shares).coefficients @ rows
    updates = torch.from_numpy(rows)
    np.testing.assert_allclose(omg.direction(updates, shares, solver="reference").numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(omg.direction(updates, shares, rescale=True, solver="reference").numpy(), expected / 1.25, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_the_direction_has_the_dtype_of_the_updates(dtype: torch.dtype) -> None:
    updates = torch.from_numpy(draw("common", 5, 0)).to(dtype)
    kept = updates.clone()
    direction = omg.direction(updates)
    assert direction.dtype == (torch.float32 if dtype in HALVES else dtype)
    exact = omg.direction(updates.double())
    torch.testing.assert_close(direction.double(), exact, rtol=1e-3, atol=1e-4)
    assert torch.equal(updates, kept)


def test_kappa_zero_is_the_weighted_mean_to_the_bit() -> None:
    updates = updates_like_a_model(6, 5000)
    shares = torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=torch.float64) / 21
    assert torch.equal(omg.direction(updates, shares, 0.0), combine(shares, updates))


def test_broken_rows_are_dropped_by_name() -> None:
    updates = updates_like_a_model(5, 400)
    clean = omg.direction(updates[[0, 2, 4]], [1.0, 3.0, 5.0])
    updates[1, 3], updates[3, 0] = float("nan"), float("-inf")
    with pytest.warns(RuntimeWarning, match="not finite: 1, 3"):
        direction = omg.direction(updates, [1.0, 2.0, 3.0, 4.0, 5.0])
    torch.testing.assert_close(direction, clean)


def test_nothing_left_is_no_step() -> None:
    with pytest.warns(RuntimeWarning, match="0, 1"):
        assert omg.direction(torch.full((2, 3), float("nan"))).tolist() == [0.0] * 3
    updates = torch.ones(2, 3)
    updates[0] = float("nan")
    with pytest.warns(RuntimeWarning, match="finite: 0"):  # the row that is left has no weight
        assert omg.direction(updates, [1.0, 0.0]).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("updates", "options", "error", "word"),
    [
        (torch.ones(3), {}, ValueError, "matrix"),
        (torch.ones(0, 3), {}, ValueError, "matrix"),
        (torch.ones(2, 3, dtype=torch.int64), {}, TypeError, "floating"),
        (np.ones((2, 3)), {}, TypeError, "tensor"),
        (torch.ones(2, 3), {"kappa": -1.0}, ValueError, "kappa"),
        (torch.ones(2, 3), {"solver": "magic"}, ValueError, "solver"),
        (torch.ones(2, 3), {"reference": [1.0]}, ValueError, "2 updates"),
        (torch.ones(2, 3), {"reference": [1.0, -1.0]}, ValueError, "negative"),
    ],
)
def test_what_is_refused(updates: Any, options: dict[str, Any], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        omg.direction(updates, **options)
