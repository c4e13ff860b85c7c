"""The solver of the published FedOMG code: a softmax descent of fixed length."""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from torch import Tensor

from fedomg.omg.arguments import Array, Matrix, Vector, Weights, check_gram, check_kappa, check_reference
from fedomg.omg.solver import TOLERANCE, Solution, certify, to_tensors


@overload
def solve_reference(
    gram: Tensor,
    kappa: float,
    steps: int = 20,
    lr: float = 25.0,
    momentum: float = 0.5,
    step_size: int | None = None,
    reference: Weights | None = None,
) -> Solution[Tensor]: ...
@overload
def solve_reference(
    gram: Array,
    kappa: float,
    steps: int = 20,
    lr: float = 25.0,
    momentum: float = 0.5,
    step_size: int | None = None,
    reference: Weights | None = None,
) -> Solution[Vector]: ...
def solve_reference(
    gram: Array | Tensor,
    kappa: float,
    steps: int = 20,
    lr: float = 25.0,
    momentum: float = 0.5,
    step_size: int | None = None,
    reference: Weights | None = None,
) -> Solution[Vector] | Solution[Tensor]:
    """The solver of the published FedOMG code, inherited from CAGrad: momentum SGD on the logits of a softmax.

    It takes ``steps`` steps, halves the learning rate every ``step_size`` of them (never if None) and keeps the best weights seen, the
    uniform start included. The constants 1e-4 are the code's; they matter for updates shorter than about 1e-2. The certificate is as honest
    as everywhere, so ``converged`` is mostly False; the gap may even be negative where the constants push the direction out of the ball.
    """
    matrix = check_gram(gram)
    weights = check_reference(reference, len(matrix))
    solution = solve_softmax(matrix, weights, check_kappa(kappa), steps, lr, momentum, step_size)
    return to_tensors(solution) if isinstance(gram, Tensor) else solution


def solve_softmax(
    gram: Matrix, reference: Vector, kappa: float, steps: int, lr: float, momentum: float, step_size: int | None
) -> Solution[Vector]:
    """``solve_reference`` on arguments that are known to be good."""
    floor = 1e-4
    scaled = gram / float(np.sqrt(np.diag(gram) + floor).mean()) ** 2
    inner = scaled @ reference
    radius = kappa * math.sqrt(max(float(reference @ inner), 0.0) + floor)

    logits, velocity = np.zeros(len(gram)), np.zeros(len(gram))
    best, lowest = _softmax(logits), math.inf
    for step in range(steps + 1):
        weights = _softmax(logits)
        pull = scaled @ weights
        length = math.sqrt(max(float(weights @ pull), 0.0) + floor)
        value = float(weights @ inner) + radius * length
        if value < lowest:
            best, lowest = weights, value
        slope = inner + radius / length * pull
        velocity = momentum * velocity + weights * (slope - float(weights @ slope))
        logits = logits - lr * (0.5 ** (step // step_size) if step_size else 1.0) * velocity

    length = math.sqrt(max(float(best @ scaled @ best), 0.0) + floor)
    coefficients = reference + radius / (length + floor) * best
    objective, gap = certify(gram, reference, kappa, best, coefficients, np.ones(len(gram), dtype=np.bool_))
    return Solution(best, objective, gap, steps, abs(gap) <= TOLERANCE * float(np.diag(gram).mean()), coefficients)


def _softmax(logits: Vector) -> Vector:
    powers: Vector = np.exp(logits - logits.max())
    return powers / float(powers.sum())
