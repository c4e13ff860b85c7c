"""FedIIR: a client's classifier gradient is kept close to that of the whole federation.

Guo et al., "Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships", ICML 2023. A round has two
exchanges. First the sampled clients send the sum over their batches of the classifier's gradient at the received model, and the
number of batches; the server divides the sums and moves its mean gradient: m <- ema m + (1 - ema) new, from zero and without
correction of the bias. Then they receive m and minimise, on each batch,

    cross-entropy + penalty * ||gradient of the cross-entropy by the classifier - m||^2

whose gradient flows through the inner one to body and classifier. Clients count uniformly.

The classifier is the model's head, one linear layer in most models here; the authors' code has two. The first exchange runs in evaluation
mode and on all examples, so that the mean does not depend on their order. The authors freeze BatchNorm (`model.frozen_batchnorm`);
where it is not frozen the two passes differ by its statistics. `penalty` is by default that of the FedOMG paper; the authors' code
uses 5e-3 (VLCS), 1e-3 (PACS) and 5e-4 (OfficeHome). The model is sent in both exchanges, for a client keeps nothing between them.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from fedomg.core.errors import UserError
from fedomg.core.options import LARGE
from fedomg.core.params import FlatModel, Group, Tensors
from fedomg.core.records import FIT, Reply
from fedomg.data.examples import Batch
from fedomg.local.loop import Stage, Visit, cross_entropy
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry
from fedomg.models.split import split
from fedomg.server.coordinator import Coordinator, Phase
from fedomg.server.weighting import Uniform

HEAD = "head."
GRADIENT = "gradient"
SUM, BATCHES, MEAN = "sum", "batches", "mean"


class FedIirOptions(LocalOptions):
    penalty: float = Field(1e-4, ge=0, le=LARGE, allow_inf_nan=False, description="gamma, the pull to the mean classifier gradient")
    ema: float = Field(0.95, ge=0, le=1, description="how much of the mean classifier gradient stays from round to round")


class FedIir(Trainer[FedIirOptions]):
    def gather(self, phase: str, visit: Visit) -> Tensors:
        model, names = split(visit.model.module).eval(), _trained(visit.model)
        gradients = []
        with torch.no_grad():
            for inputs, labels in visit.client.train.in_order(self.options.batch_size):
                gradients.append(_classified(model.head, names, model.body(inputs), labels)[0])
        return {SUM: torch.stack(gradients).sum(dim=0), BATCHES: torch.tensor(len(gradients))}

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(partial(self._loss, names=_trained(visit.model)) if self.options.penalty else cross_entropy),)

    def _loss(self, visit: Visit, batches: list[Batch], names: Sequence[str]) -> Tensor:
        (inputs, labels), *_ = batches
        model = split(visit.model.module)
        own, loss = _classified(model.head, names, model.body(inputs), labels)
        distance = (own - visit.broadcast.extras.get(MEAN, 0)).square().sum()
        return loss + self.options.penalty * distance


def _trained(model: FlatModel) -> list[str]:
    """The names of the head's parameters."""
    names = [name.removeprefix(HEAD) for name, _ in model.parameters[Group.SHARED] if name.startswith(HEAD)]
    if not names:
        raise UserError("fediir compares gradients of the model's head, and this head is frozen: choose another model")
    return names


def _classified(head: nn.Module, names: Sequence[str], features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the cross-entropy in these parameters, itself to be differentiated, and the cross-entropy."""

    def loss_at(trained: Tensors) -> Tensor:
        return F.cross_entropy(functional_call(head, trained, (features,)), labels)

    parameters = dict(head.named_parameters())
    gradients, loss = grad_and_value(loss_at)({name: parameters[name] for name in names})
    return torch.cat([gradient.flatten() for gradient in gradients.values()]), loss


class FedIirCoordinator(Coordinator[FedIirOptions]):
    """Until a first mean gradient is known none is sent, which clients take for zero."""

    def phases(self, round: int, cohort: Sequence[int]) -> Sequence[Phase]:
        return Phase(GRADIENT, cohort), *super().phases(round, cohort)

    def extras(self, phase: str, client: int, state: Tensors) -> Tensors:
        return state if phase in (FIT, "view:adapted") else {}

    def collect(self, phase: str, replies: Sequence[Reply], updates: Tensor | None, state: Tensors) -> Tensors:
        if phase != GRADIENT:
            return state
        total = torch.stack([reply.extras[SUM] for reply in replies]).sum(dim=0)
        new = total / sum(int(reply.extras[BATCHES]) for reply in replies)
        return {MEAN: self.options.ema * state.get(MEAN, torch.zeros_like(new)) + (1 - self.options.ema) * new}


METHOD = Entry(
    "fediir",
    "classifier gradients kept close to the federation's mean",
    "Guo et al., ICML 2023",
    local=FedIirOptions,
    trainer=FedIir,
    coordinator=FedIirCoordinator,
    weighting=Uniform,
)
