"""FedADG: the features of every client are aligned, class by class, to one reference distribution that learns to meet them.

Zhang, Lei, Shi, Huang and Chen, "Federated Learning with Domain Generalization", 2021. Beside the body F and the classifier C there are a
generator G, which makes reference features of a class from noise, and each client's own discriminator D. After `warmup_epochs` of F
and C on cross-entropy with smoothed labels, every step on a batch (x, y) with noise n descends in turn

    D:     (1 - D(G(n, y), y))^2 + D(F(x), y)^2
    G:     D(G(n, y), y)^2
    F, C:  alpha * cross-entropy + (1 - alpha) (1 - D(F(x), y))^2

D stays with its client; F, C and G are averaged uniformly, G by the coordinator. The order of the last two is immaterial, for neither
depends on the other. D and G are moved by SGD at `adversary_lr`, F and C as configured, all on the configured schedule.

Departures: in one variant of the published code G's output is detached in G's own loss, so that it never learns, and D climbs what it
should descend; the losses above are those of the other variant. F passes a batch once for D and for itself, so BatchNorm statistics
move once a step. Each row of D's projection has unit length at all times, where the published code divides by a norm once. Smoothing and
the value of a label are the same in both parts of the training.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedomg.core.options import LARGE, MOST
from fedomg.core.params import Group, Tensors
from fedomg.core.records import FIT, Reply
from fedomg.data.examples import Batch
from fedomg.local.loop import Progress, Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import AUXILIARY, Trainer
from fedomg.methods.method import Entry
from fedomg.models.split import SplitModel, linear_head
from fedomg.server.coordinator import Coordinator
from fedomg.server.weighting import Uniform


class FedAdgOptions(LocalOptions):
    alpha: float = Field(0.85, ge=0, le=1, description="weight of the classification against the alignment")
    warmup_epochs: int = Field(1, ge=0, le=MOST, description="epochs of body and classifier alone, before the adversarial ones")
    adversary_lr: float = Field(7e-4, gt=0, le=LARGE, allow_inf_nan=False, description="learning rate of generator and discriminator")
    smoothing: float = Field(0.2, ge=0, lt=1, description="label smoothing")
    label_value: float = Field(0.6, gt=0, le=LARGE, allow_inf_nan=False, description="what stands for the class in a label code")
    noise: int = Field(100, ge=1, le=MOST, description="noise values that a reference feature is made from")
    generator_width: int = Field(4096, ge=1, le=MOST, description="units of the generator's hidden layer")
    discriminator_width: int = Field(1024, ge=1, le=MOST, description="units of the discriminator's projection and hidden layer")


class Generator(nn.Module):
    """Reference features from noise and label codes."""

    def __init__(self, noise: int, classes: int, width: int, features: int) -> None:
        super().__init__()
        hidden, last = nn.Linear(noise + classes, width), nn.Linear(width, features)
        self.layers = nn.Sequential(hidden, nn.LeakyReLU(), last, nn.ReLU())
        for layer in (hidden, last):
            nn.init.xavier_uniform_(layer.weight, gain=0.5)

    def forward(self, noise: Tensor, codes: Tensor) -> Tensor:
        features: Tensor = self.layers(torch.cat([noise, codes], dim=1))
        return features


class Discriminator(nn.Module):
    """How likely features are references of their labels."""

    def __init__(self, features: int, classes: int, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(features, width, bias=False)
        self.answer = nn.Sequential(nn.Linear(width + classes, width), nn.LeakyReLU(), nn.Linear(width, 1), nn.Sigmoid())

    def forward(self, features: Tensor, codes: Tensor) -> Tensor:
        projected = F.linear(features, F.normalize(self.projection.weight))
        answer: Tensor = self.answer(torch.cat([projected, codes], dim=1))
        return answer


class Adversarial(SplitModel):
    """A model with the two that align its features; it answers as without them."""

    def __init__(self, model: SplitModel, generator: Generator, discriminator: Discriminator) -> None:
        super().__init__(model.body, model.head)
        self.generator = generator
        self.discriminator = discriminator


class FedAdg(Trainer[FedAdgOptions]):
    def module(self, model: SplitModel) -> nn.Module:
        head, options = linear_head("fedadg", model), self.options
        generator = Generator(options.noise, head.out_features, options.generator_width, head.in_features)
        return Adversarial(model, generator, Discriminator(head.in_features, head.out_features, options.discriminator_width))

    def group_of(self, name: str) -> Group:
        if name.startswith("generator."):
            return Group.AUXILIARY
        return Group.PERSONAL if name.startswith("discriminator.") else Group.SHARED

    def stages(self, visit: Visit) -> Sequence[Stage]:
        options, own = self.options, (Group.SHARED,)
        rivals = (
            Stage(groups=(Group.PERSONAL,), lr=options.adversary_lr, optimizer="sgd", name="discriminator"),
            Stage(groups=(Group.AUXILIARY,), lr=options.adversary_lr, optimizer="sgd", name="generator"),
        )
        warmup = Stage(self._classification, groups=own, epochs=options.warmup_epochs, name="warmup")
        return warmup, Stage(turns=self._turns, rivals=rivals, groups=own)

    def _classification(self, visit: Visit, batches: list[Batch]) -> Tensor:
        inputs, labels = batches[0]
        return self._smoothed(visit.model.module(inputs), labels)

    def _smoothed(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.options.smoothing)

    def _turns(self, visit: Visit, batches: list[Batch]) -> Iterator[Tensor]:
        model, (inputs, labels) = visit.model.module, batches[0]
        assert isinstance(model, Adversarial)
        codes = torch.zeros(len(labels), visit.classes, device=labels.device)
        codes.scatter_(1, labels.unsqueeze(1), self.options.label_value)
        features = model.body(inputs)
        references = model.generator(torch.rand(len(labels), self.options.noise, device=labels.device), codes)
        truth, claim = model.discriminator(references.detach(), codes), model.discriminator(features.detach(), codes)
        yield ((1 - truth).square() + claim.square()).mean()
        yield model.discriminator(references, codes).square().mean()
        alignment = (1 - model.discriminator(features, codes)).square().mean()
        yield self.options.alpha * self._smoothed(model.head(features), labels) + (1 - self.options.alpha) * alignment

    def report(self, visit: Visit, progress: Progress) -> Tensors:
        return {AUXILIARY: visit.model.values[Group.AUXILIARY].clone()}


class FedAdgCoordinator(Coordinator[FedAdgOptions]):
    """Keeps the generator; before the first round clients hold the initial one."""

    def extras(self, phase: str, client: int, state: Tensors) -> Tensors:
        return dict(state) if phase in (FIT, "view:adapted") else {}

    def collect(self, phase: str, replies: Sequence[Reply], updates: Tensor | None, state: Tensors) -> Tensors:
        return {AUXILIARY: torch.stack([reply.extras[AUXILIARY] for reply in replies]).mean(dim=0)}


METHOD = Entry(
    "fedadg",
    "features aligned by adversaries to a reference distribution that learns",
    "Zhang et al., 2021",
    composes=False,
    refusal="the generator that its features follow is averaged, and would not keep step with a model that moves otherwise",
    local=FedAdgOptions,
    trainer=FedAdg,
    coordinator=FedAdgCoordinator,
    weighting=Uniform,
    needs_body=True,  # what its adversaries move is the body
)
