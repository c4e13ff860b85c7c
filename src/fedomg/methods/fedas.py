"""FedAS: a client aligns the shared body to its own old features before training, and counts by the Fisher information it holds.

Yang, Huang and Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024. A sampled client computes the class
means of its features with the body of its last participation (the common initialisation at first), moves the received body towards
them for an epoch of plain SGD at `align_lr`, then trains body and head as configured. The server weights clients by the trace of the
Fisher information: the sum over batches of the squared gradient norm, so it grows with the number of batches. The personalised view is
the client's own model after its latest training, before it receives anything, and the initial model where it never trained.
"""

from collections.abc import Sequence
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from fedomg.core.params import Group, Tensors
from fedomg.core.records import ClientState, Reply
from fedomg.data.examples import Batch
from fedomg.local.features import class_features
from fedomg.local.loop import Progress, Stage, Visit, cross_entropy
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer, load
from fedomg.methods.method import Entry
from fedomg.models.split import split
from fedomg.server.weighting import Samples

BODY, FISHER = "body", "fisher"
OWN_BUFFER = "own/"


class FedAsOptions(LocalOptions):
    align_lr: float = Field(0.01, ge=0, allow_inf_nan=False, description="learning rate of the alignment")
    align_epochs: int = Field(1, ge=0, description="epochs of the alignment")


class FedAs(Trainer[FedAsOptions]):
    personalises = True
    answers_globally = False

    def group_of(self, name: str) -> Group:
        return Group.PERSONAL if name.startswith("head.") else Group.SHARED

    def stages(self, visit: Visit) -> Sequence[Stage]:
        _load_own_body(visit)
        old = class_features(visit).means
        load(visit)
        epochs, lr = self.options.align_epochs, self.options.align_lr
        align = Stage(partial(_align, old=old), groups=(Group.SHARED,), epochs=epochs, lr=lr, plain=True, name="align")
        return align, Stage()

    def report(self, visit: Visit, progress: Progress) -> Tensors:
        return {FISHER: _fisher_trace(visit, self.options.batch_size)}

    def remember(self, visit: Visit, progress: Progress) -> ClientState:
        own = {OWN_BUFFER + name: buffer.clone() for name, buffer in visit.model.buffers.items()}
        return {BODY: visit.model.shared.clone(), **own}

    def personalise(self, visit: Visit) -> None:
        _load_own_body(visit)


def _load_own_body(visit: Visit) -> None:
    """Body and BatchNorm statistics of the last participation, the initial ones before the first."""
    model, state = visit.model, visit.state
    model.shared.copy_(state.get(BODY, model.initial_values[Group.SHARED]))
    for name, buffer in model.buffers.items():
        buffer.copy_(state.get(OWN_BUFFER + name, model.initial_buffers[name]))


def _align(visit: Visit, batches: list[Batch], old: Tensor) -> Tensor:
    """Summed over the classes of the batch: the mean squared distance of their features to the old class mean."""
    (inputs, labels), *_ = batches
    model = split(visit.model.module)
    distances = (model.body(inputs) - old[labels]).square().mean(dim=1)
    alike = (labels.unsqueeze(1) == labels).sum(dim=1)  # examples of the same class in the batch
    loss: Tensor = (distances / alike).sum()
    return loss


def _fisher_trace(visit: Visit, batch_size: int) -> Tensor:
    """The squared gradient norms of the mean loss, summed over the batches of the training split, in evaluation mode."""
    groups = (Group.SHARED, Group.PERSONAL)
    visit.model.train_only(groups)
    visit.model.module.eval()
    total = torch.zeros((), dtype=torch.float64, device=visit.model.shared.device)
    for batch in visit.client.train.in_order(batch_size):
        for group in groups:
            visit.model.gradients[group].zero_()
        cross_entropy(visit, [batch]).backward()
        total += sum(visit.model.gradients[group].double().square().sum() for group in groups)
    return total


class FisherTrace(Samples):
    """By the trace that each client reports; by examples where all are zero."""

    def weights(self, replies: Sequence[Reply], state: Tensors) -> tuple[Tensor, Tensors]:
        traces = torch.stack([reply.extras[FISHER] for reply in replies]).double().cpu()
        return (traces / traces.sum(), state) if traces.any() else super().weights(replies, state)


METHOD = Entry(
    "fedas",
    "the received body is aligned to the client's own features; clients count by Fisher information",
    "Yang et al., CVPR 2024",
    local=FedAsOptions,
    trainer=FedAs,
    weighting=FisherTrace,
    needs_body=True,
)
