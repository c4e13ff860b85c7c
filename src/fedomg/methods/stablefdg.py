"""StableFDG: clients share the styles of their images, explore others, and attend to what images of a class have in common.

Park, Han, Kim, Wang, Brinton and Moon, "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", NeurIPS 2023. A
style is the mean and the deviation of each channel of a feature map over space; it is data, without gradient. From the second round
on the cohort first sends mean and deviation of the styles after the first stage, and each client is sent those of another. In a
training pass, each with probability `sharing` or `exploration`,

    share    after stage 1: the maps are given, half of them representative styles of the batch, half styles drawn from the received
    explore  after every stage but the last: styles are mixed with those of other examples by weights from Beta(mixing, mixing). The
             first time in a pass, `oversampling` examples of the rarest classes are added, s + extrapolation (s - mean s) their styles

After the last stage an attention highlighter compares the positions of a map with an average query, half the example's own and half
that of the next example of its class; at tests its own alone. Its logits and those of the model's head are added: one linear
classifier on the concatenation of both features. Attention is shared like all else, and averaged uniformly. Models differ in stages:
ResNets have four.

Departures: half the batch is shared, whatever its size (published: 16 of 32). Who gets whose style follows a random circle through
the cohort, by numbers that the clients draw. An example that is alone in its class takes the query of another example of its label
in the client's data, in place of its partner's; the published code takes one by position, in place of both. That example passes in
evaluation mode, and only where oversampling may have left one alone. Extrapolated deviations may be negative, which mirrors a map, as
published. Where a balancing loader fetches more examples for OfficeHome in the published code, there is none here.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.distributions import Beta

from fedomg.core.errors import UserError
from fedomg.core.options import LARGE, MOST
from fedomg.core.params import Tensors
from fedomg.core.records import FIT, Reply
from fedomg.data.examples import Batch
from fedomg.local.loop import Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.styles import (
    Classes,
    by_class,
    drawn_from,
    extrapolated,
    mixed,
    partners,
    rarest,
    representative,
    style_of,
    summary,
    with_style,
    without_style,
)
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry
from fedomg.models.split import SplitModel, linear_head, split
from fedomg.server.coordinator import Coordinator, Phase
from fedomg.server.weighting import Uniform

STYLES = "styles"
STYLE, LOT = "style", "lot"
BANK, CIRCLE = "bank", "circle"


class StableFdgOptions(LocalOptions):
    sharing: float = Field(0.5, ge=0, le=1, description="probability that a pass takes shared styles")
    exploration: float = Field(0.5, ge=0, le=1, description="probability that a pass explores styles after a stage")
    oversampling: int = Field(32, ge=0, le=MOST, description="examples of rare classes that exploration adds")
    extrapolation: float = Field(3.0, ge=0, le=LARGE, allow_inf_nan=False, description="how far the styles of these are taken")
    mixing: float = Field(0.1, gt=0, le=LARGE, allow_inf_nan=False, description="both parameters of the Beta that styles are mixed by")
    attention: bool = Field(True, description="whether the attention highlighter takes part")
    attention_channels: int = Field(30, ge=1, le=MOST, description="channels of queries and keys")


class Highlighted(SplitModel):
    """Beside the features, those positions of the last map that look like the class."""

    def __init__(self, model: SplitModel, channels: int) -> None:
        super().__init__(model.body, model.head, model.stages)
        features, head = list(model.stages.values())[-1], linear_head("stablefdg", model)
        self.attention = nn.Conv2d(features, 2 * channels, kernel_size=1)
        self.highlight = nn.Linear(features, head.out_features, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        features, maps = self.looked_at(inputs)
        queries, keys = self.attend(maps)
        return self.answer(features, maps, queries, keys)

    def looked_at(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The features, and the map of the last stage."""
        maps: list[Tensor] = []

        def keep(stage: int, passing: Tensor) -> Tensor:
            maps.append(passing)
            return passing

        return self.through(inputs, keep), maps[-1]

    def attend(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The average query of each map (examples, channels), and its keys (examples, channels, positions)."""
        queries, keys = (F.normalize(half, dim=1).flatten(2) for half in self.attention(maps).chunk(2, dim=1))
        return queries.mean(dim=2), keys

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Of the positions of each map; they sum to one."""
        return torch.einsum("nc,ncp->np", queries, keys).softmax(dim=1)

    def answer(self, features: Tensor, maps: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        attended = torch.einsum("ncp,np->nc", maps.flatten(2), self.weights(queries, keys))
        logits: Tensor = self.head(features) + self.highlight(attended)
        return logits


class StableFdg(Trainer[StableFdgOptions]):
    def module(self, model: SplitModel) -> nn.Module:
        if len(model.stages) < 2:
            raise UserError('method "stablefdg" needs a model with stages of feature maps; choose "resnet18", "tiny_resnet" or "cnn"')
        return Highlighted(model, self.options.attention_channels) if self.options.attention else model

    def gather(self, phase: str, visit: Visit) -> Tensors:
        """The summary of the client's styles, and its lot in the circle."""
        model = split(visit.model.module)
        found: list[Tensor] = []

        def keep(stage: int, maps: Tensor) -> Tensor:
            if stage == 0:
                found.append(style_of(maps))
            return maps

        model.eval()
        with torch.no_grad():
            for inputs, _ in visit.client.train.in_order(self.options.batch_size):
                model.through(inputs, keep)
        return {STYLE: summary(torch.cat(found)), LOT: torch.rand(())}

    def stages(self, visit: Visit) -> Sequence[Stage]:
        chances = random.Random(visit.streams.generator("styles").initial_seed())
        return (Stage(partial(self._loss, chances=chances, others=Others.of(visit))),)

    def _loss(self, visit: Visit, batches: list[Batch], chances: random.Random, others: "Others") -> Tensor:
        (inputs, labels), *_ = batches
        model, styled = split(visit.model.module), _Pass(self.options, visit, labels, chances)
        features = model.through(inputs, styled.at_stage)
        if not isinstance(model, Highlighted):
            return F.cross_entropy(model.head(features), styled.labels)
        own, keys = model.attend(styled.maps)
        next_of_class, alone = partners(styled.labels, visit.classes)
        beside = own[next_of_class]
        if styled.added < min(len(labels), visit.classes):
            beside = torch.where(alone.unsqueeze(1), others.queries(visit, model)[styled.labels], beside)
        return F.cross_entropy(model.answer(features, styled.maps, (own + beside) / 2, keys), styled.labels)


class _Pass:
    """One training pass: what happens to the maps on their way, and the labels of the examples that they are of by then."""

    def __init__(self, options: StableFdgOptions, visit: Visit, labels: Tensor, chances: random.Random) -> None:
        last = len(split(visit.model.module).stages) - 1
        self._options, self._classes = options, visit.classes
        self._received = visit.broadcast.extras.get(STYLE) if chances.random() < options.sharing else None
        self._explores = [chances.random() < options.exploration for _ in range(last)] + [False]
        self.labels = labels
        self.maps = torch.empty(0)
        self.added = 0

    def at_stage(self, stage: int, maps: Tensor) -> Tensor:
        if stage == 0 and self._received is not None:
            maps = _shared(maps, self._received)
        self.maps = self._explored(maps) if self._explores[stage] else maps
        return self.maps

    def _explored(self, maps: Tensor) -> Tensor:
        options, styles = self._options, style_of(maps)
        plain = without_style(maps, styles)
        if not self.added and options.oversampling:
            more = rarest(self.labels, self._classes, options.oversampling)
            plain = torch.cat([plain, plain[more]])
            styles = torch.cat([styles, extrapolated(styles, more, options.extrapolation)])
            self.labels = torch.cat([self.labels, self.labels[more]])
            self.added = options.oversampling
        parameter = torch.tensor(options.mixing, device=maps.device)
        weights = Beta(parameter, parameter, validate_args=False).sample((len(plain),))
        return with_style(plain, mixed(styles, torch.randperm(len(plain), device=maps.device), weights))


def _shared(maps: Tensor, received: Tensor) -> Tensor:
    """The first half in representative styles of the batch, the second in styles like those received."""
    styles, theirs = style_of(maps), len(maps) // 2
    given = torch.cat([representative(styles, len(maps) - theirs), drawn_from(received, theirs)])
    return with_style(without_style(maps, styles), given)


@dataclass(frozen=True)
class Others:
    """The client's training data by class, to find company for an example that is alone in its class."""

    examples: Classes
    present: Tensor
    draw: Generator

    @staticmethod
    def of(visit: Visit) -> "Others":
        labels = visit.client.train.labels
        examples = by_class(labels, visit.classes, torch.arange(len(labels), device=labels.device))
        return Others(examples, examples.counts.nonzero().flatten(), visit.streams.generator("augment/others"))

    def queries(self, visit: Visit, model: Highlighted) -> Tensor:
        """Of each class the average query of one example; zero where the client has none."""
        counts, starts = self.examples.counts[self.present], self.examples.starts[self.present]
        chosen = (torch.rand(len(counts), device=counts.device) * counts).long()
        batch = visit.client.train.batch(self.examples.positions[starts + chosen.minimum(counts - 1)], self.draw)
        with torch.no_grad(), _evaluating(model):
            _, maps = model.looked_at(batch.inputs)
        found, _ = model.attend(maps)
        return found.new_zeros(visit.classes, found.shape[1]).index_copy(0, self.present, found)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    model.eval()
    yield
    model.train()


class StableFdgCoordinator(Coordinator[StableFdgOptions]):
    """Keeps the last cohort's styles, in the order of the circle."""

    def phases(self, round: int, cohort: Sequence[int]) -> Sequence[Phase]:
        training = Phase(FIT, cohort, updates=True)
        shares = round > 1 and len(cohort) > 1 and self.options.sharing > 0
        return (Phase(STYLES, cohort), training) if shares else (training,)

    def extras(self, phase: str, client: int, state: Tensors) -> Tensors:
        """The style of the next in the circle; who is not in it is sent one of those that are."""
        if phase not in (FIT, "view:adapted") or BANK not in state:
            return {}
        circle: list[int] = state[CIRCLE].tolist()
        place = circle.index(client) + 1 if client in circle else client
        return {STYLE: state[BANK][place % len(circle)]} if circle != [client] else {}

    def collect(self, phase: str, replies: Sequence[Reply], updates: Tensor | None, state: Tensors) -> Tensors:
        if phase != STYLES:
            return state
        around = sorted(replies, key=lambda reply: float(reply.extras[LOT]))
        circle = torch.tensor([reply.client for reply in around])
        return {BANK: torch.stack([reply.extras[STYLE] for reply in around]), CIRCLE: circle}


METHOD = Entry(
    "stablefdg",
    "styles shared between clients and explored beyond, attention to what a class has in common",
    "Park et al., NeurIPS 2023",
    individual="the server hands each client the style of another",
    local=StableFdgOptions,
    trainer=StableFdg,
    coordinator=StableFdgCoordinator,
    weighting=Uniform,
    needs_body=True,  # styles and attention are those of its feature maps
)
