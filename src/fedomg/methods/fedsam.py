"""FedSAM: clients descend along the gradient at the worst point nearby, and so towards flat minima.

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022; Caldarola et al., ECCV 2022. On each batch,
with g the gradient at w over all shared parameters jointly, a client takes the gradient at w + rho g / (||g|| + 1e-7) on the same
batch and steps with it from w. Momentum, weight decay (of w) and `local.clip` (of the gradient stepped with) are those of the common
options. Clients count by their examples, as in the code of Caldarola et al.; that of Qu et al. averages uniformly.

Only the first pass moves BatchNorm statistics; the FedOMG authors' code moves them three times a batch, once at the perturbed point.
That code also clips at 10, which here is `local.clip = 10`. Dropout draws anew in the second pass. `rho` is by default that of the
published codes; the FedOMG paper uses 0.6.
"""

from collections.abc import Sequence
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from fedomg.core.options import LARGE
from fedomg.core.params import Group
from fedomg.data.examples import Batch
from fedomg.local.loop import Stage, Visit, cross_entropy
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry

SMALLEST_NORM = 1e-7


class FedSamOptions(LocalOptions):
    rho: float = Field(0.1, ge=0, le=LARGE, allow_inf_nan=False, description="how far away the gradient is taken")


class FedSam(Trainer[FedSamOptions]):
    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(gradient=partial(sharpness_aware, rho=self.options.rho)),)


def sharpness_aware(visit: Visit, batches: list[Batch], rho: float) -> Tensor:
    """Leaves the gradient after an ascent of length rho in the gradient vector; returns the loss before it."""
    values, gradient = visit.model.shared, visit.model.gradients[Group.SHARED]
    loss = cross_entropy(visit, batches)
    loss.backward()
    if rho:
        start = values.clone()
        values.add_(gradient * (rho / (torch.linalg.vector_norm(gradient) + SMALLEST_NORM)))
        gradient.zero_()
        with visit.model.leaving_buffers():
            cross_entropy(visit, batches).backward()
        values.copy_(start)
    return loss.detach()


METHOD = Entry(
    "fedsam",
    "the gradient at the worst point nearby",
    "Qu et al., ICML 2022",
    local=FedSamOptions,
    trainer=FedSam,
)
