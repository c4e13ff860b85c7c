"""The OMG rule: the invariant direction in place of the mean."""

from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedomg import omg
from fedomg.core.errors import UserError
from fedomg.server.options import AggregatorOptions
from fedomg.server.rules import Combination


class OMGOptions(AggregatorOptions):
    preset: str = Field("fedomg", description="a named variant; keys set beside it win over its values")
    kappa: float = Field(0.5, ge=0, allow_inf_nan=False, description="radius of the search, as a share of the reference's norm")
    solver: Literal["exact", "reference"] = Field("exact", description="exact, or the published softmax descent")
    rescale: bool = Field(True, description="divide by 1 + kappa^2")


class OMG:
    """Replaces the mean by the direction with the largest worst-case inner product with the updates (Nguyen et al., ICLR 2025)."""

    individual = "the server matches the clients' updates against each other"

    def __init__(self, options: OMGOptions) -> None:
        scale: Literal["rescale", "none"] = "rescale" if options.rescale else "none"
        self._preset = replace(find_preset(options.preset), kappa=options.kappa, solver=options.solver, scale=scale)

    def combine(self, gram: Tensor, reference: Tensor) -> Combination:
        found = omg.solve_preset(gram, reference, self._preset)
        used = torch.full_like(reference, 1 / len(reference)) if self._preset.weighting == "uniform" else reference
        return Combination(found.coefficients, used, found.weights, found.objective, found.gap, found.converged)


def find_preset(name: str) -> omg.Preset:
    try:
        return omg.preset(name)
    except ValueError as error:
        raise UserError(f"aggregator.preset: {error}") from None


def preset_defaults(name: str) -> tuple[dict[str, Any], float]:
    """What a preset says about the other keys of `[aggregator]`, and its server learning rate."""
    preset = find_preset(name)
    return {"kappa": preset.kappa, "solver": preset.solver, "rescale": preset.scale == "rescale"}, preset.server_lr
