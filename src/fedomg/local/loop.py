"""The one local training loop: it owns batches, schedule, clipping, BatchNorm mode, optimizers and generators."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedomg.core.params import FlatModel, Group
from fedomg.core.records import Broadcast, ClientState
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch
from fedomg.data.federation import Client
from fedomg.local.batches import plan
from fedomg.local.optimizer import bound, open_optimizer, rate, recall, remembered, stage_options
from fedomg.local.options import LocalOptions


@dataclass(frozen=True)
class Task:
    """What a client needs beside its data: the model to work in, and how it trains."""

    model: FlatModel
    options: LocalOptions
    rounds: int


@dataclass(frozen=True)
class Visit:
    """One client's turn: everything that a step may read."""

    task: Task
    client: Client
    broadcast: Broadcast
    state: ClientState
    streams: Streams

    @property
    def model(self) -> FlatModel:
        return self.task.model

    @property
    def classes(self) -> int:
        return len(self.client.train.dataset.class_names)


Loss = Callable[[Visit, list[Batch]], Tensor]
"""The loss of one step, to be differentiated."""


def cross_entropy(visit: Visit, batches: list[Batch]) -> Tensor:
    """The mean over the first batch."""
    inputs, labels = batches[0]
    return F.cross_entropy(visit.model.module(inputs), labels)


Term = Callable[[Tensor], Tensor]
"""What the shared parameters add to their own gradient, as vectors."""

Gradient = Callable[[Visit, list[Batch]], Tensor]
"""Adds the gradient of one step to the zeroed gradient vectors and returns the loss, detached."""

Move = Callable[[list[Batch]], Tensor]
"""Moves the model along the gradient of these batches, by the optimizer, and returns the loss."""

Step = Callable[[Visit, list[Batch], Move], Tensor]
"""One step of the loop: moves of which the model is the result, and their loss."""

Turns = Callable[[Visit, list[Batch]], Iterator[Tensor]]
"""The losses of one step that several optimizers take in turn: each is descended before the next is asked for."""


@dataclass(frozen=True)
class Stage:
    """A stretch of local training: which groups move, along which gradient, for how long.

    The gradient is that of the loss, plus the term; a method that computes it otherwise gives `gradient` in place of both.
    `epochs`, `steps`, `lr` and `optimizer` are those of the configuration where they are None. A `plain` stage is SGD at a constant
    rate, without momentum, decay and clipping, whatever the configuration says. Each step gets a batch from each of `orders` independent
    shuffles of the client's examples, or one from each domain. A step is one move along the gradient; a method that moves otherwise
    gives `step`. Before step number `restart` the optimizer forgets. What is put into `memory` the client keeps. Stages of different
    name remember different optimizers. Where `rivals` take part, each moves its own groups by an optimizer of its own: in every step
    they descend the first of the losses of `turns`, in order, and the stage itself descends the last.
    """

    loss: Loss = cross_entropy
    term: Term | None = None
    gradient: Gradient | None = None
    step: Step | None = None
    turns: Turns | None = None
    rivals: tuple["Stage", ...] = ()
    groups: tuple[Group, ...] = (Group.SHARED, Group.PERSONAL)
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    orders: int = 1
    by_domain: bool = False
    plain: bool = False
    restart: int | None = None
    memory: ClientState = field(default_factory=dict)
    name: str = "fit"


@dataclass(frozen=True)
class Progress:
    """What a stage did; `distance` is the sum of its learning rates over its steps."""

    steps: int = 0
    loss: float = math.nan
    distance: float = 0.0

    def then(self, last: "Progress") -> "Progress":
        """Both, one after the other; the loss is that of the last."""
        return Progress(self.steps + last.steps, last.loss, self.distance + last.distance)


def train(stage: Stage, visit: Visit, state: ClientState) -> tuple[Progress, ClientState]:
    """Runs one stage on the model in the visit's task; returns what the stage and its optimizers want remembered."""
    visit.model.module.train()
    together = (*stage.rivals, stage)
    visit.model.train_only({group for each in together for group in each.groups})
    movers = [_Mover(each, visit, state) for each in together]
    own, gradient = movers[-1], stage.gradient or partial(descend, stage)

    def move(batches: list[Batch]) -> Tensor:
        return own.along(partial(gradient, visit, batches))

    steps, drawn = plan(stage, visit)
    chance = visit.streams.generator(augmentation(stage))
    total, distance = torch.zeros((), device=visit.model.shared.device), 0.0
    for step, drawn_now in enumerate(drawn):
        distance += [mover.set_rate(step / steps) for mover in movers][-1]
        if step == stage.restart:
            own.optimizer.state.clear()
        batches = [visit.client.train.batch(positions, chance) for positions in drawn_now]
        if stage.turns is not None:
            total += _take_turns(stage.turns(visit, batches), movers)
        else:
            total += move(batches) if stage.step is None else stage.step(visit, batches, move)
    if not steps:
        return Progress(), stage.memory
    kept = {name: tensor for mover in movers for name, tensor in mover.remembered().items()}
    return Progress(steps, float(total) / steps, distance), kept | stage.memory


class _Mover:
    """An optimizer, and the vectors that it moves."""

    def __init__(self, stage: Stage, visit: Visit, state: ClientState) -> None:
        model = visit.model
        self._stage, self._visit, self._options = stage, visit, stage_options(stage, visit)
        self._vectors = {group: model.values[group] for group in stage.groups if len(model.values[group])}
        self._gradients = [model.gradients[group] for group in self._vectors]
        for vector, gradient in zip(self._vectors.values(), self._gradients, strict=True):
            vector.grad = gradient
        self.optimizer = open_optimizer(self._options, [list(self._vectors.values())], recall(stage, self._vectors, state))

    def along(self, gradient: Callable[[], Tensor]) -> Tensor:
        """Moves along the gradient that this call adds, and returns its loss."""
        for vector in self._gradients:
            vector.zero_()
        with self._options.arithmetic(self._visit.model.shared.device):
            loss = gradient()
        if self._options.clip is not None:
            bound(self._gradients, self._options.clip)
        self.optimizer.step()
        return loss

    def set_rate(self, done: float) -> float:
        self.optimizer.param_groups[0]["lr"] = pace = rate(self._stage, self._visit, self._options, done)
        return pace

    def remembered(self) -> ClientState:
        return remembered(self.optimizer, self._stage, self._options, self._vectors)


def _take_turns(losses: Iterator[Tensor], movers: Sequence[_Mover]) -> Tensor:
    """Each mover descends its loss; returns that of the last."""

    def descend_the_next() -> Tensor:
        loss = next(losses)
        loss.backward()
        return loss.detach()

    return [mover.along(descend_the_next) for mover in movers][-1]


def augmentation(stage: Stage) -> str:
    """The role of the generator that augments the stage's batches."""
    return f"augment/{stage.name}"


def descend(stage: Stage, visit: Visit, batches: list[Batch]) -> Tensor:
    """Adds the gradient of the stage's loss and term to the gradient vectors; returns the loss, detached."""
    loss = stage.loss(visit, batches)
    loss.backward()
    if stage.term is not None:
        visit.model.gradients[Group.SHARED].add_(stage.term(visit.model.shared))
    return loss.detach()
