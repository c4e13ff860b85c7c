"""MoFedSAM: FedSAM whose steps lean towards the direction that the server took in the round before.

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022. A client steps with beta g + (1 - beta) D,
where g is FedSAM's gradient and D the mean gradient of the previous round: minus the clients' mean update over the mean distance they
went (local steps times learning rate), zero in the first round. Both means weight clients by their examples, as FedSAM does, also where the
matching rule combines the updates; the authors' code weights them uniformly.

The distance is the sum of the learning rates of the steps really taken, so that schedules and clients of different length are right.
With `local.momentum` m an update is 1 / (1 - m) times as long and its distance is counted so: otherwise D would outgrow the gradients.
Under Adam an update is no sum of gradients, and Adam is refused. `local.clip` bounds the mixed gradient.
"""

from collections.abc import Sequence
from functools import partial

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.params import Group, Tensors
from fedomg.core.records import FIT, Reply
from fedomg.data.examples import Batch
from fedomg.local.loop import Progress, Stage, Visit
from fedomg.local.trainer import Trainer
from fedomg.methods.fedsam import FedSamOptions, sharpness_aware
from fedomg.methods.method import Entry
from fedomg.omg import combine
from fedomg.server.coordinator import Coordinator

PREVIOUS, DISTANCE = "previous", "distance"


class MoFedSamOptions(FedSamOptions):
    beta: float = Field(0.6, gt=0, le=1, description="share of the own gradient in a step; the rest is the previous round's mean gradient")

    @model_validator(mode="after")
    def _sgd(self) -> "MoFedSamOptions":
        if self.optimizer != "sgd":
            raise UserError("mofedsam reads the mean gradient off the updates, which only sgd allows: leave out local.optimizer")
        return self


class MoFedSam(Trainer[MoFedSamOptions]):
    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(gradient=partial(self._gradient, previous=visit.broadcast.extras[PREVIOUS])),)

    def _gradient(self, visit: Visit, batches: list[Batch], previous: Tensor) -> Tensor:
        loss = sharpness_aware(visit, batches, self.options.rho)
        visit.model.gradients[Group.SHARED].mul_(self.options.beta).add_(previous, alpha=1 - self.options.beta)
        return loss

    def report(self, visit: Visit, progress: Progress) -> Tensors:
        return {DISTANCE: torch.tensor(progress.distance / (1 - self.options.momentum), dtype=torch.float64)}


class MoFedSamCoordinator(Coordinator[MoFedSamOptions]):
    def initial(self, clients: int, parameters: int) -> Tensors:
        return {PREVIOUS: torch.zeros(parameters)}

    def extras(self, phase: str, client: int, state: Tensors) -> Tensors:
        return state if phase in (FIT, "view:adapted") else {}

    def collect(self, phase: str, replies: Sequence[Reply], updates: Tensor | None, state: Tensors) -> Tensors:
        assert updates is not None
        samples = torch.tensor([reply.samples for reply in replies], dtype=torch.float64)
        distances = torch.tensor([float(reply.extras[DISTANCE]) for reply in replies], dtype=torch.float64)
        travelled = samples @ distances
        return {PREVIOUS: combine(-samples / travelled, updates)} if travelled else state


METHOD = Entry(
    "mofedsam",
    "FedSAM with the previous round's direction as momentum",
    "Qu et al., ICML 2022",
    local=MoFedSamOptions,
    trainer=MoFedSam,
    coordinator=MoFedSamCoordinator,
)
