"""Named settings of FedOMG: those of the paper and those of the published code, which differ."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args, overload

import numpy as np
from torch import Tensor

from fedomg.omg.arguments import Array, Vector, Weights, check_gram, check_kappa, check_reference
from fedomg.omg.published import solve_softmax
from fedomg.omg.solver import Solution, solve_exact, to_tensors

Solver: TypeAlias = Literal["exact", "reference"]
Weighting: TypeAlias = Literal["samples", "uniform", "delta"]
Scale: TypeAlias = Literal["none", "rescale"]


@dataclass(frozen=True)
class Preset:
    """Everything between the updates of the clients and the step of the server.

    ``weighting`` says what the sample shares p_u do: ``samples`` makes them the weights of the reference aggregate, ``uniform`` ignores
    them, ``delta`` hands the vectors p_u h_u with uniform weights to the solver, which is a different problem: small clients get short
    vectors and thereby attract weight. ``scale`` = ``rescale`` divides the result by 1 + kappa²; ``times_clients`` multiplies it by the
    number of clients. ``steps``, ``lr``, ``momentum`` and ``step_size`` (the learning rate is halved after so many steps) belong to the
    reference solver; ``lr_by_clients`` are the numbers of clients for which the code has another learning rate.
    """

    name: str
    kappa: float = 0.5
    solver: Solver = "exact"
    weighting: Weighting = "samples"
    scale: Scale = "rescale"
    server_lr: float = 1.0
    times_clients: bool = False
    steps: int = 20
    lr: float = 25.0
    momentum: float = 0.5
    step_size: int | None = None
    lr_by_clients: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_kappa(self.kappa)
        for value, allowed, what in (
            (self.solver, get_args(Solver), "solver"),
            (self.weighting, get_args(Weighting), "weighting"),
            (self.scale, get_args(Scale), "scale"),
        ):
            if value not in allowed:
                raise ValueError(f"unknown {what} {value!r}; there are: {', '.join(allowed)}")

    def factor(self, clients: int) -> float:
        """What the direction of the theorem is multiplied by before the server learning rate."""
        rescale = 1.0 / (1.0 + self.kappa**2) if self.scale == "rescale" else 1.0
        return rescale * clients if self.times_clients else rescale


_FIFTY = MappingProxyType({50: 50.0})  # CAGrad's setting for a benchmark of fifty tasks, carried along by the published code

_PRESETS = {
    one.name: one
    for one in (
        Preset("fedomg"),
        Preset("paper_alg1", solver="reference", weighting="uniform", scale="none", server_lr=0.05),
        Preset("paper_eq", scale="none", server_lr=0.05),
        # The README of the code sets steps and momentum (the parser's default is 0.1) and leaves kappa at the parser's 0.25.
        Preset("code_fl", kappa=0.25, solver="reference", weighting="uniform", steps=25, step_size=30, lr_by_clients=_FIFTY),
        Preset("code_fl_2025", solver="reference", weighting="delta", times_clients=True, steps=100, step_size=30, lr_by_clients=_FIFTY),
        Preset("code_dg", solver="reference", weighting="delta", server_lr=0.5, lr_by_clients=_FIFTY),
        Preset("code_fdgbench", solver="reference", weighting="delta", server_lr=0.1, lr_by_clients=MappingProxyType({100: 100.0})),
    )
}


def preset(name: str) -> Preset:
    """The settings called ``name``.

    ``fedomg`` is the default of this package: raw updates, sample weights, exact solver, divided by 1 + kappa². ``paper_eq`` is the theorem
    of the paper and ``paper_alg1`` its algorithm with the iterative solver; ``code_fl`` is the label-shift half of the published code,
    ``code_fl_2025`` the same as of February 2025, ``code_dg`` the domain-generalization half, and ``code_fdgbench`` the code of the CelebA
    experiments. Change single settings with ``dataclasses.replace``.
    """
    try:
        return _PRESETS[name]
    except (KeyError, TypeError):
        nearest = difflib.get_close_matches(str(name), _PRESETS, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown preset {name!r}; did you mean {nearest!r}? There are: {', '.join(_PRESETS)}") from None


@overload
def solve_preset(gram: Tensor, weights: Weights | None, preset: Preset) -> Solution[Tensor]: ...
@overload
def solve_preset(gram: Array, weights: Weights | None, preset: Preset) -> Solution[Vector]: ...
def solve_preset(gram: Array | Tensor, weights: Weights | None, preset: Preset) -> Solution[Vector] | Solution[Tensor]:
    """Solve for the raw updates h_u, of which ``gram`` is the Gram matrix, under all settings of ``preset`` but the server learning rate.

    ``weights`` are the shares p_u of the clients (normalised here, uniform if None). The ``coefficients`` of the answer apply to the raw
    updates and include weighting and scale; ``weights``, ``objective`` and ``gap`` are those of the problem that the solver was given.
    """
    matrix = check_gram(gram)
    count = len(matrix)
    shares = check_reference(weights, count)
    uniform = np.full(count, 1.0 / count)
    vectors = shares if preset.weighting == "delta" else np.ones(count)
    given = matrix * np.outer(vectors, vectors) if preset.weighting == "delta" else matrix
    reference = shares if preset.weighting == "samples" else uniform
    if preset.solver == "exact":
        bare = solve_exact(given, reference, preset.kappa)
    else:
        lr = preset.lr_by_clients.get(count, preset.lr)
        bare = solve_softmax(given, reference, preset.kappa, preset.steps, lr, preset.momentum, preset.step_size)
    solution = Solution(
        bare.weights, bare.objective, bare.gap, bare.iterations, bare.converged, bare.coefficients * vectors * preset.factor(count)
    )
    return to_tensors(solution) if isinstance(gram, Tensor) else solution
