"""FedPAC: a shared body that pulls features to global class prototypes, and personal heads combined across similar clients.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023. A sampled client
measures its feature statistics with the body it received; trains the head for an epoch, then the body on cross-entropy plus lambda
times the mean squared distance to the prototypes of the classes; and sends the head, prototypes and statistics. For each of these
clients the server mixes the heads by the weights that minimise a quadratic bound on its test loss (equations 9 to 11), and the mixed
head reaches its client with the next message. Prototypes are averaged by class counts as in the authors' code. Everything is keyed by
client id (published code mixes two orders and so gives weights to the wrong clients), and only sampled clients measure statistics.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedomg.core.params import Group, Tensors
from fedomg.core.records import FIT, Reply
from fedomg.data.examples import Batch
from fedomg.local.features import ClassFeatures, class_features
from fedomg.local.loop import Progress, Stage, Visit, cross_entropy
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import PERSONAL, Trainer
from fedomg.methods.method import Entry
from fedomg.models.split import split
from fedomg.omg import shortest
from fedomg.server.coordinator import Coordinator

PROTOTYPES, COUNTS, STATISTICS, VARIANCE = "prototypes", "counts", "statistics", "variance"
HEAD = "head/"
SMALLEST_WEIGHT = 1e-3


class FedPacOptions(LocalOptions):
    prototype_weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="lambda, the pull of features to the prototypes")
    head_epochs: int = Field(1, ge=0, description="epochs of the head alone, before the body")
    head_lr: float | None = Field(None, gt=0, allow_inf_nan=False, description="learning rate of the head; by default lr")


class FedPac(Trainer[FedPacOptions]):
    personalises = True
    answers_globally = False

    def group_of(self, name: str) -> Group:
        return Group.PERSONAL if name.startswith("head.") else Group.SHARED

    def arrive(self, visit: Visit) -> Tensors:
        return statistics(class_features(visit))

    def stages(self, visit: Visit) -> Sequence[Stage]:
        head = Stage(groups=(Group.PERSONAL,), epochs=self.options.head_epochs, lr=self.options.head_lr, name="head")
        return head, Stage(self._body_loss, groups=(Group.SHARED,))

    def _body_loss(self, visit: Visit, batches: list[Batch]) -> Tensor:
        if PROTOTYPES not in visit.broadcast.extras or not self.options.prototype_weight:
            return cross_entropy(visit, batches)
        (inputs, labels), *_ = batches
        model = split(visit.model.module)
        features = model.body(inputs)
        loss = F.cross_entropy(model.head(features), labels)
        return loss + self.options.prototype_weight * self._distance(visit, features, labels)

    def _distance(self, visit: Visit, features: Tensor, labels: Tensor) -> Tensor:
        """Classes of which no client of the last round has sent a prototype do not pull."""
        prototypes, counts = visit.broadcast.extras[PROTOTYPES], visit.broadcast.extras[COUNTS]
        known = (counts[labels] > 0).to(features.dtype)
        return ((features - prototypes[labels]).square().mean(dim=1) * known).mean()

    def report(self, visit: Visit, progress: Progress) -> Tensors:
        trained = class_features(visit)
        return {PERSONAL: visit.model.values[Group.PERSONAL].clone(), PROTOTYPES: trained.means, COUNTS: trained.counts}


def statistics(found: ClassFeatures) -> Tensors:
    """The mean of each class times its frequency, and the variance of the features' mean."""
    n = found.counts.sum()
    frequency = found.counts / n
    weighted = frequency.unsqueeze(1) * found.means
    variance = ((frequency * found.squares).sum() - weighted.square().sum()) / n
    return {STATISTICS: weighted, VARIANCE: variance.clamp(min=0)}


class FedPacCoordinator(Coordinator[FedPacOptions]):
    def extras(self, phase: str, client: int, state: Tensors) -> Tensors:
        head = {PERSONAL: state[f"{HEAD}{client}"]} if f"{HEAD}{client}" in state and phase != "view:global" else {}
        trains = phase in (FIT, "view:adapted")
        return head | {name: state[name] for name in (PROTOTYPES, COUNTS) if trains and name in state}

    def collect(self, phase: str, replies: Sequence[Reply], updates: Tensor | None, state: Tensors) -> Tensors:
        counts = torch.stack([reply.extras[COUNTS] for reply in replies])
        sums = torch.stack([reply.extras[PROTOTYPES] * reply.extras[COUNTS].unsqueeze(1) for reply in replies]).sum(dim=0)
        total = counts.sum(dim=0)
        heads = torch.stack([reply.extras[PERSONAL] for reply in replies])
        mixed = head_weights(replies).to(heads) @ heads
        mine = {f"{HEAD}{reply.client}": head.clone() for reply, head in zip(replies, mixed, strict=True)}
        return {**state, **mine, PROTOTYPES: sums / total.clamp(min=1).unsqueeze(1), COUNTS: total}


def head_weights(replies: Sequence[Reply]) -> Tensor:
    """Row i holds the weights with which client i mixes the heads: they minimise a' (diag(V) + D_i) a over the simplex."""
    means = torch.stack([reply.extras[STATISTICS].flatten() for reply in replies]).double()
    variances = torch.stack([reply.extras[VARIANCE] for reply in replies]).double()
    rows = []
    for own in means:
        apart = own - means
        rows.append(without_the_smallest(shortest(torch.diag(variances) + apart @ apart.T)))
    return torch.stack(rows)


def without_the_smallest(weights: Tensor) -> Tensor:
    """Cuts weights that do not count, and never all: among a thousand clients an even share is itself that small."""
    kept = torch.where(weights < min(SMALLEST_WEIGHT, 0.5 / len(weights)), 0.0, weights)
    return kept / kept.sum()


METHOD = Entry(
    "fedpac",
    "features pulled to shared prototypes, personal heads mixed across similar clients",
    "Xu et al., ICLR 2023",
    local=FedPacOptions,
    trainer=FedPac,
    coordinator=FedPacCoordinator,
    needs_body=True,
    individual="the server mixes a head for each client from every client's head and feature statistics",
)
