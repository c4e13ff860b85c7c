"""FedSR: features are random, short, and tell little about the inputs beyond their class.

Nguyen, Torr and Lim, "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning", NeurIPS 2022. A linear layer
on the backbone gives each example a Gaussian N(mu, sigma^2) in d dimensions, from which its feature z is drawn; a linear classifier
follows. The loss is cross-entropy, plus `norm_weight` times the mean length of z, plus `information_weight` times the bound on
the information that z holds about x given y: the divergence of N(s mu, (s sigma)^2) from a reference N(r_mu, r_sigma^2) of the class.
Each client learns the references and the scale s for itself and keeps them; layer and classifier are shared, learned, averaged
uniformly. A prediction is the mean of the softmax over `samples` draws.

Departures: s is the exponential of what is learned, for it must be positive, and the deviations stay above 1e-6 (the published code
bounds neither). The draws of a prediction are the same for every example, so that it depends on nothing but the model and the
input: not on batches, order or who asks. The code published with FedOMG makes classifier and references anew for each batch and trains
neither.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedomg.core.options import LARGE, MOST
from fedomg.core.params import Group
from fedomg.data.examples import Batch
from fedomg.local.loop import Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry
from fedomg.models.split import SplitModel, linear_head
from fedomg.server.weighting import Uniform

SMALLEST_DEVIATION = 1e-6


class FedSrOptions(LocalOptions):
    norm_weight: float = Field(0.01, ge=0, le=LARGE, allow_inf_nan=False, description="lambda_2, of the mean length of a feature")
    information_weight: float = Field(0.001, ge=0, le=LARGE, allow_inf_nan=False, description="lambda_c, of the information bound")
    dimensions: int | None = Field(None, ge=1, le=MOST, description="d, of a feature; by default as many as the backbone gives")
    samples: int = Field(20, ge=1, le=MOST, description="draws that a prediction is the mean of")


class Gaussian(SplitModel):
    """Features N(mean, deviation^2), and the references of the classes. It answers with logarithms of probabilities."""

    def __init__(self, body: nn.Module, features: int, head: nn.Linear, samples: int) -> None:
        super().__init__(body, head)
        self.gaussian = nn.Linear(features, 2 * head.in_features)
        self.reference = Reference(head.out_features, head.in_features)
        self.samples = samples

    def distribution(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.gaussian(self.body(inputs)).float().chunk(2, dim=1)
        return mean, _positive(raw)

    def forward(self, inputs: Tensor) -> Tensor:
        mean, deviation = self.distribution(inputs)
        draws = _draws(self.samples, mean.shape[1]).to(mean.device)
        logits: Tensor = self.head(torch.addcmul(mean, deviation, draws.unsqueeze(1)))
        return logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(self.samples)


class Reference(nn.Module):
    """What a client expects of the features of each class."""

    def __init__(self, classes: int, dimensions: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, dimensions))
        self.raw_deviation = nn.Parameter(torch.ones(classes, dimensions))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def divergence(self, mean: Tensor, deviation: Tensor, labels: Tensor) -> Tensor:
        """Of the scaled features from their classes' references: the mean over the examples."""
        scale = self.log_scale.exp()
        expected = self.mean[labels], _positive(self.raw_deviation)[labels]
        apart = divergence(scale * mean, scale * deviation, *expected)
        return apart.sum(dim=1).mean()


def divergence(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """Kullback and Leibler's, of one Gaussian from the other, in each dimension."""
    distance = (deviation.square() + (mean - other_mean).square()) / (2 * other_deviation.square())
    return other_deviation.log() - deviation.log() + distance - 0.5


class FedSr(Trainer[FedSrOptions]):
    def module(self, model: SplitModel) -> nn.Module:
        own = linear_head("fedsr", model)
        dimensions = self.options.dimensions or own.in_features
        head = own if dimensions == own.in_features else nn.Linear(dimensions, own.out_features)
        return Gaussian(model.body, own.in_features, head, self.options.samples)

    def group_of(self, name: str) -> Group:
        return Group.PERSONAL if name.startswith("reference.") else Group.SHARED

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(self._loss),)

    def _loss(self, visit: Visit, batches: list[Batch]) -> Tensor:
        (inputs, labels), *_ = batches
        model = visit.model.module
        assert isinstance(model, Gaussian)
        mean, deviation = model.distribution(inputs)
        features = mean + deviation * torch.randn_like(mean)
        loss = F.cross_entropy(model.head(features), labels)
        if self.options.norm_weight:
            loss = loss + self.options.norm_weight * features.norm(dim=1).mean()
        if self.options.information_weight:
            loss = loss + self.options.information_weight * model.reference.divergence(mean, deviation, labels)
        return loss


def _positive(raw: Tensor) -> Tensor:
    return F.softplus(raw) + SMALLEST_DEVIATION


@cache
def _draws(samples: int, dimensions: int) -> Tensor:
    return torch.randn(samples, dimensions, generator=torch.Generator().manual_seed(0))


METHOD = Entry(
    "fedsr",
    "random features that are short and tell little beyond the class",
    "Nguyen et al., NeurIPS 2022",
    local=FedSrOptions,
    trainer=FedSr,
    weighting=Uniform,
)
