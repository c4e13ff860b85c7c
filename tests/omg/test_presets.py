"""The published solver and the named settings."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.omg.families import NAMES, Array, Problem, draw, uniform

from fedomg import omg

PAPER_AND_CODE = ("paper_eq", "paper_alg1", "code_fl", "code_fl_2025", "code_dg", "code_fdgbench")


def transcribed(
    vectors: Array, kappa: float, steps: int, lr: float, momentum: float, halve_every: int | None = None, shares: Array | None = None
) -> Array:
    """The direction of the published solver, step by step on the vectors with automatic gradients, divided by 1 + kappa²."""
    rows = torch.from_numpy(vectors)
    count = len(rows)
    reference = torch.full((count,), 1.0 / count, dtype=torch.float64) if shares is None else torch.from_numpy(shares)
    gram = rows @ rows.T
    scale = (gram.diagonal() + 1e-4).sqrt().mean()
    gram = gram / scale**2
    inner = gram @ reference
    radius = kappa * (reference @ inner + 1e-4).sqrt()
    logits = torch.zeros(count, 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=lr, momentum=momentum)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, halve_every or 10**9, 0.5)
    best, lowest = logits.detach().clone(), float("inf")
    for step in range(steps + 1):
        optimizer.zero_grad()
        weights = torch.softmax(logits, 0)[:, 0]
        objective = inner @ weights + radius * (weights @ gram @ weights + 1e-4).sqrt()
        if float(objective.detach()) < lowest:
            lowest, best = float(objective.detach()), logits.detach().clone()
        if step < steps:
            objective.backward()
            optimizer.step()
            schedule.step()
    weights = torch.softmax(best, 0)[:, 0]
    length = (weights @ gram @ weights + 1e-4).sqrt()
    direction: Array = ((reference + radius / (length + 1e-4) * weights) @ rows / (1 + kappa**2)).numpy()
    return direction


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_solver_is_the_published_one(name: str) -> None:
    for rows, steps, momentum, halve_every in ((3, 20, 0.5, None), (12, 100, 0.1, 30)):
        vectors = draw(name, rows, 7)
        vectors /= np.linalg.norm(vectors, axis=1).max()
        solution = omg.solve_reference(vectors @ vectors.T, 0.5, steps, 25.0, momentum, halve_every)
        expected = transcribed(vectors, 0.5, steps, 25.0, momentum, halve_every)
        np.testing.assert_allclose(solution.coefficients @ vectors / 1.25, expected, rtol=1e-6, atol=1e-9)
        assert solution.weights.sum() == pytest.approx(1.0)


def test_the_reference_solver_takes_reference_weights() -> None:
    vectors, shares = draw("conflicting", 5, 0), np.array([0.1, 0.2, 0.3, 0.3, 0.1])
    solution = omg.solve_reference(torch.from_numpy(vectors @ vectors.T), 0.5, reference=shares)
    assert isinstance(solution.weights, torch.Tensor)
    expected = transcribed(vectors, 0.5, 20, 25.0, 0.5, shares=shares)
    np.testing.assert_allclose(solution.coefficients.numpy() @ vectors / 1.25, expected, rtol=1e-6, atol=1e-9)


def test_exact_and_reference_agree_for_three_clients() -> None:
    # Updates of a model, nearly orthogonal. Where they are few-dimensional or in conflict the published solver misses far more.
    for seed in range(30):
        problem = Problem(np.random.default_rng(seed).standard_normal((3, 1000)), uniform(3), 0.5)
        gram = problem.updates @ problem.updates.T
        exact, published = omg.solve(gram), omg.solve_reference(gram, 0.5)
        achievable = problem.objective(uniform(3)) - exact.objective
        assert published.objective - exact.objective <= 0.01 * achievable
        assert published.objective >= exact.objective - 1e-9 * problem.mean_square


def test_the_reference_solver_misses_example_4_and_says_so() -> None:
    rows = np.array([[1.0, 1.0], [1.0, -2.0]])
    solution = omg.solve_reference(rows @ rows.T, 1.0)
    np.testing.assert_allclose(solution.weights, [1, 0], atol=1e-4)
    assert not solution.converged
    assert solution.gap > 0.01


def test_the_reference_solver_survives_zero_and_tiny_updates() -> None:
    for scale in (0.0, 1e-8, 1e8):
        rows = scale * draw("gaussian", 4, 0)
        solution = omg.solve_reference(rows @ rows.T, 0.5)
        assert np.isfinite(solution.coefficients).all()
        assert np.isfinite(solution.gap)


def test_the_tabled_settings() -> None:
    table = {name: omg.preset(name) for name in PAPER_AND_CODE}
    assert {name: p.kappa for name, p in table.items()} == dict.fromkeys(PAPER_AND_CODE, 0.5) | {"code_fl": 0.25}
    assert {name: p.solver for name, p in table.items()} == dict.fromkeys(PAPER_AND_CODE, "reference") | {"paper_eq": "exact"}
    assert [table[name].weighting for name in PAPER_AND_CODE] == ["samples", "uniform", "uniform", "delta", "delta", "delta"]
    assert [table[name].server_lr for name in PAPER_AND_CODE] == [0.05, 0.05, 1.0, 1.0, 0.5, 0.1]
    assert [table[name].scale for name in PAPER_AND_CODE] == ["none"] * 2 + ["rescale"] * 4
    assert [table[name].steps for name in PAPER_AND_CODE] == [20, 20, 25, 100, 20, 20]
    assert [name for name in PAPER_AND_CODE if table[name].times_clients] == ["code_fl_2025"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        table["code_dg"].kappa = 0.1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "count", "steps", "lr", "momentum", "halve_every", "factor"),
    [
        ("code_fl_2025", 3, 100, 25.0, 0.5, 30, 3.0),
        ("code_fl_2025", 50, 100, 50.0, 0.5, 30, 50.0),
        ("code_dg", 3, 20, 25.0, 0.5, None, 1.0),
        ("code_fdgbench", 100, 20, 100.0, 0.5, None, 1.0),
        ("code_fdgbench", 99, 20, 25.0, 0.5, None, 1.0),
    ],
)
def test_weighted_presets_against_the_transcription(
    name: str, count: int, steps: int, lr: float, momentum: float, halve_every: int | None, factor: float
) -> None:
    updates = 10 * draw("gaussian", count, 5)
    shares = np.random.default_rng(1).dirichlet(np.ones(count))
    solution = omg.solve_preset(updates @ updates.T, shares, omg.preset(name))
    expected = transcribed(shares[:, None] * updates, 0.5, steps, lr, momentum, halve_every) * factor
    np.testing.assert_allclose(solution.coefficients @ updates, expected, rtol=1e-6, atol=1e-9)


def test_code_fl_ignores_the_sample_counts() -> None:
    updates, shares = draw("gaussian", 4, 0), np.array([0.7, 0.1, 0.1, 0.1])
    solution = omg.solve_preset(torch.from_numpy(updates @ updates.T), shares, omg.preset("code_fl"))
    np.testing.assert_allclose(solution.coefficients.numpy() @ updates, transcribed(updates, 0.25, 25, 25.0, 0.5, 30), rtol=1e-6)


def test_kappa_zero_tells_the_presets_apart() -> None:
    updates, shares = draw("gaussian", 3, 0), np.array([0.5, 0.3, 0.2])
    gram = updates @ updates.T

    def coefficients(name: str) -> Array:
        # The code's constants leave a trace of 1e-4, none of it at kappa 0.
        return omg.solve_preset(gram, shares, dataclasses.replace(omg.preset(name), kappa=0.0)).coefficients

    np.testing.assert_allclose(coefficients("code_fl_2025"), shares)
    np.testing.assert_allclose(coefficients("code_fl"), uniform(3))
    np.testing.assert_allclose(coefficients("code_dg"), shares / 3)
    np.testing.assert_allclose(coefficients("fedomg"), shares)


def test_example_8_the_two_weightings_disagree() -> None:
    rows, shares = np.array([[1.0, 1.0], [1.0, -2.0]]), [0.75, 0.25]
    delta = dataclasses.replace(omg.preset("code_fl_2025"), solver="exact", scale="none")
    solution = omg.solve_preset(rows @ rows.T, shares, delta)
    np.testing.assert_allclose(solution.weights, [0, 1], atol=1e-9)
    np.testing.assert_allclose(solution.coefficients @ rows, [1.230489, -0.210977], atol=1e-6)
    referenced = omg.solve_preset(rows @ rows.T, shares, omg.preset("paper_eq"))
    np.testing.assert_allclose(referenced.coefficients @ rows, [1.450694, 0.0], atol=1e-6)


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'code_dg'"):
        omg.preset("code_gd")
    with pytest.raises(ValueError, match="solver"):
        omg.Preset("mine", solver="magic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kappa"):
        omg.Preset("mine", kappa=-1.0)
